"""Live models: a deployed model that answers one client's requests and keeps adapting to them."""

from .answer import Answer
from .loading import load_live
from .model import Live

Joined, load_joined = Live, load_live
"""What a newcomer's model and its loader were called when it did not adapt any more."""

__all__ = ["Answer", "Joined", "Live", "load_joined", "load_live"]
