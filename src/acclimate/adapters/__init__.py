"""Test-time adapters: one file per paper."""

from .bn import BNStats
from .none import NoAdapt
from .t3a import T3A
from .tent import Tent

__all__ = ["T3A", "BNStats", "NoAdapt", "Tent"]
