"""Arrays that take long to compute, kept on disk under a hash of their inputs, and memory-mapped after that.

Plain .npy files, written atomically into a folder of their own; nothing is pickled. The folder is ACCLIMATE_CACHE, else
`~/.cache/acclimate`. Where it cannot be written the arrays are computed again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .places import cache_folder


def remembered(kind: str, key: str, make: Callable[[], Tensor], least: int = 1 << 22) -> Tensor:
    """The tensor that `make` gives, from disk where it was stored before. Those below `least` bytes are not stored."""
    path = cache_folder() / kind / key / "x.npy"
    found = _read(path)
    if found is not None:
        return found
    new = make()
    if new.numel() * new.element_size() >= least:
        _write(path, new.cpu().numpy())
    return new


def _read(path: Path) -> Tensor | None:
    try:
        return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    except (OSError, ValueError, EOFError):
        return None  # absent, or cut short by a crash of the machine: it will be computed again


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
