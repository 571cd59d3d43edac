"""Parsed data sets on disk: read once, then memory-mapped, under a name made of what was read and how. Never pickled.

An entry is a folder with `x.npy`, `y.npy`, a few smaller arrays, and `meta.json`, which says what they must look like.
Its name hashes the record's class, its reading options, and name, size and content of every source file; so a changed
file, another `size=` or a repaired download can never meet a stale entry, and equal files in two places share one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import opening
from ..ops.places import CACHE, cache_folder

SCHEMA = "acclimate.cache/1"
"""Part of every key: change it whenever a reader or the layout of an entry changes."""

_SETTLED_NS = 2_000_000_000  # a file touched this recently may change again within its time stamp's resolution
_LEFT_OVER_S = 24 * 3600


@dataclass(frozen=True)
class ImageStream:
    """Images that are made batch by batch, so that a set may be larger than memory. `shape` is that of all of them."""

    shape: tuple[int, ...]
    chunks: Iterable[np.ndarray]


@dataclass(frozen=True)
class Parsed:
    """A data set as read from its files. `test` marks the rows of the official test set."""

    x: np.ndarray | ImageStream
    y: np.ndarray
    classes: tuple[str, ...]
    domain: np.ndarray
    domains: tuple[str, ...]
    test: np.ndarray
    users: np.ndarray | None = None
    user_names: tuple[str, ...] = ()
    features: tuple[tuple[str, str, str], ...] = ()
    """What the columns of x stand for, where they come from a table (`world.Feature`)."""
    notes: tuple[str, ...] = ()
    """What was done when it was read, in sentences."""

    def __post_init__(self) -> None:
        n = len(self.y)
        if n == 0:
            raise ValueError("a data set has no examples: its files are there, but hold none")
        rows = {"x": self.x.shape[0], "domain": len(self.domain), "test": len(self.test)}
        if self.users is not None:
            rows["users"] = len(self.users)
        for name, count in rows.items():
            if count != n:
                raise ValueError(f"a data set has {n} labels, but {count} rows of {name}")


def fetch(
    name: str, options: Mapping[str, Any], base: Path, files: Sequence[Path], read: Callable[[], Parsed]
) -> Parsed:
    """The arrays of a data set, memory-mapped. `read` is called only if no sound entry is there for these files.

    `name` is that of the record's class, `module:Class`.
    """
    folder, known = cache_folder(), content(base, files)
    key = hashlib.sha256(json.dumps([SCHEMA, name, dict(options), known], sort_keys=True).encode()).hexdigest()
    entry = folder / "sets" / f"{name.rpartition(':')[2]}-{key[:32]}"
    if (found := _open(entry)) is not None:
        return found
    with _lock(entry):
        # Another process may have built it while this one waited.
        if (found := _open(entry)) is not None:
            return found
        return _publish(read(), entry, lambda: content(base, files) == known)


def content(base: Path, files: Sequence[Path]) -> str:
    """SHA-256 over names (relative to `base`), sizes and contents of files.

    Hashing gigabytes on every start would cost more than reading the cache saves, so the result is remembered under
    the files' paths, sizes and times: any of them changed means hashing again.
    """
    stamp, sizes, newest = hashlib.sha256(os.path.abspath(base).encode()), [], 0
    for file in files:
        stat = os.stat(file)
        # The time of the last change of the inode too: unpacking an archive again restores the other one.
        newest = max(newest, stat.st_mtime_ns, stat.st_ctime_ns)
        sizes.append(stat.st_size)
        stamp.update(f"\0{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ctime_ns}".encode())
    note = cache_folder() / "stamps" / stamp.hexdigest()
    with contextlib.suppress(OSError, ValueError):
        known = note.read_text()
        if len(known) == 64 and int(known, 16) >= 0:
            return known
    out = hashlib.sha256()
    for file, size in zip(files, sizes, strict=True):
        relative = os.path.relpath(file, base).replace(os.sep, "/")
        with opening.opened(Path(file)) as f:
            out.update(f"{relative}\0{size}\0{hashlib.file_digest(f, 'sha256').hexdigest()}\n".encode())
    if newest + _SETTLED_NS < time.time_ns():
        with contextlib.suppress(OSError):  # a stamp only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            fresh = note.with_name(f"tmp-{secrets.token_hex(8)}")
            fresh.write_text(out.hexdigest())
            fresh.replace(note)
    return out.hexdigest()


def _open(entry: Path) -> Parsed | None:
    """An entry whose files are what meta.json says; None if it is missing or damaged."""
    try:
        meta = json.loads((entry / "meta.json").read_text(encoding="utf-8"))
        arrays: dict[str, Any] = {}
        for name, want in meta["arrays"].items():
            file = entry / f"{name}.npy"
            if file.stat().st_size != want["bytes"]:
                return None
            array = _map(file) if name == "x" else np.load(file, allow_pickle=False)
            if list(array.shape) != want["shape"] or array.dtype.str != want["dtype"]:
                return None
            arrays[name] = array
        arrays |= {k: tuple(meta[k]) for k in ("classes", "domains", "user_names")}
        arrays["features"] = tuple((c, kind, word) for c, kind, word in meta.get("features", ()))
        arrays["notes"] = tuple(str(note) for note in meta.get("notes", ()))
        return Parsed(**arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def _map(file: Path) -> np.ndarray:
    try:
        # Copy on write: the array is writable, as torch wants it, and the file still cannot be harmed.
        return np.load(file, mmap_mode="c", allow_pickle=False)
    except OSError as e:
        if e.errno != errno.ENOMEM:
            raise
        # Linux may refuse private mappings larger than memory; a shared read-only one is always possible.
        return np.load(file, mmap_mode="r", allow_pickle=False)


def _publish(parsed: Parsed, entry: Path, unchanged: Callable[[], bool]) -> Parsed:
    """Write an entry beside its place, then move it there in one step: others see all of it or nothing.

    Files that are no longer what the entry's name says, once all is read, are refused: it would hold others for ever.
    """
    fresh = entry.with_name(f"tmp-{secrets.token_hex(8)}")
    try:
        _sweep(entry.parent)
        fresh.mkdir(parents=True)
        _write(parsed, fresh)
        if not unchanged():
            raise ValueError(
                "the files of the data set changed while they were read; start again when they are complete"
            )
        for _ in range(8):
            try:
                fresh.rename(entry)
            except OSError:
                if (found := _open(entry)) is not None:
                    return found  # another process was faster
                damaged = entry.with_name(f"tmp-{secrets.token_hex(8)}")
                with contextlib.suppress(OSError):
                    entry.rename(damaged)
                    shutil.rmtree(damaged, ignore_errors=True)
            else:
                break
    except OSError as e:
        raise OSError(
            e.errno, f"cannot write the cache folder {cache_folder()} ({e.strerror}); set {CACHE} to a folder with room"
        ) from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if (found := _open(entry)) is None:
        raise OSError(f"the cache entry {entry} cannot be read back; delete it, or set {CACHE} to another folder")
    return found


def _write(parsed: Parsed, folder: Path) -> None:
    arrays = {
        "y": parsed.y.astype(np.int64),
        "domain": parsed.domain.astype(np.int64),
        "test": parsed.test.astype(bool),
    }
    if parsed.users is not None:
        arrays["users"] = parsed.users.astype(np.int64)
    described = {"x": _write_x(parsed.x, folder / "x.npy")}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
        described[name] = _describe(folder / f"{name}.npy", array.shape, array.dtype)
    names = {"classes": parsed.classes, "domains": parsed.domains, "user_names": parsed.user_names}
    meta: dict[str, Any] = {"schema": SCHEMA, "arrays": described, **{k: list(v) for k, v in names.items()}}
    meta |= {"features": [list(f) for f in parsed.features]} if parsed.features else {}
    meta |= {"notes": list(parsed.notes)} if parsed.notes else {}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _write_x(x: np.ndarray | ImageStream, file: Path) -> dict[str, Any]:
    chunks = (x[i : i + 4096] for i in range(0, len(x), 4096)) if isinstance(x, np.ndarray) else x.chunks
    stream, dtype = ImageStream(x.shape, chunks), x.dtype if isinstance(x, np.ndarray) else np.dtype(np.uint8)
    rows = 0
    with file.open("wb") as f:
        header = {"descr": dtype.str, "fortran_order": False, "shape": stream.shape}
        np.lib.format.write_array_header_1_0(f, header)
        for chunk in stream.chunks:
            if chunk.dtype != dtype or chunk.shape[1:] != stream.shape[1:]:
                raise ValueError(f"a reader gave {chunk.dtype}{chunk.shape}, but promised {dtype}{stream.shape}")
            rows += len(chunk)
            f.write(np.ascontiguousarray(chunk).data)
    if rows != stream.shape[0]:
        raise ValueError(f"a reader gave {rows} images, but promised {stream.shape[0]}")
    return _describe(file, stream.shape, dtype)


def _describe(file: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    size = file.stat().st_size
    assert size >= math.prod(shape) * dtype.itemsize
    return {"shape": list(shape), "dtype": dtype.str, "bytes": size}


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for old in folder.glob("tmp-*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _LEFT_OVER_S:
                shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _lock(entry: Path) -> Iterator[None]:
    """One builder at a time, where the system can lock; the rest wait and then open what it built.

    Only saves work: without the lock several build the same entry and the first to finish wins.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            file = entry.parents[1] / "locks" / entry.name
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(file.open("w"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
