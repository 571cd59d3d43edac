"""Test streams: every shift that a deployed model may meet."""

from ..core import absent
from .base import Shift, Stream
from .benchmark_streams import Corrupted, Interleaved, Mixture, Natural, Original, OutOfClient, brfl
from .blends import Blends
from .correlated import Correlated, LabelSorted, Repeated
from .covariate import InOrder, Quantile
from .drift import Continual, Gradual, LabelDrift, Recurring, severity_sweep
from .grouped import Grouped
from .label_clocks import GradualLabels, RecurringLabels
from .on_device import FewClasses, FewSamples, Periodic
from .unseen import NewClients, Reduced, Rotated, UnseenDomain

__all__ = [
    "Blends",
    "Continual",
    "Correlated",
    "Corrupted",
    "FewClasses",
    "FewSamples",
    "Gradual",
    "GradualLabels",
    "Grouped",
    "InOrder",
    "Interleaved",
    "LabelDrift",
    "LabelSorted",
    "Mixture",
    "Natural",
    "NewClients",
    "Original",
    "OutOfClient",
    "Periodic",
    "Quantile",
    "Recurring",
    "RecurringLabels",
    "Reduced",
    "Repeated",
    "Rotated",
    "Shift",
    "Stream",
    "UnseenDomain",
    "brfl",
    "severity_sweep",
]

absent.explain(__name__)
