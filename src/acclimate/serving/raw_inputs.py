"""Raw inputs of a request: a tensor per column of a table, or one tensor of texts.

Columns and texts have shape [N] or [N, 1]. Of a table's cells, null and what a file may say instead (an empty text, NA)
are missing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..data.raw import Raw, RawRows, RawTexts, RawWindows

NUMBERS = {
    f"{word}{8 * size}": f"<{kind}{size}" for word, kind in (("UINT", "u"), ("INT", "i")) for size in (1, 2, 4, 8)
}
NUMBERS |= {"FP32": "<f4", "FP64": "<f8", "BOOL": "?"}
"""Types of a column of numbers, by their name in the protocol."""
OTHERS, LONGEST = 1000, 200
"""Columns that a request may have besides those that the model takes, and how long their names may be: a refusal looks
for the one that was meant, and all clients wait while it does."""


def given(inputs: Any, raw: Raw | None) -> bool:
    """Whether a request gives raw inputs: columns by their names, or texts."""
    if raw is None or not isinstance(inputs, list) or not all(isinstance(one, dict) for one in inputs):
        return False
    if isinstance(raw, RawTexts):
        return any(one.get("datatype") == "BYTES" for one in inputs)
    return any(isinstance(one.get("name"), str) and one["name"] in raw.columns for one in inputs)


def read(
    inputs: Sequence[Mapping[str, Any]], rest: bytes, raw: Raw, most: int, unknown: dict[str, str] | None = None
) -> np.ndarray:
    """The samples of a request that gives raw inputs, or a `ValueError` that names the field; `unknown` as in
    `RawRows.of`."""
    found: dict[str, list[Any]] = {}
    takes = {raw.column: "text"} if isinstance(raw, RawTexts) else raw.columns
    if len(inputs) > len(takes) + OTHERS:
        raise ValueError(
            f"inputs: {len(inputs)} tensors must be at most {len(takes) + OTHERS}; the model takes {len(takes)}"
        )
    most *= raw.window if isinstance(raw, RawWindows) else 1  # its rows are readings, of which a sample has many
    for i, one in enumerate(inputs):
        name = one.get("name")
        if not isinstance(name, str) or name in found or (len(name) > LONGEST and name not in takes):
            must = f"must be a name, and no other input's, of at most {LONGEST} letters"
            raise ValueError(f"inputs[{i}].name: {str(name)[:40]!r} {must}")
        found[name], rest = _cells(one, rest, most, f"inputs[{i}]")
    if rest:
        raise ValueError(f"body: {len(rest)} bytes behind the last tensor")
    if isinstance(raw, RawRows):
        return raw.of(found, "inputs", unknown)
    if isinstance(raw, RawWindows):
        return raw.of(found, "inputs")
    if len(found) > 1:
        raise ValueError(f"inputs: {len(found)} tensors must be one: the texts")
    return raw.of(next(iter(found.values())), "inputs[0].data")


def _cells(one: Mapping[str, Any], rest: bytes, most: int, where: str) -> tuple[list[Any], bytes]:
    """The values of one tensor, and the bytes that follow it."""
    datatype, shape, about = one.get("datatype"), one.get("shape"), one.get("parameters")
    if not isinstance(datatype, str) or datatype not in (*NUMBERS, "BYTES"):
        raise ValueError(f"{where}.datatype: {str(datatype)[:40]!r} must be one of BYTES, {', '.join(NUMBERS)}")
    whole = isinstance(shape, list) and all(isinstance(d, int) and not isinstance(d, bool) for d in shape)
    if not whole or not shape or not 1 <= shape[0] <= most or shape[1:] not in ([], [1]):
        raise ValueError(f"{where}.shape: {str(shape)[:40]} must be [N] or [N, 1] with N from 1 to {most}")
    if isinstance(about, dict) and "binary_data_size" in about:
        size = about["binary_data_size"]
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(rest):
            raise ValueError(f"{where}.parameters.binary_data_size: {str(size)[:40]} must be from 0 to {len(rest)}")
        cells, rest = _binary(rest[:size], datatype, shape[0], where), rest[size:]
    else:
        cells = _listed(one.get("data"), datatype, where)
    if len(cells) != math.prod(shape):
        raise ValueError(f"{where}.data: {len(cells)} values must be {math.prod(shape)}")
    return cells, rest


def _listed(data: Any, datatype: str, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{where}.data: a {type(data).__name__} must be a list")
    cells = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in data]
    kinds = str if datatype == "BYTES" else (int, float)
    if odd := [v for v in cells if v is not None and not isinstance(v, kinds)]:
        what = "texts" if datatype == "BYTES" else "numbers"
        raise ValueError(f"{where}.data: {str(odd[0])[:40]!r} must be one of {what}, or null where it is missing")
    return cells


def _binary(raw: bytes, datatype: str, count: int, where: str) -> list[Any]:
    if datatype != "BYTES":
        kind = np.dtype(NUMBERS[datatype])
        if len(raw) != count * kind.itemsize:
            raise ValueError(f"{where}: {len(raw)} bytes must be {count * kind.itemsize}")
        return np.frombuffer(raw, kind).tolist()
    cells, at = list[str](), 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at) if at + 4 <= len(raw) else (len(raw),)
        if at + 4 + size > len(raw):
            raise ValueError(f"{where}: the length of text {len(cells) + 1} goes beyond its bytes")
        try:
            cells.append(raw[at + 4 : at + 4 + size].decode())
        except UnicodeDecodeError:
            raise ValueError(f"{where}: text {len(cells) + 1} is not UTF-8") from None
        at += 4 + size
    return cells


def described(raw: Raw | None) -> list[dict[str, Any]]:
    """The raw inputs that a model takes, in the form of a model's metadata."""
    if isinstance(raw, RawTexts):
        return [{"name": raw.column, "datatype": "BYTES", "shape": [-1]}]
    kinds = raw.columns if raw is not None else {}
    return [{"name": n, "datatype": "FP64" if k == "number" else "BYTES", "shape": [-1]} for n, k in kinds.items()]
