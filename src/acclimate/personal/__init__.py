"""Personalisers: what a client does with its labelled data before its model goes live."""

from dataclasses import dataclass

from ..core import Personalizer
from .confusion import Confusion
from .finetune import FineTune
from .fisher import Fisher
from .memory import Memory
from .prior import ClassPrior

__all__ = ["ClassPrior", "Confusion", "FineTune", "Fisher", "Memory", "NoPersonal"]


@dataclass(frozen=True)
class NoPersonal(Personalizer):
    """The deployed model as it is."""
