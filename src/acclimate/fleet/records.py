"""Trees as Flower's records, and back: tensors by their flattened names, everything else as one line of JSON.

Nothing is pickled. What comes over the network is taken apart by hand; lengths are checked before memory is taken.
"""

from __future__ import annotations

import io
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from ..backends.flower.nodes import Parcel, nested
from ..backends.flower.protocol import KINDS, checked
from ..core import Tree, tree

WORDS = "words"


def skeleton(value: Any) -> Any:
    """The branches of a tree, with null for every tensor: what names cannot carry is empty branches."""
    return {k: skeleton(v) for k, v in value.items()} if isinstance(value, Mapping) else None


def dressed(bones: Any, flat: Mapping[str, Tensor], prefix: str = "") -> Any:
    """A tree from its skeleton and its tensors by name."""
    if isinstance(bones, Mapping):
        return {k: dressed(v, flat, f"{prefix}{k}/") for k, v in bones.items()}
    name = prefix.removesuffix("/")
    if name not in flat:
        raise ValueError(f"tensor '{name}' is missing")
    return flat[name]


def pack(trees: Mapping[str, Tree], words: Mapping[str, Any]) -> RecordDict:
    """A request or an answer as Flower's records."""
    out = RecordDict()
    for name, value in trees.items():
        flat = {k: v.detach().cpu().contiguous() for k, v in tree.flatten(value).items()}
        out[name] = ArrayRecord(OrderedDict(flat))
    told = {"words": dict(words), "bones": {name: skeleton(value) for name, value in trees.items()}}
    out[WORDS] = ConfigRecord({"json": json.dumps(told)})
    return out


def unpack(content: RecordDict) -> tuple[dict[str, Tree], dict[str, Any]]:
    """A request at a node. The server is trusted with its form: what does not fit is an error."""
    told = _told(content)
    trees = {name: dressed(bones, flat_of(content.array_records[name])) for name, bones in told["bones"].items()}
    return trees, told["words"]


def parcels(content: RecordDict) -> tuple[dict[str, Parcel], Mapping[str, Any]]:
    """An answer at the server: words of the right form, and tensors that are not opened yet.

    Nodes are not trusted with the form of what they send: ValueError where the words are others.
    """
    words = _told(content).get("words")
    if not isinstance(words, dict):
        raise ValueError("the answer's words are not a JSON object")
    return {name: _parcel(record) for name, record in content.array_records.items()}, checked(words)


def _parcel(record: ArrayRecord) -> Parcel:
    return Parcel(nbytes(record), lambda: nested(flat_of(record)))


def nbytes(record: ArrayRecord) -> int:
    """Bytes of a record's arrays, with their names and headers."""
    return sum(len(name) + len(array.data) for name, array in record.items())


def size(content: RecordDict) -> int:
    """Bytes of all records of a message."""
    words = sum(len(str(v)) for r in content.config_records.values() for v in r.values())
    return words + sum(nbytes(r) for r in content.array_records.values())


def _told(content: RecordDict) -> dict[str, Any]:
    try:
        told = json.loads(str(content.config_records[WORDS]["json"]))
    except (KeyError, ValueError, RecursionError) as e:  # brackets without end, and numbers without
        raise ValueError(f"the message has no readable words: {e}") from e
    if not isinstance(told, dict):
        raise ValueError("the message's words are not a JSON object")
    return told


def flat_of(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a record by name; ValueError where one is not what it says."""
    return {name: _tensor(name, array) for name, array in record.items()}


def _tensor(name: str, array: Array) -> Tensor:
    """An array in numpy's own format, without numpy's loader, which would trust the shape that is written in it."""
    stream = io.BytesIO(array.data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("unknown version")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(stream)
    except Exception as e:  # numpy's reader of headers lets errors of Python's own tokenizer through
        raise ValueError(f"tensor '{name}' cannot be read: {e}") from e
    rest = memoryview(array.data)[stream.tell() :]
    if fortran or kind.name not in KINDS or len(rest) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"tensor '{name}' says {kind} {list(shape)}, which its {len(rest)} bytes are not")
    return torch.from_numpy(np.frombuffer(rest, dtype=kind).reshape(shape).copy())
