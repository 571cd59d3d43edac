"""Test streams: every shift that a deployed model may meet."""

from .base import Shift, Stream
from .benchmark_streams import Corrupted, Interleaved, Mixture, Natural, Original, OutOfClient, brfl
from .correlated import Correlated, LabelSorted, Repeated
from .drift import Continual, Gradual, LabelDrift, Recurring, severity_sweep
from .grouped import Grouped
from .unseen import NewClients, Reduced, Rotated, UnseenDomain

__all__ = [
    "Continual",
    "Correlated",
    "Corrupted",
    "Gradual",
    "Grouped",
    "Interleaved",
    "LabelDrift",
    "LabelSorted",
    "Mixture",
    "Natural",
    "NewClients",
    "Original",
    "OutOfClient",
    "Recurring",
    "Reduced",
    "Repeated",
    "Rotated",
    "Shift",
    "Stream",
    "UnseenDomain",
    "brfl",
    "severity_sweep",
]
