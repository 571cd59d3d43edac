"""Test-time adapters: one file per paper."""

from .bn import BNStats
from .knn import KNNPer
from .mbsl import MBSL
from .memo import MEMO
from .none import NoAdapt
from .t3a import T3A
from .tent import Tent
from .the import THE
from .theplus import THEPlus
from .tsa import TSA
from .ttt import TTT

__all__ = ["MBSL", "MEMO", "T3A", "THE", "TSA", "TTT", "BNStats", "KNNPer", "NoAdapt", "THEPlus", "Tent"]
