"""What enters a module from elsewhere: one tensor per sample, as one argument or as several."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from .. import check, rng


@dataclass(frozen=True)
class TokenIds:
    """Token ids [batch, length] as a module's first argument, and a mask that says which of them are padding."""

    pad: int = 0
    """The id that fills up short sequences."""
    mask: str = "attention_mask"
    """The name of the module's argument for the mask."""
    form: Literal["auto", "keep", "ignore", "added"] = "auto"
    """What the module expects: 1 for tokens (`keep`, as in transformers), True for padding (`ignore`, as in torch), or
    what is added to the scores of attention [batch, 1, 1, length] (`added`). `auto` is `added` where the module answers
    as with `keep`, because transformers looks into a mask of the first form, which cannot be vectorised; else `keep`.
    """

    def __post_init__(self) -> None:
        check.whole(self, "pad", 0)
        check.choices(self)


Inputs: TypeAlias = TokenIds | tuple[str, ...] | None
"""How an input becomes arguments: ids and a mask; the names of arguments, each of which is a part x[:, i] of the input;
or None: it is the only argument."""


def arguments(inputs: Inputs, x: Tensor, dtype: torch.dtype) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The arguments of a module for a batch of inputs; `dtype` is that of its weights."""
    if inputs is None:
        return (x,), {}
    if isinstance(inputs, tuple):
        return (), {name: x[:, i] for i, name in enumerate(inputs)}
    real = x != inputs.pad
    if inputs.form == "ignore":
        return (x,), {inputs.mask: ~real}
    if inputs.form == "added":
        summand = torch.zeros_like(x, dtype=dtype).masked_fill(~real, torch.finfo(dtype).min)
        return (x,), {inputs.mask: summand[:, None, None, :]}
    return (x,), {inputs.mask: real.to(torch.int64)}


def kind_of(x: Tensor) -> torch.dtype:
    """The type of what a task makes of these inputs."""
    return x.dtype if x.is_floating_point() else torch.float32


def guess(module: nn.Module, inputs: Inputs, tokens: int | None) -> Inputs:
    """What is given; else a mask for a module that names its padding id as those of transformers do."""
    pad = getattr(getattr(module, "config", None), "pad_token_id", None)
    if inputs is not None or tokens is None or not isinstance(pad, int):
        return inputs
    return TokenIds(pad) if "attention_mask" in inspect.signature(module.forward).parameters else None


def forms(inputs: Inputs) -> Sequence[Inputs]:
    """The ways to try, the preferred one first; the last one is what a module is known to take."""
    if isinstance(inputs, TokenIds) and inputs.form == "auto":
        return replace(inputs, form="added"), replace(inputs, form="keep")
    return (inputs,)


def example(shape: tuple[int, ...], tokens: int | None, inputs: Inputs) -> Tensor:
    """Two inputs to try a module with: noise, or sequences with the highest id, one padded at its end, one before."""
    if tokens is None:
        return rng.normal(rng.key(0), 2, *shape)
    pad = inputs.pad if isinstance(inputs, TokenIds) else 0
    x = torch.full((2, *shape), tokens - 1 if tokens - 1 != pad else max(pad - 1, 0))
    x[1, ..., 1::2] = min(1, tokens - 1)
    x[0, ..., shape[-1] - shape[-1] // 3 :] = pad
    x[1, ..., : shape[-1] // 3] = pad
    if isinstance(inputs, tuple):
        x[:, 1:] = min(1, tokens - 1)  # masks and kinds of tokens, which have few values
    return x


def check_inputs(inputs: Any, shape: tuple[int, ...], tokens: int | None) -> None:
    """Refuse inputs that do not fit the data, in a sentence."""
    if isinstance(inputs, TokenIds) and (tokens is None or len(shape) != 1):
        kind = f"numbers of shape {shape}" if tokens is None else f"whole numbers of shape {shape}"
        raise ValueError(
            f"wrap: inputs={inputs!r} is for token ids [batch, length], and the data has {kind}; leave inputs out, or "
            "name the parts: inputs=('input_ids', 'attention_mask')"
        )
    if isinstance(inputs, tuple) and len(inputs) == 1:
        raise ValueError(
            f"wrap: inputs={inputs!r} names the only part of an input; leave inputs out, and let the module's forward "
            "take it by position"
        )
    if isinstance(inputs, tuple) and (len(shape) < 2 or shape[0] != len(inputs)):
        raise ValueError(
            f"wrap: inputs={inputs!r} names {len(inputs)} parts, so an input must have shape [{len(inputs)}, ...]; the "
            f"data has {shape}: stack the parts, x = torch.stack((ids, mask), 1)"
        )
    if not (inputs is None or isinstance(inputs, TokenIds | tuple)):
        raise ValueError(f"wrap: inputs={inputs!r} must be ac.TokenIds(...), a tuple of names of arguments, or None")


def remedy(module: nn.Module, inputs: Inputs, ids: bool) -> str:
    """What helps a module that cannot be called, by what its forward takes; `ids` says that inputs are token ids."""
    takes = inspect.signature(module.forward).parameters.values()
    named = [p for p in takes if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    must = [p.name for p in named if p.default is p.empty]
    by_position = any(p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in takes)
    stacked = f"where inputs are these parts, stacked, name them by ac.wrap(module, inputs={tuple(must)})"
    if not isinstance(inputs, tuple) and not by_position:
        how = f"takes {_listed(must)} by keyword alone" if must else "takes no input by position"
        return f"its forward {how}: let it take its input by position" + (f", or {stacked}" if len(must) > 1 else "")
    if inputs is not None:
        return _renamed(inputs, named, any(p.kind is p.VAR_KEYWORD for p in takes))
    if len(must) > 1:
        mask = f", a mask alone by inputs=ac.TokenIds(mask={must[1]!r})" if ids and len(must) == 2 else ""
        return f"its forward takes {_listed(must)}: {stacked}{mask}, or give all but the first a default"
    if len(takes) > 1:
        return "what it takes besides can be named by ac.wrap(module, inputs=...)"
    return f"its forward takes {_listed(must)} alone, so try it on such a batch"


def _renamed(inputs: TokenIds | tuple[str, ...], named: Sequence[inspect.Parameter], others: bool) -> str:
    """What helps where arguments were named already; `others` says that forward takes any besides."""
    asked = inputs if isinstance(inputs, tuple) else (inputs.mask,)
    if by_position := [p.name for p in named if p.kind is p.POSITIONAL_ONLY and p.name in asked]:
        return f"its forward takes {_listed(by_position)} by position alone: leave out the / behind"
    if others or set(asked) <= {p.name for p in named}:
        return f"it takes what inputs={inputs!r} names, so try it on such a batch"
    return f"its forward takes {_listed([p.name for p in named])}: name these in inputs={inputs!r}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "no arguments"


def token_count(x: Tensor) -> int | None:
    """How many token ids these inputs have, from 0 to the highest; None where they are pixels or numbers."""
    if x.dtype == torch.uint8 or x.is_floating_point():
        return None
    return int(x.max()) + 1 if x.numel() else 1
