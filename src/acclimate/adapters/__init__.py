"""Test-time adapters: one file per paper."""

from .bn import BNStats
from .none import NoAdapt
from .t3a import T3A
from .tent import Tent
from .the import THE

__all__ = ["T3A", "THE", "BNStats", "NoAdapt", "Tent"]
