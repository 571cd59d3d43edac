"""Requests and answers as Flower's records, and back: tensors by their flattened names, fields as one line of JSON.

Nothing is pickled. Arrays from the network are read without numpy's loader: lengths are checked before memory
is taken.
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

from ..backends.flower.checks import DTYPES, checked_fields
from ..backends.flower.protocol import Parcel, Version, branches, nested, rebuilt
from ..core import Tree, tree

FIELDS, VERSION = "fields", "acclimate"
"""The names of the records of fields and of the sender's version. The latter has the same form in all versions."""
LONGEST_FIELDS = 2**24
"""The most characters that the fields of an answer may have, written as JSON."""
LONGEST_VERSION = 64
"""The most characters that a version may have."""


def pack(trees: Mapping[str, Tree], fields: Mapping[str, Any]) -> RecordDict:
    """A request or an answer as Flower's records, with the version of this acclimate."""
    out = RecordDict()
    for name, value in trees.items():
        flat = {k: v.detach().cpu().contiguous() for k, v in tree.flatten(value).items()}
        out[name] = ArrayRecord(OrderedDict(flat))
    body = {"fields": dict(fields), "branches": {name: branches(value) for name, value in trees.items()}}
    out[FIELDS] = ConfigRecord({"json": json.dumps(body)})
    out[VERSION] = ConfigRecord(Version()._asdict())
    return out


def version_of(content: RecordDict) -> Version | None:
    """The version of the sender of a message; None where the message does not say it."""
    record: Mapping[str, Any] = content.config_records.get(VERSION, {})
    acclimate, wire = record.get("acclimate"), record.get("wire")
    if not isinstance(acclimate, str) or len(acclimate) > LONGEST_VERSION or not isinstance(wire, int):
        return None
    return Version(acclimate, wire)


def unpack(content: RecordDict) -> tuple[dict[str, Tree], dict[str, Any]]:
    """A request at a node. The server is trusted with its form: what does not fit is an error."""
    body = _body(content)
    trees = {name: rebuilt(shape, flat_of(content.array_records[name])) for name, shape in body["branches"].items()}
    return trees, body["fields"]


def parcels(content: RecordDict) -> tuple[dict[str, Parcel], Mapping[str, Any]]:
    """An answer at the server: tensors that are not read yet, and fields of the right form.

    Nodes are not trusted with the form of what they send: ValueError where the fields have another one.
    """
    fields = _body(content).get("fields")
    if not isinstance(fields, dict):
        raise ValueError("the answer's fields are not a JSON object")
    return {name: _parcel(record) for name, record in content.array_records.items()}, checked_fields(fields)


def _parcel(record: ArrayRecord) -> Parcel:
    return Parcel(nbytes(record), lambda: nested(flat_of(record)))


def nbytes(record: ArrayRecord) -> int:
    """Bytes of a record's arrays, with their names and headers."""
    return sum(len(name) + len(array.data) for name, array in record.items())


def size(content: RecordDict) -> int:
    """Bytes of all records of a message."""
    configs = sum(len(str(v)) for r in content.config_records.values() for v in r.values())
    return configs + sum(nbytes(r) for r in content.array_records.values())


def _body(content: RecordDict) -> dict[str, Any]:
    try:
        text = str(content.config_records[FIELDS]["json"])
        if len(text) > LONGEST_FIELDS:
            raise ValueError(f"they have {len(text):,} characters")
        body = json.loads(text)
    except (KeyError, ValueError, RecursionError) as e:  # endless brackets, and endless numbers
        raise ValueError(f"the message has no readable fields: {e}") from e
    if not isinstance(body, dict):
        raise ValueError("the message's fields are not in a JSON object")
    return body


def flat_of(record: ArrayRecord) -> dict[str, Tensor]:
    """The tensors of a record by name; ValueError where the bytes of one are not what its header says."""
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
    if not all(type(side) is int for side in shape):  # numpy lets True pass
        raise ValueError(f"tensor '{name}' says the shape {list(shape)}")
    rest = memoryview(array.data)[stream.tell() :]
    if fortran or kind.name not in DTYPES or len(rest) != math.prod(shape) * kind.itemsize:
        raise ValueError(f"tensor '{name}' says {kind} {list(shape)}, which its {len(rest)} bytes are not")
    return torch.from_numpy(np.frombuffer(rest, dtype=kind).reshape(shape).copy())
