"""Results as data frames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..data.formats import lazy


def data_frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = ()) -> Any:
    """A pandas data frame of plain rows, of these columns or of all that the first row has.

    Where pandas is not there, the error says how to install it.
    """
    found = lazy("pandas", "pandas", "to_dataframe()")
    every = list(rows)
    names = list(columns) or list(every[0] if every else ())
    return found.DataFrame([[r.get(c) for c in names] for r in every], columns=names)
