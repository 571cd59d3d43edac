"""Several architectures in one federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from torch import nn

from ..core import Model, check, rng
from ..core.nn.wrapped import Wrap
from ..core.task import architectures
from .cnn import CNN

SMALL, MEDIUM, BIG = (CNN(widths=w, hidden=512, padding=2) for w in ((16, 32), (32, 64), (64, 128)))
"""The three networks of HeteroFedTTA's Table 3, padded as released."""


@dataclass(frozen=True)
class Mixed:
    """Every client has one of these models. For methods that share no weights, such as HeteroFedTTA.

    The defaults are the paper's small, medium and big network. A model that is named twice is given twice as often.
    """

    models: tuple[Model | Wrap | nn.Module | Callable[[tuple[int, ...], int], nn.Module], ...] = (SMALL, MEDIUM, BIG)
    """Model records, modules, or functions, as an experiment's `model`."""
    assign: Literal["random", "turns"] = "random"
    """Which model client c gets: one drawn by the seed, or in turns the model c modulo their number."""

    def __post_init__(self) -> None:
        check.choices(self)
        if not self.models or any(architectures(m) is not None for m in self.models):
            raise check.FieldError(
                f"Mixed: models={self.models!r} must name at least one model, and no other Mixed", "models"
            )

    @classmethod
    def of(cls, model: Any) -> Mixed:
        """The models of a federation: those of a record that names several, or this one for all clients."""
        several: Mixed = cls((model,)) if architectures(model) is None else model
        return several

    @property
    def architectures(self) -> tuple[Any, ...]:
        """The models: a record that has this stands for several networks (`core.task.architectures`)."""
        return self.models

    def deal(self, clients: int, key: rng.Key) -> list[int]:
        """The number of every client's model. More clients change nothing for the first ones."""
        if self.assign == "turns":
            return [c % len(self.models) for c in range(clients)]
        drawn: list[int] = rng.randint(key, 0, len(self.models), clients).tolist()
        return drawn

    def build(self, shape: tuple[int, ...], num_classes: int) -> NoReturn:
        """There is no one network to build: says what a mixed federation needs."""
        raise ValueError(
            f"Mixed: {len(self.models)} architectures have no weights in common; "
            "use a method that shares none (heterofedtta, fedmd), or one of the models"
        )
