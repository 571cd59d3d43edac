"""Which shifts there are for which kind of data: streams name them, and take those that fit where none are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .corruptions import COMMON, CORRUPTIONS, Textures, corrupt_each
from .text_shifts import TEXT, shift_text

S = TypeVar("S")


class Family(NamedTuple):
    """The shifts of one kind of data."""

    data: str
    kinds: tuple[str, ...]
    """All of them."""
    usual: tuple[str, ...]
    """Those that a stream has where its field is left at its default."""
    change: Callable[..., Tensor]
    """`(x, kinds, severities, keys, names=, frost=, revision=)`: as `corruptions.corrupt_each`."""
    mark: str = ""
    """Its revision, for the names of cache entries; that of images stands in the stream's record."""


def text_each(
    x: Tensor,
    kinds: Tensor,
    severities: int | Tensor,
    keys: Tensor,
    *,
    names: Sequence[str],
    frost: Textures | None = None,
    revision: int = 0,
) -> Tensor:
    """Texts, each under its own kind and severity; `frost` and `revision` are for images."""
    return each(shift_text, x, kinds, severities, keys, names)


def each(
    one: Callable[[Tensor, str, int, Tensor], Tensor],
    x: Tensor,
    kinds: Tensor,
    severities: int | Tensor,
    keys: Tensor,
    names: Sequence[str],
) -> Tensor:
    """`one(x, kind, severity, keys)` for each pair of kind and severity that occurs, as one batch."""
    levels, out = torch.full_like(keys, severities) if isinstance(severities, int) else severities, x.clone()
    for kind, severity in torch.unique(torch.stack((kinds.to(keys), levels.to(keys)), 1), dim=0).tolist():
        rows = ((kinds == kind) & (levels == severity)).nonzero()[:, 0]
        out[rows] = one(x[rows], names[kind], severity, keys[rows])
    return out


IMAGES = Family("images", tuple(CORRUPTIONS), COMMON, corrupt_each)
TEXTS = Family("texts as bytes", tuple(TEXT), tuple(TEXT), text_each, "text 1 ")
FAMILIES = (IMAGES, TEXTS)
KNOWN = tuple(kind for family in FAMILIES for kind in family.kinds)
"""Every kind that a stream may name; whether it fits is known with the data."""


def kinds_for(examples: Any) -> Family:
    """The shifts that fit these examples (`x`, and whether they are `text`)."""
    x = examples.x
    if getattr(examples, "text", False):
        return TEXTS
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise ValueError(
            "these inputs are token ids, and only texts as bytes can be shifted; leave data.tokenizer out, or name "
            "streams that do not change inputs: streams=original,out-of-client,label-drift"
        )
    return IMAGES


def fitted(shift: S, examples: Any) -> S:
    """The stream's record with kinds that fit: its own, or in the place of its defaults as many of the data's.

    Images keep what the record says.
    """
    family, name = kinds_for(examples), "kinds" if hasattr(shift, "kinds") else "kind"
    if family is IMAGES:
        return shift
    value, default = getattr(shift, name), {f.name: f.default for f in fields(shift)}[name]  # type: ignore[arg-type]
    if value == default:
        few = family.usual[: len(default)] if default != COMMON else family.usual
        return replace(shift, **{name: family.usual[0] if name == "kind" else few})  # type: ignore[type-var]
    wrong = [k for k in ((value,) if name == "kind" else value) if k not in family.kinds]
    if wrong:
        raise ValueError(
            f"{type(shift).__name__}: {name}={', '.join(wrong)} is not for {family.data}; name some of "
            f"{', '.join(family.kinds)}, or leave {name} out"
        )
    return shift
