"""The log of a server on the disk: a folder of segments, files named by the place of their first byte in the log.

Records are appended to the last segment. A new one is begun when all before it is on the disk, and an empty one never
counted: whatever a crash leaves, the segments that hold something are one log without a gap.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from .. import store
from .log import NOTHING, Record, Torn, damaged, packed
from .log import read as read_file

LOCK, DIGITS, STATES = "lock", 16, ".safetensors"


class Segment(NamedTuple):
    """A file of the log."""

    start: int
    path: Path

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size

    @property
    def states(self) -> Path:
        """Where all states at its first byte are, where older segments may be deleted."""
        return self.path.with_suffix(STATES)


def segments(folder: Path) -> list[Segment]:
    """The segments of a log, in order."""
    names = (p for p in folder.iterdir() if p.name.isdecimal() and len(p.name) == DIGITS) if folder.is_dir() else ()
    return [Segment(int(p.name), p) for p in sorted(names)]


def at(folder: Path, start: int) -> Segment:
    """The segment that begins at a byte."""
    return Segment(start, folder / f"{start:0{DIGITS}}")


def read(folder: Path, start: int | None = None, before: bytes | None = None) -> Iterator[Record]:
    """The records of a log from a byte on (default: the first that is kept); `Torn` where it ends within one."""
    found = segments(folder)
    every = [s for s in found if s.size]
    first = (every or found or [Segment(0, folder)])[0].start
    position = first if start is None else start
    if position < first or (position > first and not every):
        raise store.RunError(f"{folder} begins at byte {first}, but byte {position} is needed; bring its files back")
    for segment, after in zip_longest(every, every[1:]):
        if after is not None and after.start <= position:
            continue
        try:
            for record in read_file(segment.path, segment.start, position, before):
                yield record
                position, before = record.end, record.digest
        except Torn as torn:
            if after is not None:
                raise damaged(segment.path, torn.position) from None
            raise
        if after is not None and position != after.start:
            raise damaged(after.path, after.start)


def sync(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk, without which a new file would be lost."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class Log:
    """A log that is open to be written, by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self.lock)
            raise store.RunError(f"{folder} is in use by another server; stop it, or choose another --folder") from None
        found = segments(folder)
        while len(found) > 1 and not found[-1].size:
            found.pop().path.unlink()
        self.segment = found[-1] if found else at(folder, 0)
        self.file = _opened(self.segment)
        sync(folder)
        sync(folder.parent)
        self.end = self.segment.start + self.segment.size
        self.digest = NOTHING
        self.broken = False
        """Whether a write failed and has not been taken back yet: nothing can be appended until then."""

    @property
    def size(self) -> int:
        """Bytes of the last segment."""
        return self.end - self.segment.start

    def records(self, start: int = 0, before: bytes | None = NOTHING, written: int = 0) -> Iterator[Record]:
        """The records from a byte on; a torn last one is cut off. To append, all must have been read.

        `before` is the digest of the record that ends at `start`, where that is known. The first `written` bytes of the
        log were on the disk once: an error where they are not there.
        """
        try:
            for record in read(self.folder, start, before):
                self.digest = record.digest
                yield record
        except Torn as torn:
            self._check(torn.position, written)
            self._cut(torn.position)
        self._check(self.end, written)

    def _check(self, end: int, written: int) -> None:
        if end < written:
            raise store.RunError(
                f"{self.folder} ends at byte {end}, but {written} bytes were written: it is damaged, or was copied "
                "while it was served; copy it again from a server that is stopped"
            )

    def _cut(self, position: int) -> None:
        """Take back what is behind a byte, on the disk too."""
        os.ftruncate(self.file, position - self.segment.start)
        os.fsync(self.file)
        self.end = position

    def append(self, head: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> int:
        """Write a record and wait until it is on the disk; its position. On an error the log is as before."""
        whole, digest = packed(head, tensors or {}, self.digest)
        if not os.fstat(self.file).st_nlink:  # what is written would be gone when the process ends
            self.broken = True
            raise store.RunError(
                f"{self.segment.path} was deleted while it was served; nothing has changed; start again"
            )
        try:
            if self.broken:
                self._cut(self.end)
            self.broken = True  # what a failed write or flush leaves is unknown until it is cut off
            left = memoryview(whole)
            while left:
                left = left[os.write(self.file, left) :]
            os.fsync(self.file)
            self.broken = False
        except OSError as e:
            self._heal()
            raise store.RunError(f"cannot write {self.segment.path}: {e.strerror or e}; nothing has changed") from e
        position = self.end
        self.end, self.digest = position + len(whole), digest
        return position

    def _heal(self) -> None:
        try:
            self._cut(self.end)
            self.broken = False
        except OSError:  # the next record tries again
            self.broken = True

    def rotate(self) -> None:
        """Begin a new segment; on an error the log goes on in the old one."""
        fresh = at(self.folder, self.end)
        try:
            file = _opened(fresh)
            try:
                sync(self.folder)
            except BaseException:
                os.close(file)
                raise
        except OSError as e:
            raise store.RunError(f"cannot begin {fresh.path}: {e.strerror or e}; the log goes on as before") from e
        os.close(self.file)
        self.file, self.segment = file, fresh

    def prune(self, keep: int, since: int) -> None:
        """Delete the oldest segments but `keep`, up to the byte `since`, where states to begin from are left."""
        found = segments(self.folder)
        first = next((i for i in range(len(found) - keep, 0, -1) if self._begins(found[i], since)), 0)
        for old in found[:first]:
            old.path.unlink()
            sync(self.folder)
        for states in set(self.folder.glob(f"*{STATES}")) - {s.states for s in found[first:]}:
            states.unlink()

    def _begins(self, segment: Segment, since: int) -> bool:
        return segment.start <= since and segment.states.exists()

    def close(self) -> None:
        """Let another process write."""
        os.close(self.file)
        os.close(self.lock)


def _opened(segment: Segment) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    return os.open(segment.path, flags, 0o600)
