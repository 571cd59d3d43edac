"""Values that processes of one machine hand to each other: a small pickle, and one shared-memory file for all tensors.

The file has no name: it is passed as an open descriptor and is gone when the last process has dropped it, a crash
included. Readers map it copy on write, so nothing is copied until it is used and nobody's mistake reaches the others.
Nothing here touches disk or network.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import socket
import struct
import tempfile
import types
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

_ALIGN = 64  # bytes: a cache line, and enough for every vector instruction
_HEAD = struct.Struct(">QQ")
_MOST_PARTS = 64

Location: TypeAlias = tuple[int, torch.dtype, tuple[int, ...]]
"""Where a tensor lies in memory (in bytes from its start), its type and its shape."""
Memory: TypeAlias = "mmap.mmap | np.ndarray[Any, Any]"
"""Bytes that tensors may be views of."""


class Unsendable(ValueError):
    """A value that another process could not read. The message says which object it is, and what to do."""

    def __init__(self, reason: object) -> None:
        super().__init__(
            f"this cannot be sent to worker processes: {reason}; define it at the top level of a module that can be "
            "imported, or use the backend Serial or Vmap"
        )


class Sealed:
    """A value in the form in which it is sent: a small pickle, and a file of shared memory for its tensors.

    It can be sent any number of times; `open` gives the value back, here or in another process.
    """

    def __init__(self, body: bytes, size: int, file: int | None) -> None:
        self.body, self.size, self.file = body, size, file
        if file is not None:
            weakref.finalize(self, os.close, file)

    def open(self, known: Sequence[Tensor] = ()) -> Any:
        """The value; its tensors lie in the shared file. `known` are the tensors that `seal` left out."""
        memory = None if self.file is None else mmap.mmap(self.file, self.size, access=mmap.ACCESS_COPY)
        return unpack(self.body, memory, known)


def seal(value: Any, known: Sequence[Tensor] = ()) -> Sealed:
    """Copy a value's tensors into a shared file. Those that are in `known` are not copied: the receiver has them."""
    packed = pack(value, known)
    if not packed.size:
        return Sealed(packed.body, 0, None)
    sealed = Sealed(packed.body, packed.size, _shared_file(packed.size))
    assert sealed.file is not None
    packed.fill(mmap.mmap(sealed.file, sealed.size))
    return sealed


class Packed(NamedTuple):
    """A value taken apart: a small pickle, and the tensors that belong into `size` bytes of memory beside it."""

    body: bytes
    size: int
    tensors: list[tuple[Tensor, Location]]

    def fill(self, memory: Memory) -> None:
        """Copy the tensors to their places."""
        for tensor, place in self.tensors:
            _view(memory, *place).copy_(tensor.detach())


def pack(value: Any, known: Sequence[Tensor] = ()) -> Packed:
    """Take a value apart, without the tensors that are `known` to the receiver; `Unsendable` where pickle refuses."""
    body = io.BytesIO()
    pickler = _Pickler(body, known)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as reason:
        raise Unsendable(reason) from reason
    return Packed(body.getvalue(), pickler.size, list(pickler.found.values()))


def unpack(body: bytes, memory: Memory | None, known: Sequence[Tensor] = ()) -> Any:
    """The value that `pack` took apart; its tensors are views of the memory."""
    return _Unpickler(body, memory, known).load()


def _shared_file(size: int) -> int:
    if hasattr(os, "memfd_create"):  # not below /dev/shm, which containers often limit to 64 MB
        file = os.memfd_create("acclimate")
    else:
        with tempfile.TemporaryFile() as f:
            file = os.dup(f.fileno())
    try:
        os.truncate(file, size)
        if hasattr(os, "posix_fallocate"):  # an error now, where memory is short, and not a bus error later
            os.posix_fallocate(file, 0, size)
    except OSError as reason:
        os.close(file)
        raise MemoryError(f"no shared memory for {size:,} bytes: {reason.strerror}") from reason
    return file


def _view(memory: Memory | None, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    count = math.prod(shape)
    if memory is None or count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)


class _Pickler(pickle.Pickler):
    """Leaves plain tensors out and writes where they will lie."""

    def __init__(self, body: io.BytesIO, known: Sequence[Tensor]) -> None:
        super().__init__(body, protocol=pickle.HIGHEST_PROTOCOL)
        self._known = {id(t): i for i, t in enumerate(known)}
        self.found: dict[int, tuple[Tensor, Location]] = {}
        self.size = 0

    def persistent_id(self, value: Any) -> Any:
        """The entry that stands for a tensor; None for everything else, which is pickled as usual."""
        if type(value) is Tensor and value.layout == torch.strided:
            return self._tensor(value)
        # A worker never imports the script that was started: it would run it once more.
        if isinstance(value, type | types.FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in the script or notebook itself")
        return None

    def _tensor(self, value: Tensor) -> tuple[Any, ...]:
        if id(value) in self._known:
            return ("known", self._known[id(value)])
        if value.device.type == "meta":
            return ("meta", value.dtype, tuple(value.shape))
        if id(value) not in self.found:
            self.found[id(value)] = (value, (self.size, value.dtype, tuple(value.shape)))
            self.size += -(-value.numel() * value.element_size() // _ALIGN) * _ALIGN
        return ("shared", *self.found[id(value)][1])


class _Unpickler(pickle.Unpickler):
    """Finds the tensors where the pickler wrote that they lie."""

    def __init__(self, body: bytes, memory: Memory | None, known: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(body))
        self._memory, self._known = memory, known

    def persistent_load(self, pid: Any) -> Tensor:
        """The tensor that `persistent_id` stood for."""
        kind, *place = pid
        if kind == "known":
            return self._known[place[0]]
        if kind == "meta":
            return torch.empty(place[1], dtype=place[0], device="meta")
        return _view(self._memory, *place)


class Channel:
    """One end of a pair of sockets through which sealed values go."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """The number of the open file, which selectors need."""
        return self._end.fileno()

    def send(self, *parts: Sealed) -> None:
        """Send values: their descriptors with the first byte, then their lengths and pickles."""
        count, files = bytes([len(parts)]), [p.file for p in parts if p.file is not None]
        if files:
            socket.send_fds(self._end, [count], files)
        else:
            self._end.sendall(count)
        self._end.sendall(b"".join(_HEAD.pack(len(p.body), p.size) for p in parts))
        for p in parts:
            self._end.sendall(p.body)

    def receive(self) -> tuple[Sealed, ...]:
        """The values of one `send`; EOFError where the other side is gone."""
        count, files, _, _ = socket.recv_fds(self._end, 1, _MOST_PARTS, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        if not count:
            raise EOFError
        heads = [_HEAD.unpack(self._exactly(_HEAD.size)) for _ in range(count[0])]
        left = iter(files)
        return tuple(Sealed(self._exactly(length), size, next(left) if size else None) for length, size in heads)

    def _exactly(self, count: int) -> bytes:
        out = bytearray()
        while len(out) < count:
            more = self._end.recv(min(count - len(out), 1 << 20))
            if not more:
                raise EOFError
            out += more
        return bytes(out)

    def close(self) -> None:
        """Close the connection."""
        self._end.close()
