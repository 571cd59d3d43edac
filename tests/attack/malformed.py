"""Malformed messages by the million: what a client may send that is wrong, drawn by a seed. `bombarded` says what the
server makes of each.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attacked import FIRST, parcel

from acclimate.backends.flower.protocol import NodeAnswer, Parcel, nested
from acclimate.core import Tree, tree
from acclimate.core.stream import score

try:
    from flwr.app import Array, ArrayRecord

    from acclimate.fleet.records import _parcel

    FLOWER = True
except ImportError:  # then no message is sent in Flower's own records, and `sent` has no "bytes"
    FLOWER = False

LIAR = 3
"""The client that lies; the other three are honest, but that now and then the one before it lies too."""
NUMBERS = (
    0.0,
    -1.0,
    1.0,
    1e-45,
    -1e-3,
    7.5,
    1e3,
    1e10,
    1e19,
    -1e30,
    1e30,
    1e38,
    3e38,
    -3e38,
    float("nan"),
    float("inf"),
)
WHOLE = (0, -1, 1, 255, 10**9, 2**31, 2**53, 2**62, -(2**62), 2**63 - 1, -(2**63))
DTYPES = (torch.float64, torch.float16, torch.int64, torch.int8, torch.bool, torch.uint8)


# --- what a liar sends ----------------------------------------------------------------------------------------------


def value_for(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if x.is_floating_point():
        return torch.tensor(chance.choice(NUMBERS), dtype=torch.float64).to(x.dtype)
    info = torch.iinfo(x.dtype) if x.dtype != torch.bool else None
    number = chance.choice(WHOLE)
    return torch.tensor(number if info is None else min(max(number, info.min), info.max)).to(x.dtype)


def one_entry(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if not x.numel():
        return x
    out = x.clone()
    out.view(-1)[chance.randrange(x.numel())] = value_for(x, chance)
    return out


def all_entries(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return value_for(x, chance).expand(x.shape).clone()


def scaled(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    factor = chance.choice((-1e30, -1e5, -100.0, -5.0, -1.0, 0.0, 3.0, 50.0, 1e4, 1e20))
    return (x.double() * factor).clamp(-3e38, 3e38).to(x.dtype)


def another_type(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return x.to(chance.choice([d for d in DTYPES if d != x.dtype]))


def another_shape(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: x[None],
        lambda: x.flatten()[:-1],
        lambda: x.new_zeros(0),
        lambda: x.new_zeros(()) if x.dim() else x.new_zeros(3),
        lambda: x.new_zeros(0, *x.shape),
        lambda: x.repeat(*[2] * max(x.dim(), 1)),
        lambda: x.T if x.dim() == 2 and x.shape[0] != x.shape[1] else x[None, None],
    ]
    return chance.choice(makers)()


TENSORS = (one_entry, one_entry, all_entries, all_entries, scaled, another_type, another_shape)


def changed_tensor(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    name = chance.choice(list(flat))
    return {**flat, name: chance.choice(TENSORS)(flat[name], chance)}


def changed_claims(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Small tensors are claims: weights, counts, losses, numbers, scales."""
    small = [n for n, x in flat.items() if x.numel() <= 10]
    out = dict(flat)
    for name in small or list(flat):
        out[name] = chance.choice((one_entry, all_entries))(flat[name], chance)
    return out


def scaled_group(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    group = chance.choice(list(flat)).partition("/")[0]
    factor = chance.choice((-1e30, -100.0, -5.0, -1.0, 10.0, 1e4, 1e20))
    inside = [n for n in flat if n.partition("/")[0] == group and flat[n].is_floating_point()]
    return {**flat, **{n: (flat[n].double() * factor).clamp(-3e38, 3e38).to(flat[n].dtype) for n in inside}}


def without_one(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    gone = chance.choice(list(flat))
    return {n: x for n, x in flat.items() if n != gone}


def with_more(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    name = chance.choice(("spy", "delta/extra", "n/deep/er", "", "/", "a/" * 40 + "a", "x" * 1200, "delta/params//"))
    return {**flat, name: torch.zeros(chance.choice((0, 1, 5)))}


def renamed(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    old = chance.choice(list(flat))
    return {(f"{n}x" if n == old else n): x for n, x in flat.items()}


CLAIMS_FIRST = (changed_claims, changed_claims, scaled_group)
FLAT = (*[changed_tensor] * 3, *CLAIMS_FIRST, without_one, with_more, renamed)


def array_bytes(x: np.ndarray, chance: random.Random) -> bytes:
    """An array in numpy's format whose header lies, or whose bytes are damaged."""
    buffer = io.BytesIO()
    header = {"descr": x.dtype.str, "fortran_order": False, "shape": x.shape}
    lies = chance.choice(("shape", "descr", "order", "flip", "cut", "rubbish", "more"))
    if lies == "shape":
        header["shape"] = chance.choice(((True,), (-1,), (10**30,), (0,) * 100, (1, True), (2**62, 4), (x.size, 0)))
    if lies == "descr":
        header["descr"] = chance.choice((">f4", "|O", "<c8", "<U9", "|V4", "<f8", "<M8[s]"))
    if lies == "order":
        header["fortran_order"] = True
    np.lib.format.write_array_header_1_0(buffer, header)
    data = bytearray(buffer.getvalue() + x.tobytes())
    if lies == "flip":
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(min(len(data), 120))] ^= 1 << chance.randrange(8)
    if lies == "cut":
        data = data[: chance.randrange(len(data))]
    if lies == "rubbish":
        data = bytearray(chance.randbytes(chance.randrange(64)))
    if lies == "more":
        data += bytes(chance.randrange(1, 64))
    return bytes(data)


def as_record(flat: dict[str, Any], chance: random.Random) -> Parcel:
    """The message in Flower's own records, with one array whose bytes are wrong."""
    record, bad = ArrayRecord(), chance.choice(list(flat))
    for name, x in flat.items():
        data = x.numpy()
        buffer = io.BytesIO()
        np.save(buffer, data)
        raw = array_bytes(data, chance) if name == bad else buffer.getvalue()
        record[name] = Array(dtype=str(data.dtype), shape=data.shape, stype="numpy.ndarray", data=raw)
    return _parcel(record)


def json_value(chance: random.Random, depth: int = 3) -> Any:
    kinds = [None, True, False, 0, -1, 3, 10**30, 0.5, "", "x" * 50, "up.3"]
    if depth and chance.random() < 0.5:
        if chance.random() < 0.5:
            return [json_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        return {str(chance.randrange(6)): json_value(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(kinds)


def fields_of(chance: random.Random, round: int) -> Any:
    """Fields of an answer that are wrong in form or in content, as the reader gives them; None where it refuses."""
    from acclimate.backends.flower.checks import checked_fields

    name = chance.choice(("round", "failed", "clients", "left", "lacks", "model", "data", "odd"))
    fields = {"round": round, "failed": {}, name: json_value(chance)}
    try:
        return checked_fields(json.loads(json.dumps(fields)))
    except ValueError:
        return None


def of_a_test(chance: random.Random) -> Parcel:
    """The metrics of a client's test, changed."""
    honest = score(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), torch.tensor(2.0))
    new = chance.choice(FLAT)(tree.flatten(honest), chance)
    return Parcel(tree.nbytes(new), lambda: nested(new))


NAMES = ("up.0", "up.99", "up.-1", "up.", "up.3.3", "up.\u00b2", "3", "metrics.3", "up." + "9" * 400, "up.03")


def answer(up: Tree, round: int, chance: random.Random, client: int = LIAR) -> tuple[str, NodeAnswer]:
    """What a liar sends, and a word for it."""
    node, good, name = FIRST + client, {"round": round, "failed": {}}, f"up.{client}"
    draw = chance.random()
    if draw < (0.80 if FLOWER else 0.88) or not tree.leaves(up):
        flat = tree.flatten(up) if isinstance(up, dict) else {}
        if not flat:
            return "empty", NodeAnswer(node, {name: Parcel(0, dict)}, good)
        change = chance.choice(FLAT)
        new = change(flat, chance)
        return change.__name__, NodeAnswer(node, {name: Parcel(tree.nbytes(new), lambda: nested(new))}, good)
    if draw < 0.88:
        return "bytes", NodeAnswer(node, {name: as_record(tree.flatten(up), chance)}, good)
    if draw < 0.92:
        odd = fields_of(chance, round)
        if odd is None:
            return "fields", NodeAnswer(node, {}, {}, "fields of another form")
        return "fields", NodeAnswer(node, {name: parcel(up)}, odd)
    if draw < 0.96:
        return "name", NodeAnswer(node, {chance.choice(NAMES): parcel(up), name: parcel(up)}, good)
    if draw < 0.98:
        stale = chance.choice((round - 1, round + 1, 10**9, 0))
        return "stale", NodeAnswer(node, {name: parcel(up)}, {**good, "round": stale if stale != round else 10**6})
    count = chance.choice((5, 50, 500))
    return "flood", NodeAnswer(
        node, {**{f"up.{100 + i}": Parcel(0, dict) for i in range(count)}, name: parcel(up)}, good
    )
