"""Modules from elsewhere, which return logits: their last linear layer is the head, and what enters it the features.

A `Reading` says how (reading.py finds it out); `Wrapped` is such a module with the contract of a task: it returns
(features, logits). All layers and variables keep their names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from .inputs import Inputs, arguments


class ModelError(ValueError):
    """A module that cannot be used as it is: says why, and what helps."""


@dataclass(frozen=True)
class Wrap:
    """A module, and what cannot be guessed of it: a model for `Experiment` and `Task` (see `wrap`)."""

    module: nn.Module | Callable[[tuple[int, ...], int], nn.Module]
    head: str | None = None
    """The name of the linear layer whose outputs are the logits; None: it is looked for."""
    inputs: Inputs = None
    """How an input becomes the module's arguments."""


def wrap(
    module: nn.Module | Callable[[tuple[int, ...], int], nn.Module], head: str | None = None, inputs: Inputs = None
) -> Wrap:
    """A model out of any module that returns logits, a tuple or dict with them, or an object with `.logits`.

    `module` may also be a function of input shape and number of classes that makes one. A plain module needs no `wrap`
    where its last linear layer can be found and its input is one tensor. `head` names that layer, such as "classifier".
    `inputs` is `TokenIds(pad=0)` for token ids whose padding is masked, or a tuple of names of arguments, each a part
    x[:, i] of the input: ("input_ids", "attention_mask").
    """
    return Wrap(module, head, tuple(inputs) if isinstance(inputs, list) else inputs)


class Reading(NamedTuple):
    """How a module is called, and where in its outputs the logits are."""

    head: str
    place: int | None
    """The position of the logits, where it returns a tuple."""
    inputs: Inputs
    through: bool = False
    """Whether features are what the module returns where its head lets its inputs through: for modules whose head sees
    a whole sequence, of which they pick one place."""


class _Seen:
    """A head that remembers what entered it: the first base of a class that is made for the layer's own class."""

    seen: Any = None
    through: bool = False

    def forward(self, input: Tensor) -> Tensor:
        self.seen = input
        out: Tensor = input if self.through else super().forward(input)  # type: ignore[misc]
        return out


class Wrapped(nn.Module):
    """A module that returns logits, as one that returns (features, logits)."""

    def __init__(self, module: nn.Module, reading: Reading) -> None:
        super().__init__()
        for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[part] = module.__dict__[part]  # the same dicts: so all keep the names that the module gave
        self.__dict__["inner"] = module
        self.head_name, self.reading = reading.head, reading
        head = module.get_submodule(reading.head)
        head.__class__ = type(type(head).__name__, (_Seen, type(head)), {"through": reading.through})

    def train(self, mode: bool = True) -> Wrapped:
        """Its own mode, that of the module that it wraps, and that of all layers."""
        self.__dict__["inner"].training = mode
        return super().train(mode)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        head: Any = self.get_submodule(self.head_name)
        args, named = arguments(self.reading.inputs, x, head.weight.dtype)
        logits = self._logits(self.__dict__["inner"](*args, **named))
        features, head.seen = head.seen, None
        if self.reading.through:
            features, logits = logits, F.linear(logits, head.weight, head.bias)
        return features, logits

    def _logits(self, out: Any) -> Tensor:
        """The logits, where the reading has them: a module may return something else when it trains."""
        with contextlib.suppress(TypeError, KeyError, IndexError):
            if isinstance(logits := at(out, self.reading.place), Tensor):
                return logits
        raise ModelError(
            f"model {type(self.__dict__['inner']).__name__} returns a {type(out).__name__} "
            f"{'while it trains' if self.training else 'when it answers'} that does not have the logits where they "
            "are otherwise; let it return the same in train() and eval()"
        )


def at(out: Any, place: int | None) -> Tensor:
    """The logits in a module's outputs: a tensor, an object or dict with `logits`, or a tuple with them at `place`."""
    if isinstance(out, Tensor):
        return out
    named = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    found: Tensor = out[place] if named is None else named
    return found
