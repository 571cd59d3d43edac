"""What a user gave in memory, as a value that records can hold: equal where the contents are."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.hashing import fingerprint


class Held:
    """Arrays or columns in memory. A file cannot hold them: whoever loads such a run passes them again."""

    def __init__(self, what: str, values: Any) -> None:
        self.what, self.values = what, values
        self._mark = ""

    @property
    def mark(self) -> str:
        """A hash of the contents."""
        self._mark = self._mark or fingerprint(_Contents(self.values))
        return self._mark

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.mark == other.mark

    def __hash__(self) -> int:
        return hash(self.mark)

    def __repr__(self) -> str:
        return f"<{self.what} in memory>"


class _Contents:
    """What is hashed: without the hash itself."""

    def __init__(self, values: Any) -> None:
        self.values = values


def as_array(values: Any, what: str) -> np.ndarray:
    """An array of a tensor, an array or a list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # numpy has no such type
    if isinstance(values, np.ma.MaskedArray) and np.any(values.mask):
        kind = np.float64 if values.dtype.kind in "iufb" else object
        values = np.ma.filled(values.astype(kind), np.nan)
    if hasattr(values, "toarray"):
        raise ValueError(f"data.of: {what} is a sparse {type(values).__name__}; give {what}.toarray()")
    try:
        return np.asarray(values)
    except ValueError as e:
        raise ValueError(f"data.of: {what} is ragged ({e}); every row needs the same shape") from e
