"""What arrays say of rows (classes, domains, people, official tests) as whole numbers from 0, with their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from . import formats

MOST = 1_000_000
"""The most classes or domains that numbers may stand for: every one gets a name and a count."""
_HOT = " (y.argmax(1), if every row has a single 1)"
Numbered = tuple[np.ndarray, tuple[str, ...]]


def marked(values: np.ndarray, path: Path) -> np.ndarray:
    """Which rows are official test rows, of an array of true and false."""
    found = f"values of type {values.dtype} and shape {values.shape}"
    if values.ndim == 1 and values.dtype.kind in "biuf":
        odd = np.flatnonzero((values != 0) & (values != 1))
        if not len(odd):
            return values.astype(bool)
        found = f"{values[odd[0]]} in row {odd[0] + 1}"
    raise ValueError(f"{path}: test has {found}, allowed are true and false (or 1 and 0), one per row")


def rows(data: Mapping[str, np.ndarray], path: Path) -> int:
    """How many rows y has, after a check that all arrays have as many."""
    _check_marks(data["y"], path, "y")
    n = len(data["y"])
    for key in ("x", "domain", "user", "test"):
        if key in data and (data[key].ndim == 0 or len(data[key]) != n):
            raise ValueError(f"{path}: {key} has shape {data[key].shape}, but y has {n} rows; all need one row each")
    return n


def numbered(values: np.ndarray, names: np.ndarray | None, path: Path, what: str) -> Numbered:
    """Numbers from 0 and their names, from numbers or from names."""
    _check_marks(values, path, what)
    if names is not None and names.ndim != 1:
        raise ValueError(f"{path}: the names for {what} have shape {names.shape}, expected a list of them")
    if values.dtype.kind in "US":
        return _by_name(_as_text(values), names, path, what)
    count = len(names) if names is not None else max(int(values.max(initial=0)) + 1, 1)
    if count > MOST:
        row = int(values.argmax()) if names is None else 0
        raise ValueError(f"{path}: {what}[{row}] is {count - 1}; there may be at most {MOST:,} of them, from 0 on")
    given = tuple(_as_text(names).tolist()) if names is not None else tuple(map(str, range(count)))
    try:
        return formats.labels(values, count, path), given
    except ValueError as e:
        raise ValueError(f"{e} (in the array {what})") from e


def _by_name(values: np.ndarray, names: np.ndarray | None, path: Path, what: str) -> Numbered:
    """Numbers for names: their places in `names` where it is given, else in alphabetical order."""
    found, numbers = np.unique(values, return_inverse=True)
    if names is None:
        return numbers.astype(np.int64), tuple(found.tolist())
    given = tuple(_as_text(names).tolist())
    allowed = ", ".join(given[:10]) + (", ..." if len(given) > 10 else "")
    if len(set(given)) != len(given):
        raise ValueError(f"{path}: the names for {what} must differ from each other, but are {allowed}")
    place = {name: i for i, name in enumerate(given)}
    if unknown := [name for name in found.tolist() if name not in place]:
        row = int(np.flatnonzero(values == unknown[0])[0])
        raise ValueError(f"{path}: {what}[{row}] is {unknown[0]!r}, allowed are the names for {what}: {allowed}")
    return np.array([place[name] for name in found.tolist()], np.int64)[numbers], given


def grouped(values: np.ndarray, path: Path, what: str) -> Numbered:
    """Numbers from 0 without gaps for whatever marks users, who need not be numbered so."""
    _check_marks(values, path, what)
    found, numbers = np.unique(values, return_inverse=True)
    return numbers.astype(np.int64), tuple(_as_text(found).tolist())


def _as_text(names: np.ndarray) -> np.ndarray:
    """Names as text, which an archive may hold as bytes in UTF-8."""
    return np.char.decode(names, "utf-8", "backslashreplace") if names.dtype.kind == "S" else names.astype(str)


def _check_marks(values: np.ndarray, path: Path, what: str) -> None:
    """One number or name per row, each of which says something."""
    if values.ndim != 1:
        raise ValueError(
            f"{path}: {what} has shape {values.shape}, expected one number or name per row{_HOT * (values.ndim == 2)}"
        )
    if values.dtype.kind not in "iufbUS":
        raise ValueError(f"{path}: {what} is of type {values.dtype}, expected whole numbers or names")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(f"{path}: {what}[{row}] is {values[row]}, expected a whole number or a name in every row")
