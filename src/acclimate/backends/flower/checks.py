"""What a server checks before an answer may count: the form of its fields, and everything that could break the sum.

A network hands over whatever a node sent. `checked_fields` looks at the fields of an answer, which are plain JSON.
`examine` looks at one message, as it was sent, and says in a `Fault` why it may not count. Both are pure: the caller
says which clients have answered already, and decides what to do with a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from ...core import Fault, Mean, Rules, Tree, tree
from .protocol import nested

DTYPES = frozenset({"float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"})
"""Types of tensors that may come over the network."""
FAILURES = ("error", "nonfinite")
"""What a node may say happened to a client of its own; see `Fault.kind`."""
NUMBERS = 2**34
"""How many numbers a live model may have; a tensor without any has a shape too, whose sides count."""
AXES = 16
"""How many axes a tensor of a live model may have."""

# --- the tensors of a message --------------------------------------------------------------------------------------


def examine(
    up: Any,
    like: Mapping[str, Any] | None,
    *,
    client: int,
    round: int,
    sent_round: int | None = None,
    seen: Collection[int] = (),
    limit: int | None = None,
    rules: Rules | None = None,
) -> Fault | None:
    """Why the message `up` of a client may not count in this round, or None where it may.

    `like` is a message that did count (`Reply.up`: meta tensors are enough); None before there is one, and then only
    the groups of `rules` (`Worker.uplink`) are compared. `sent_round` is the round the message says it answers; `seen`
    are the clients that were counted already; `limit` is in bytes. The cheap checks come first.
    """

    def fault(kind: str, reason: str) -> Fault:
        return Fault(round, client, kind, reason)

    if sent_round is not None and sent_round != round:
        return fault("stale", f"the message answers round {sent_round}, expected round {round}")
    if client in seen:
        return fault("duplicate", f"client {client} was already counted in round {round}")
    if reason := _odd_groups(up, like if like is not None else rules):
        return fault("groups", reason)
    if limit is not None and (size := tree.nbytes(up)) > limit:
        return fault("oversize", f"the message has {size:,} bytes, expected at most {limit:,}")
    if like is not None:
        if reason := _odd_names(up, like):
            return fault("groups", reason)
        if reason := _odd_shapes(up, like):
            return fault("shape", reason)
    if reason := _not_finite(up):
        return fault("nonfinite", reason)
    if rules is not None and (reason := _bad_weights(up, rules)):
        return fault("error", reason)
    return None


def _odd_groups(up: Any, expected: Mapping[str, Any] | None) -> str | None:
    if not isinstance(up, Mapping):
        return f"the message is a {type(up).__name__}, expected a dict of groups"
    try:
        tree.check(up, "message")
    except TypeError as reason:
        return str(reason)
    if expected is None or set(up) == set(expected):
        return None
    return f"groups: got {sorted(up)}, expected {sorted(expected)}"


def _names(part: Any) -> dict[str, Tensor]:
    return tree.flatten(part) if isinstance(part, Mapping) else {"": part}


def _place(group: str, name: str) -> str:
    return f"group '{group}', tensor '{name}'" if name else f"group '{group}'"


def _odd_names(up: Mapping[str, Any], like: Mapping[str, Any]) -> str | None:
    for group, part in like.items():
        got, expected = _names(up[group]).keys(), _names(part).keys()
        if got != expected:
            extra, missing = sorted(got - expected), sorted(expected - got)
            return f"group '{group}': got {_few(extra)} that was not expected, expected {_few(missing)} that is missing"
    return None


def _few(names: list[str]) -> str:
    return ", ".join(f"'{n}'" for n in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "none"


def _odd_shapes(up: Mapping[str, Any], like: Mapping[str, Any]) -> str | None:
    for group, part in like.items():
        got = _names(up[group])
        for name, want in _names(part).items():
            has = got[name]
            if has.shape != want.shape or has.dtype != want.dtype:
                return f"{_place(group, name)}: got {_kind(has)}, expected {_kind(want)}"
    return None


def _kind(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"


def _not_finite(up: Mapping[str, Any]) -> str | None:
    if bool(tree.finite(up)):
        return None
    for group, part in up.items():
        for name, t in _names(part).items():
            if t.is_floating_point() and (bad := int((~torch.isfinite(t)).sum())):
                return f"{_place(group, name)}: got {bad} of {t.numel()} values that are not finite, expected none"
    return None


def _bad_weights(up: Mapping[str, Any], rules: Rules) -> str | None:
    """A negative weight would let one client turn the others' updates around."""
    for group, rule in rules.items():
        if isinstance(rule, Mean) and rule.by is not None:
            lowest = min((float(t.min()) for t in tree.leaves(up[rule.by]) if t.numel()), default=0.0)
            if lowest < 0:
                return f"group '{rule.by}', the weights of '{group}': got {lowest:g}, expected at least 0"
    return None


# --- the fields of an answer ---------------------------------------------------------------------------------------


def checked_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of an answer; ValueError where one of them has another form than it must have."""
    for name, (fits, form) in FORMS.items():
        if name in fields and not fits(fields[name]):
            raise ValueError(f"the answer's '{name}' must be {form}")
    return fields


def model_of_zeros(tensors: Any) -> Tree:
    """A model of zeros with the names, shapes and types that a node sent; ValueError where they are not of that form.

    The zeros take no memory, whatever their number.
    """
    sizes_fit = _list_of(tensors, _tensor) and sum(_sides(shape) for _, shape, _ in tensors) <= NUMBERS
    if not sizes_fit:
        raise ValueError("not the tensors of a model")
    return nested({name: torch.zeros((), dtype=getattr(torch, kind)).expand(shape) for name, shape, kind in tensors})


def _sides(shape: list[int]) -> int:
    return math.prod(max(side, 1) for side in shape)


def _tensor(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 3):
        return False
    name, shape, kind = value
    sides = _list_of(shape, _number) and len(shape) <= AXES
    return isinstance(name, str) and sides and isinstance(kind, str) and kind in DTYPES


def _model(value: Any) -> bool:
    try:
        model_of_zeros(value)
    except ValueError:
        return False
    return True


def _list_of(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(fits(one) for one in value)


def _number(value: Any) -> bool:
    return type(value) is int and value >= 0  # True is an int too


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(why, list) and len(why) == 2 and why[0] in FAILURES and isinstance(why[1], str)
        for why in value.values()
    )


def _data_card(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    sizes = all(_number(value.get(name)) for name in ("train", "val", "test"))
    classes = _list_of(value.get("classes"), lambda name: isinstance(name, str))
    return sizes and classes and _list_of(value.get("shape"), _number) and isinstance(value.get("pixels"), bool)


FORMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "round": (_number, "a number"),
    "failed": (_failed, f"a reason by client, [kind, text], with a kind of {', '.join(FAILURES)}"),
    "clients": (lambda value: _list_of(value, _number), "a list of numbers of clients"),
    "left": (lambda value: _list_of(value, _number), "a list of numbers of clients"),
    "lacks": (lambda value: isinstance(value, bool), "true or false"),
    "model": (_model, "a list of tensors, [name, shape, type], of a possible size"),
    "sum": (lambda value: isinstance(value, dict), "an answer by client"),
    "data": (_data_card, "the shape, classes, pixels and numbers of examples of a site"),
}
"""The fields that the server reads: whether a value has the right form, and that form in words."""
