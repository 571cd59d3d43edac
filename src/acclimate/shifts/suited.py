"""Which kinds of shift fit which inputs: images, vectors and windows of numbers, texts as bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import date
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core import check, rng
from ..ops import disk_cache
from .base import Corrupting, Federation, Frost, frost
from .corruptions import COMMON, CORRUPTIONS, corrupt_each
from .numbers import NUMBERS, change_each, kinds_for, units
from .text_shifts import TEXT, shift_each

ALL = (*CORRUPTIONS, *NUMBERS, *TEXT)
"""Every kind of shift that streams may name."""
NOTHING = Frost({}, "none")  # type: ignore[arg-type]
S = TypeVar("S", bound=Corrupting)


def suited(shift: S, world: Federation) -> S:
    """The stream with kinds that fit the world's inputs: its own where some were named, else the usual ones."""
    fitting = kinds_of(world.examples)
    changes: dict[str, Any] = {}
    for name in ("kind", "kinds"):
        given = getattr(shift, name, None)
        if given is None or all(k in fitting for k in ((given,) if name == "kind" else given)):
            continue
        default: Any = next(f.default for f in fields(shift) if f.name == name)
        if given != default or fitting == tuple(CORRUPTIONS):
            raise check.FieldError(
                f"{type(shift).__name__}: {name}={given!r} does not fit inputs of shape "
                f"{tuple(world.examples.x.shape[1:])}; name some of {', '.join(fitting)}",
                name,
            )
        changes[name] = fitting[0] if name == "kind" else fitting if default == COMMON else fitting[: len(default)]
    return replace(shift, **changes) if changes else shift


def kinds_of(examples: Any) -> tuple[str, ...]:
    """The kinds that fit these examples."""
    if getattr(examples, "text", False):
        return tuple(TEXT)
    if _ids(examples.x):
        raise ValueError(
            "these inputs are token ids, and of texts only bytes can be shifted; leave data.tokenizer out, or name "
            "streams that leave inputs as they are: streams=original,out-of-client,label-drift"
        )
    return kinds_for(examples.x) or tuple(CORRUPTIONS)


def _ids(x: Tensor) -> bool:
    return x.dtype != torch.uint8 and not x.is_floating_point()


def ice_for(x: Tensor) -> Frost:
    """The pictures of ice for images; none are made for numbers and texts."""
    return NOTHING if kinds_for(x) or _ids(x) else frost()


def kept(x: Tensor, name: str, make: Callable[[], Tensor]) -> Tensor:
    """What `make` gives; of images it is remembered on disk by name. Others are quick, and
    numbers depend on training rows."""
    return make() if kinds_for(x) or _ids(x) else disk_cache.remembered("streams", name, make)


def as_fitted(other: Any, world: Federation, who: str) -> Tensor:
    """Inputs of another set as the clients' are: gaps filled, and days counted, as their training rows say.

    Columns must be the same. Rows that each client scales by its own training rows have no scale in another set.
    """
    if getattr(world, "scales", ()):
        raise ValueError(f"{who} cannot be scaled by each client's own training rows; set data.scale=all or none")
    mine, theirs = (tuple(getattr(e, "features", ())) for e in (world.examples, other))
    names = [
        [(f.column, f.kind, f.word * (f.kind == "word")) for f in features if f.kind != "missing"]
        for features in (mine, theirs)
    ]
    if names[0] != names[1]:
        told = [", ".join(dict.fromkeys(f[0] for f in found)) or "none" for found in names]
        raise ValueError(f"{who} has the inputs {told[1]}, the clients' are {told[0]}; both must be the same, in order")
    if not mine:
        found: Tensor = other.x
        return found
    gone = {f.column: other.x[:, i] > 0 for i, f in enumerate(theirs) if f.kind == "missing"}
    none = torch.zeros(len(other.x), dtype=torch.bool)
    rest, out = iter([(f, other.x[:, i]) for i, f in enumerate(theirs) if f.kind != "missing"]), list[Tensor]()
    for own in mine:  # either may lack a mark that the other has
        missing = gone.get(own.column, none)
        if own.kind == "missing":
            out.append(missing.to(other.x.dtype))
            continue
        its, values = next(rest)
        if own.kind == "date":
            values = values + (date.fromisoformat(its.word) - date.fromisoformat(own.word)).days
        out.append(torch.where(missing, own.fill, values) if own.measured else values)
    return torch.stack(out, 1)


def changed(
    world: Federation,
    common: rng.Key,
    x: Tensor,
    kinds: Tensor,
    severities: int | Tensor,
    keys: Tensor,
    names: Sequence[str],
    ice: Frost,
    revision: int,
) -> Tensor:
    """Inputs, each under `names[kinds]`. `common` draws what is alike for all of them."""
    if _ids(x):
        return shift_each(x, kinds, severities, keys, names)
    if not kinds_for(x):
        return corrupt_each(x, kinds, severities, keys, names=names, frost=ice.textures, revision=revision)
    of = units(world.examples, torch.cat(list(world.train)))
    return change_each(x, kinds, severities, keys, names, of, rng.fold(common, "drift"))
