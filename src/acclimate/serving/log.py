"""The form of a server's log: records, each a JSON head and raw tensors, chained by SHA-256.

A record names the digest of the one before, so that nothing can be taken out, put in or changed unseen. A record that
was cut short by a crash is the last one; it is cut off when the log is opened to go on (see `segments`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import store

SCHEMA = "acclimate.log/2"
HEADER = struct.Struct("<4sIQ32s32s")
"""A mark, the lengths of head and tensors, the digest of the record before, and this one's."""
MARK, NOTHING = b"aclg", bytes(32)
MOST = 1 << 32
"""Bytes of a record; a length beyond is damage."""


class Record(NamedTuple):
    """One record as it was read."""

    position: int
    end: int
    digest: bytes
    head: dict[str, Any]
    tensors: dict[str, Tensor]


class Torn(Exception):
    """The bytes from a position to the end of the file are no whole record."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def raw(tensor: Tensor) -> bytes:
    """A tensor's numbers as they lie in memory."""
    found: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return found


def packed(head: Mapping[str, Any], tensors: Mapping[str, Tensor], before: bytes) -> tuple[bytes, bytes]:
    """A record's bytes and its digest."""
    about = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
    text = store.json_text({**head, "tensors": about}, separators=(",", ":")).encode()
    body = b"".join(raw(t) for t in tensors.values())
    digest = hashlib.sha256(before + struct.pack("<IQ", len(text), len(body)) + text + body).digest()
    return HEADER.pack(MARK, len(text), len(body), before, digest) + text + body, digest


def read(path: Path, first: int = 0, start: int = 0, before: bytes | None = None) -> Iterator[Record]:
    """The records of a file whose first byte is byte `first` of the log, from byte `start` of the log on.

    `Torn` where the file ends within one; damage elsewhere is a `RunError`. `before` is the digest of the record that
    ends at `start`, where that is known.
    """
    with path.open("rb") as f:
        size, position = first + os.fstat(f.fileno()).st_size, start
        if start > size:
            raise store.RunError(f"{path} is damaged: it ends at byte {size}, before byte {start}, which was written")
        while position < size:
            f.seek(position - first)
            top = f.read(HEADER.size)
            if len(top) < HEADER.size:
                raise Torn(position)
            mark, heads, bodies, previous, digest = HEADER.unpack(top)
            end = position + HEADER.size + heads + bodies
            if mark != MARK or heads + bodies > MOST:
                if not any(top) and not any(f.read()):  # a disk that had the length of the file, but not its content
                    raise Torn(position)
                raise damaged(path, position)
            if end > size:
                raise damaged(path, position) if digest in f.read() else Torn(position)  # the next one names it
            text, body = f.read(heads), f.read(bodies)
            found = hashlib.sha256(previous + struct.pack("<IQ", heads, bodies) + text + body).digest()
            if found != digest:
                raise Torn(position) if end == size else damaged(path, position)
            if before is not None and previous != before:
                raise damaged(path, position)
            head = json.loads(text)
            yield Record(position, end, digest, head, _tensors(head.pop("tensors"), body))
            position, before = end, digest


def damaged(path: Path, position: int) -> store.RunError:
    """What to say of bytes that nobody wrote."""
    return store.RunError(f"{path} is damaged at byte {position}: a record there is not what was written")


def _tensors(about: list[Any], body: bytes) -> dict[str, Tensor]:
    out, place = {}, 0
    for name, dtype, shape in about:
        empty = torch.empty(shape, dtype=getattr(torch, dtype))
        count = empty.numel() * empty.element_size()
        if count:
            empty = torch.frombuffer(bytearray(body[place : place + count]), dtype=empty.dtype).reshape(shape)
        out[name] = empty
        place += count
    return out
