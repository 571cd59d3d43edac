"""Message filters: robust reducers, compression, privacy."""

from ..core import absent
from .clip import Clip
from .codec import Codec
from .dp import CentralDP, LocalDP
from .fp16 import FP16
from .int8 import Int8
from .krum import Krum
from .masked import Masked
from .median import Median
from .noise import Noise
from .robust import Robust
from .topk import TopK
from .trimmed import TrimmedMean

__all__ = [
    "FP16",
    "CentralDP",
    "Clip",
    "Codec",
    "Int8",
    "Krum",
    "LocalDP",
    "Masked",
    "Median",
    "Noise",
    "Robust",
    "TopK",
    "TrimmedMean",
]

absent.explain(__name__)
