"""Whether there is a Triton that compiles this package's kernels."""

from __future__ import annotations

import os

try:
    import triton
except ImportError:  # a CPU build of PyTorch
    triton = None

VERSION = tuple(map(int, triton.__version__.split(".")[:2])) if triton else (0, 0)
"""Of Triton; zeros where there is none."""
OLDEST = (3, 6)
"""The first Triton that compiles all kernels."""
AVAILABLE = VERSION >= OLDEST
"""Whether the kernels can be used on this machine's CUDA device."""
INTERPRETED = AVAILABLE and os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton interprets kernels, on a CPU: for tests."""
if AVAILABLE:  # as Triton did until 3.9, which says that it will no longer: results of kernels stay what they are
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


def said() -> str:
    """Of the kernels for a GPU: what compiles them, or what lacks."""
    found = f"Triton {triton.__version__}" if triton else "no Triton"
    if AVAILABLE:
        return found
    return (
        f"{found}: all works without kernels, and takes longer; torch 2.10 and newer have a Triton that compiles them"
    )
