"""Personalisers: what a client does with its labelled data before its model goes live."""

from dataclasses import dataclass

from ..core import Personalizer, absent
from .confusion import Confusion
from .finetune import FineTune
from .fisher import Fisher
from .means import ClassMeans
from .memory import Memory
from .prior import ClassPrior

__all__ = ["ClassMeans", "ClassPrior", "Confusion", "FineTune", "Fisher", "Memory", "NoPersonal"]


@dataclass(frozen=True)
class NoPersonal(Personalizer):
    """The deployed model as it is."""


absent.explain(__name__)
