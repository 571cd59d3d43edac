"""Test streams: every shift that a deployed model may meet."""

from .base import Shift, Stream
from .brfl import Corrupted, Mixture, Original, OutOfClient, brfl

__all__ = ["Corrupted", "Mixture", "Original", "OutOfClient", "Shift", "Stream", "brfl"]
