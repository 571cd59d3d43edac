"""Arrays that take long to make, kept on disk under a hash of what they were made from, and memory-mapped after that.

Plain .npy files, written atomically into a folder of their own; nothing is pickled. The folder is ACCLIMATE_CACHE, else
`~/.cache/acclimate`. Where it cannot be written the arrays are simply made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .places import cache_folder


def fingerprint(*parts: object) -> str:
    """A hash over tensors (shape, type and bytes) and over the text of everything else."""
    h = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            h.update(f"{tuple(part.shape)}{part.dtype}".encode())
            h.update(part.contiguous().cpu().numpy().data)
        else:
            h.update(repr(part).encode())
    return h.hexdigest()[:32]


def remembered(kind: str, key: str, make: Callable[[], Tensor], least: int = 1 << 22) -> Tensor:
    """The tensor that `make` gives, from disk where it was made before. Those below `least` bytes are not kept."""
    path = cache_folder() / kind / key / "x.npy"
    found = _read(path)
    if found is not None:
        return found
    made = make()
    if made.numel() * made.element_size() >= least:
        _write(path, made.cpu().numpy())
    return made


def _read(path: Path) -> Tensor | None:
    try:
        return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None  # absent, or cut short by a crash of the machine: it will be made again


def _write(path: Path, array: np.ndarray) -> None:
    temporary = None
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent.parent, prefix=".making-"))
        np.save(temporary / path.name, array, allow_pickle=False)
        if path.parent.exists():
            shutil.rmtree(path.parent, ignore_errors=True)
        os.replace(temporary, path.parent)
    except OSError:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
