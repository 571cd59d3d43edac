"""Readers of the file formats that data sets come in. Each checks what it reads and names file, field and fix."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import opening

AGAIN = "it may be truncated or not what its name says; download it again"

UNPACKED = 16 << 30
"""How many bytes a packed file may hold: a few may unpack to any number."""
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def lazy(module: str, install: str, what: str) -> Any:
    """Import a package that only some data sets need; say how to install it where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        quoted = f"'{install}'" if "[" in install else install
        raise ImportError(f"{what} needs a package that is not installed: pip install {quoted}") from e


def plain(path: Path) -> bytes:
    """A file's bytes, unpacked if it ends in .gz or .bz2."""
    try:
        if path.suffix not in (".gz", ".bz2"):
            return opening.content(path)
        with opening.opened(path) as packed, gzip.open(packed) if path.suffix == ".gz" else bz2.open(packed) as file:
            data = bytes(file.read(UNPACKED + 1))
        if len(data) > UNPACKED:
            raise ValueError(f"more than {UNPACKED:,} bytes are packed in it")
        return data
    except opening.FileProblem:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile, ValueError) as e:
        raise ValueError(f"{path}: cannot be unpacked ({e}); {AGAIN}") from e
    except OSError as e:
        if path.suffix == ".bz2" and e.errno is None:  # how bz2 says "invalid data stream"
            raise ValueError(f"{path}: cannot be unpacked ({e}); {AGAIN}") from e
        raise


def idx(path: Path, ndim: int) -> np.ndarray:
    """An idx file (MNIST and its kin), plain or .gz: type and number of axes are in its magic number."""
    data = plain(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES or data[3] != ndim:
        raise ValueError(f"{path}: magic number {data[:4].hex()} is not that of an idx file with {ndim} axes; {AGAIN}")
    start = 4 + 4 * ndim
    if len(data) < start:
        raise ValueError(f"{path}: ends inside its header; {AGAIN}")
    shape = struct.unpack(f">{ndim}I", data[4:start])
    dtype = np.dtype(_IDX_TYPES[data[2]])
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        wanted = math.prod(shape) * dtype.itemsize
        raise ValueError(f"{path}: holds {len(data) - start} bytes of data, its header says {wanted}; {AGAIN}")
    return np.frombuffer(data, dtype, offset=start).reshape(shape)


def fixed_records(path: Path, head: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """A file of equal records, each `head` bytes and then an image of `shape`: the CIFAR and STL-10 binary layouts."""
    data = np.frombuffer(opening.content(path), np.uint8)
    width = head + math.prod(shape)
    if len(data) == 0 or len(data) % width:
        raise ValueError(f"{path}: {len(data)} bytes are not a whole number of records of {width} bytes; {AGAIN}")
    rows = data.reshape(-1, width)
    return rows[:, :head], rows[:, head:].reshape(-1, *shape)


def npy(path: Path, ndim: int | None = None) -> np.ndarray:
    """An .npy file, memory-mapped; never one that holds pickled objects."""
    with opening.opened(path, limit=1 << 50) as f:
        if f.read(6) != b"\x93NUMPY":
            raise ValueError(f"{path}: does not start like an .npy file; {AGAIN}")
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError, OverflowError, TypeError, SyntaxError, MemoryError) as e:
        raise ValueError(f"{path}: not a readable .npy file ({e}); {AGAIN}") from e
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{path}: shape {array.shape} must have {ndim} axes; {AGAIN}")
    return array


def npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an .npz file by name; never pickled objects."""
    try:
        with opening.opened(path) as f:  # opened here, because numpy forgets to close what it cannot read
            archive = np.load(f, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an archive; save x and y together with numpy.savez")
            names = list(archive.files)
            wanted = [k for k in (*needed, *optional) if k in names]
            for k in wanted:
                assert archive.zip is not None
                _check_header(archive.zip, k)
            out = {k: archive[k] for k in wanted}
    except opening.FileProblem:
        raise
    except _NPZ_ERRORS as e:
        # numpy takes whatever it does not know for a pickle, and tells how to read one, which must not be done
        reason = "not an archive of plain arrays" if "pickle" in str(e) else str(e)
        raise ValueError(f"{path}: not a readable .npz file ({reason}); {AGAIN}") from e
    _has(path, out, needed, names)
    return out


_NPZ_ERRORS = (
    *(ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, OSError, OverflowError, TypeError, SyntaxError),
    *(MemoryError, NotImplementedError, RuntimeError, RecursionError, struct.error, lzma.LZMAError),
)
"""What numpy and zipfile raise where an archive is damaged, or lies about what it holds."""


def _check_header(archive: zipfile.ZipFile, name: str) -> None:
    """An error where an array's header asks for other memory than its bytes: numpy would take it before it reads."""
    member = f"{name}.npy" if f"{name}.npy" in archive.namelist() else name
    shape, dtype, start = _header(archive, member)
    size, wanted = archive.getinfo(member).file_size, start + math.prod(shape) * dtype.itemsize
    if size != wanted or size > UNPACKED:
        held = f"holds {size:,} bytes, its header says {wanted:,}" if size != wanted else f"has {size:,} bytes"
        raise ValueError(f"array '{name}' {held}; at most {UNPACKED:,} are read")


def _header(archive: zipfile.ZipFile, member: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type and length of the header of an array in an archive."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject or any(isinstance(n, bool) or n < 0 for n in shape):
            plain = "; save names as text, y.astype(str)" if dtype.hasobject else ""
            raise ValueError(f"its header has shape {shape} and type {dtype}{plain}")
        return tuple(shape), dtype, file.tell()


def npz_header(path: Path, name: str) -> tuple[np.dtype[Any], int]:
    """Type and number of axes of one array of an .npz file, without reading it."""
    try:
        with opening.opened(path) as file, zipfile.ZipFile(file) as archive:
            shape, dtype, _ = _header(archive, f"{name}.npy")
            return dtype, len(shape)
    except opening.FileProblem:
        raise
    except _NPZ_ERRORS as e:
        raise ValueError(f"{path}: not a readable .npz file ({e}); {AGAIN}") from e


def mat(path: Path, needed: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of a MATLAB file (version 5 to 7.2) by name."""
    loadmat = lazy("scipy.io", "scipy", f"reading {path.name}").loadmat
    try:
        data = loadmat(str(opening.checked(path)))
    except NotImplementedError as e:
        raise ValueError(f"{path}: is a MATLAB 7.3 file; save it again with '-v7'") from e
    except (opening.FileProblem, FileNotFoundError):
        raise
    except (MemoryError, Exception) as e:  # scipy raises many kinds on damaged files
        raise ValueError(f"{path}: not a readable MATLAB file ({e}); {AGAIN}") from e
    names = [k for k in data if not k.startswith("__")]
    _has(path, data, needed, names)
    return {k: data[k] for k in names}


def _has(path: Path, data: dict[str, Any], needed: Sequence[str], names: Sequence[str]) -> None:
    for name in needed:
        if name not in data:
            held = ", ".join(names) or "none"
            raise ValueError(f"{path}: has no array '{name}', only {held}; it must have {', '.join(needed)}")


def libsvm(path: Path, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and dense rows of a libsvm text file (`label index:value ...`, indices from 1), plain, .gz or .bz2."""
    lines = plain(path).decode("ascii", "replace").splitlines()
    x, y = np.zeros((len(lines), features), np.float32), np.zeros(len(lines), np.int64)
    for i, line in enumerate(lines):
        try:
            label, *cells = line.split()
            y[i] = int(float(label))
            pairs = [cell.split(":") for cell in cells]
            columns = np.array([int(k) for k, _ in pairs], np.int64) - 1
            if len(columns) and (columns.min() < 0 or columns.max() >= features):
                raise ValueError(f"feature numbers must be 1 to {features}")
            x[i, columns] = [float(v) for _, v in pairs]
        except ValueError as e:
            raise ValueError(f"{path}: line {i + 1} is not 'label index:value ...' ({e}); {AGAIN}") from e
    return y, x


def labels(values: Any, count: int, path: Path, first: int = 0) -> np.ndarray:
    """Labels as int64 from 0, checked against the number of classes; in the file they start at `first`."""
    raw = np.asarray(values).reshape(-1)
    if raw.dtype.kind not in "iufb" or (raw.dtype.kind == "f" and not np.array_equal(raw, np.round(raw))):
        raise ValueError(f"{path}: labels of type {raw.dtype} must be whole numbers; {AGAIN}")
    out = raw.astype(np.int64) - first
    bad = np.flatnonzero((out < 0) | (out >= count))
    if len(bad):
        row, value = int(bad[0]), int(out[bad[0]]) + first
        raise ValueError(f"{path}: label {value} of example {row} must be {first} to {first + count - 1}; {AGAIN}")
    return out


def pairs(x: np.ndarray, y: np.ndarray, path: Path) -> None:
    """As many images as labels."""
    if len(x) != len(y):
        raise ValueError(f"{path}: {len(x)} images, but {len(y)} labels; the files do not belong together")


def to_uint8(x: np.ndarray, path: Path, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Pixels in [low, high] as bytes, rounded."""
    if not np.isfinite(x).all() or x.min(initial=low) < low - 1e-3 or x.max(initial=high) > high + 1e-3:
        raise ValueError(f"{path}: pixels run from {x.min()} to {x.max()}, expected {low} to {high}; {AGAIN}")
    return np.rint((np.clip(x, low, high) - low) * (255.0 / (high - low))).astype(np.uint8)
