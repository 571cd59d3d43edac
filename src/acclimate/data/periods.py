"""Periods of pandas, such as a month, which count as the times at which they start. Pandas need not be installed."""

from __future__ import annotations

from typing import Any

import numpy as np

_GAPS = {"NaTType", "NAType", "NoneType"}


def of_time(index: Any) -> bool:
    """Whether an index, or what is in its place, holds dates, durations or periods."""
    dtype = getattr(index, "dtype", None)
    return getattr(dtype, "kind", "") in ("M", "m") or type(dtype).__name__ == "PeriodDtype"


def started(values: np.ndarray) -> np.ndarray:
    """Periods in an array of objects as the times at which they start; an array that holds anything else as it is."""
    kinds = [type(v).__name__ for v in values]
    if set(kinds) - _GAPS != {"Period"}:
        return values
    gap = np.datetime64("NaT")
    return np.array(
        [v.start_time.to_datetime64() if k == "Period" else gap for v, k in zip(values, kinds, strict=True)]
    )
