"""What to say about columns of a table, in sentences: what tells nothing, what may be meant otherwise."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from ..ops.layout import counted, some
from .columns import ValueColumn
from .delimited import STROKES, number

FEW = 20
"""In so few rows, words or numbers that all differ may be chance."""
RARE = 5
"""A class of fewer rows is hardly in training and test rows alike."""
MANY = 20
"""So many numbers may be classes; more may be a quantity."""
BINS = "put the numbers into a few bins first, or name another column (data.label)"
_AROUND = re.compile(r"[$€£¥<>≤≥~≈]{0,2} ?[-+]?\d[\d.,' \u00a0\u202f]*(?: ?[a-zA-Z%°µ/²³$€£¥*]{0,8})")
_DATE = re.compile(
    r"\d{4}-\d{2}|\d{1,4}([./-])\d{1,2}\1\d{1,4}\b.*|\d{1,2}[ -][A-Za-z]{3,9}[ -]\d{2,4}\b.*"
    r"|\d{1,2}:\d{2}(:\d{2})?( ?[AaPp]\.?[Mm]\.?)?"
)
_ID = re.compile(r"(?:^|[^a-z])(?:id|uuid|key|index|nr|no|number|record)(?:$|[^a-z])", re.IGNORECASE)
_CODES = tuple(s * (10**n - 1) for n in range(2, 7) for s in (-1.0, 1.0)) + (-1.0, -9.0, -999.25)


def counts_rows(column: ValueColumn) -> bool:
    """Whether it holds every whole number of a range once, as numbers of rows do."""
    if column.numbers is None or column.unit or column.missing.any() or len(column) <= FEW:
        return False
    values = np.sort(column.numbers)
    return bool((np.diff(values) == 1).all() and values[0] == np.round(values[0]))


def of_inputs(columns: Sequence[ValueColumn]) -> list[str]:
    """What to say about columns that become inputs."""
    numbers = [c.name for c in columns if counts_rows(c)]
    notes = [f"{n!r} counts the rows, which tells nothing about new ones (data.drop={n})" for n in numbers]
    named = [c.name for c in columns if c.name not in numbers and _is_id(c)]
    notes += [
        f"{n!r} has another whole number in every row: if it is an id, leave it out (data.drop={n})" for n in named
    ]
    says = (_blurred, _code, _no_number)
    return notes + [f"{c.name!r} {said}" for c in columns for say in says if (said := say(c))]


def _is_id(column: ValueColumn) -> bool:
    """Whether its name and its numbers are those of ids."""
    if column.numbers is None or column.unit or not _ID.search(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column.name)):
        return False
    values = column.numbers[~column.missing]
    return len(values) > FEW and bool((values == np.round(values)).all()) and len(np.unique(values)) == len(values)


def _blurred(column: ValueColumn) -> str:
    """Of numbers so far from 0, or so near, that half of them or more are the same in 32 bits, as times in seconds."""
    if column.numbers is None or column.unit or column.missing.all():
        return ""
    values = column.numbers[~column.missing]
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    all_, left = len(np.unique(values)), len(np.unique(single))
    if left > all_ / 2:
        return ""
    near = bool((np.abs(values) < 1e-30).all())
    remedy = "near 0" if near else "far from 0", "multiply them first" if near else "subtract the least one first"
    return f"is so {remedy[0]} that 32 bits tell {left:,} of its {all_:,} numbers apart; {remedy[1]}"


def _code(column: ValueColumn) -> str:
    """Of numbers such as -999 that may stand for what is missing: alone at one end, in several rows."""
    if column.numbers is None or column.unit or column.missing.all():
        return ""
    values = column.numbers[~column.missing]
    for end in (values.min(), values.max()):
        others = values[values != end]
        if end in _CODES and len(others) and 2 <= (count := len(values) - len(others)) < len(others):
            low, high = others.min(), others.max()
            if min(abs(end - low), abs(end - high)) > max(high - low, 1.0):
                return (
                    f"has {end:g} in {count:,} rows, and {low:g} to {high:g} in all others: if that means missing, "
                    "leave these cells empty"
                )
    return ""


def _no_number(column: ValueColumn) -> str:
    """Of words most of which look like numbers or dates."""
    if column.numbers is not None or len(column.words) < 5:
        return ""
    words = [w for w in column.words if w not in STROKES]
    if 2 * sum(bool(_DATE.fullmatch(w)) for w in words) > len(words):
        odd = next(w for w in words if _DATE.fullmatch(w))
        return f"holds {odd!r} and the like, which count as words; write dates as 2024-05-31, and times as 08:30"
    plain = [w for w in words if number(w) is not None]
    if 2 * len(plain) > len(words):
        odd = next((w for w in column.words if w not in plain), "")
        if not odd:
            return "holds numbers as text, which count as words; make numbers of them"
        remedy = "write decimals with a point" if "," in odd else "leave such cells empty"
        return f"holds {odd!r} among its numbers, so all of them count as words; {remedy}"
    if 2 * sum(bool(_AROUND.fullmatch(w)) for w in words) > len(words) and len(words) > 2 * RARE:
        odd = next(w for w in words if _AROUND.fullmatch(w) and w not in plain)
        return f"holds {odd!r} and the like, which count as words; write the number alone, as 1234.5"
    return ""


def of_names(names: Sequence[str], what: str) -> list[str]:
    """What to say of classes or clients whose names differ in capitals, spaces or the form of letters alone."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    several = [" and ".join(map(repr, group)) for group in alike.values() if len(group) > 1]
    said = f"{what} that differ in little more than capitals: {some(several, 4)}; are they the same?"
    return [said] * bool(several)


def of_classes(y: np.ndarray, classes: Sequence[str]) -> list[str]:
    """What to say of the label: classes that are spelled alike, that may be quantities, and rare ones."""
    counts = np.bincount(y, minlength=len(classes))
    rare = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if n < RARE]
    said = [f"classes of fewer than {RARE} rows can hardly be learned and tested: {some(rare, 4)}"] * bool(rare)
    if len(classes) > MANY and all(number(name) is not None for name in classes):
        said.insert(
            0, f"the label has {len(classes)} different numbers, a class each: if it is a quantity to predict, {BINS}"
        )
    return of_names(classes, "classes") + said


def tells(values: np.ndarray, y: np.ndarray) -> bool:
    """Whether every value of a column goes with one class, though it is that of many rows: it may be the label."""
    for part in (slice(2000), slice(None)):  # most columns are ruled out by a few rows
        found, places = np.unique(values[part], return_inverse=True)
        pairs = len(np.unique(places * (int(y.max()) + 1) + y[part]))
        if len(found) < 2 or pairs > len(found) or RARE * len(found) > len(places):
            return False
    return len(np.unique(y)) > 1


def of_unknown(name: str, words: np.ndarray, known: Sequence[str]) -> str:
    """What to say of the words in new rows of a column that no training row had; empty where there are none."""
    new = [w for w in words if w and w not in known]
    if not new:
        return ""
    which = [w if w.isprintable() and len(w) <= 40 else f"{w[:40]!r}" for w in sorted(set(new))]
    return (
        f"{name!r} has {some(which, 4)} ({counted(len(new), 'row')}), which no training row had and counts as unknown; "
        f"known are {some(known)}"
    )
