"""Test streams: every shift that a deployed model may meet."""

from .base import Shift, Stream
from .benchmark_streams import Corrupted, Interleaved, Mixture, Natural, Original, OutOfClient, brfl
from .drift import Continual, Gradual, LabelDrift, Recurring, severity_sweep
from .unseen import NewClients, Reduced, Rotated, UnseenDomain

__all__ = [
    "Continual",
    "Corrupted",
    "Gradual",
    "Interleaved",
    "LabelDrift",
    "Mixture",
    "Natural",
    "NewClients",
    "Original",
    "OutOfClient",
    "Recurring",
    "Reduced",
    "Rotated",
    "Shift",
    "Stream",
    "UnseenDomain",
    "brfl",
    "severity_sweep",
]
