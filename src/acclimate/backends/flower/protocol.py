"""What a node says besides tensors: plain JSON, whose form is checked before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...core import Tree
from .nodes import nested

KINDS = frozenset({"float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})
"""Types of tensors that may come over the network."""
FAILURES = ("error", "nonfinite")
"""What a node may say happened to a client of its own; see `Fault.kind`."""
REASON = 1000
"""Characters of a reason that are kept: it goes to the log and into results.json."""
NUMBERS = 2**34
"""How many numbers a live model may have; a tensor without any has a shape too, whose sides count."""
AXES = 16


def brief(text: str) -> str:
    """A reason, cut where it is longer than anybody reads."""
    return text if len(text) <= REASON else f"{text[:REASON]} ..."


def checked(words: Mapping[str, Any]) -> Mapping[str, Any]:
    """The words of an answer; ValueError where one of them has another form than it must have."""
    for name, (fits, form) in FORMS.items():
        if name in words and not fits(words[name]):
            raise ValueError(f"the answer's '{name}' must be {form}")
    return words


def model_of(said: Any) -> Tree:
    """A model of zeros by the names, shapes and types that a node tells; ValueError where these are none.

    The zeros take no memory, whatever the node says of their number.
    """
    flat = {name: torch.zeros((), dtype=getattr(torch, kind)).expand(shape) for name, shape, kind in _tensors(said)}
    return nested(flat)


def _tensors(said: Any) -> list[tuple[str, list[int], str]]:
    if not _list_of(said, _tensor) or sum(math.prod(max(side, 1) for side in shape) for _, shape, _ in said) > NUMBERS:
        raise ValueError("not the tensors of a model")
    return [(name, shape, kind) for name, shape, kind in said]


def _tensor(said: Any) -> bool:
    if not (isinstance(said, list) and len(said) == 3):
        return False
    name, shape, kind = said
    sides = _list_of(shape, _number) and len(shape) <= AXES
    return isinstance(name, str) and sides and isinstance(kind, str) and kind in KINDS


def _model(said: Any) -> bool:
    try:
        model_of(said)
    except ValueError:
        return False
    return True


def _list_of(said: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(said, list) and all(fits(one) for one in said)


def _number(said: Any) -> bool:
    return type(said) is int and said >= 0  # True is an int too


def _failed(said: Any) -> bool:
    return isinstance(said, dict) and all(
        isinstance(why, list) and len(why) == 2 and why[0] in FAILURES and isinstance(why[1], str)
        for why in said.values()
    )


def _card(said: Any) -> bool:
    if not isinstance(said, dict):
        return False
    sizes = all(_number(said.get(name)) for name in ("train", "val", "test"))
    classes = _list_of(said.get("classes"), lambda name: isinstance(name, str))
    return sizes and classes and _list_of(said.get("shape"), _number) and isinstance(said.get("pixels"), bool)


FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "round": (_number, "a number"),
    "failed": (_failed, f"a reason by client, [kind, text], with a kind of {', '.join(FAILURES)}"),
    "clients": (lambda said: _list_of(said, _number), "a list of numbers of clients"),
    "left": (lambda said: _list_of(said, _number), "a list of numbers of clients"),
    "lacks": (lambda said: isinstance(said, bool), "true or false"),
    "model": (_model, "a list of tensors, [name, shape, type], of a possible size"),
    "data": (_card, "the shape, classes, pixels and numbers of examples of a site"),
}
"""The words that the server reads: whether one has its form, and that form for people."""
