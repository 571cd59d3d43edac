"""No adaptation: the deployed model as it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Adapter


@dataclass(frozen=True)
class NoAdapt(Adapter):
    """Predicts with the deployed model; the line that every adapter has to beat."""
