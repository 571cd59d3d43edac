"""Why ours differ from published accuracies by more than three points: what an experiment supports, else "unknown".

A cause is data: which published numbers it is about, a sentence, and the results that support it. The first that fits
a number counts. Three causes are computed: our mean over three or more seeds and the published one may be equal at 95 %
(Welch's test, with the paper's spread where it says what that is; where all runs of a paper share one draw of few test
images, also with the chance of that draw); so may a number of fewer seeds, by the spread that other rows of its column
have over three or more; and a mixture that lacks its natural part is compared with what the paper's own streams say of
the other parts. A fourth is computed too: a number that is near as released code has it. It goes before what is named
in `why.py` where more numbers of the table are near so than by the paper's text, and else after all other causes. What
no cause fits is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from ..ops import layout
from . import published
from .coverage import Standing
from .pages import NEAR
from .why import CAUSES, ONE_DRAW, Cause

STUDENT = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179}
STUDENT |= {15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000}
"""The 97.5 % quantile of Student's t by degrees of freedom; between two of them the lower counts."""
SEEDS = Cause("", "it cannot be told from the published number at 95 %, by the spread over seeds", "the table itself")
FEW_SEEDS = Cause(
    "",
    "it is of fewer than three seeds, and cannot be told from the published number at 95 %, by the spread over seeds "
    "that other rows of its column have",
    "the table itself",
)
THREE_PARTS = Cause(
    "",
    "our mixture has no natural part (CIFAR-10.1 is not here); it is within 3 points of the mean of the paper's own "
    "other three streams",
    "the paper's other columns",
)
DRAW = Cause(
    "",
    "the first author's released code reads fixed lists of few test images, so that the paper's spread over runs lacks "
    "the chance of their draw; with it, ours cannot be told from the published number at 95 %",
    "the table itself",
)
UNKNOWN = Cause("", "unknown")
LEAST, AVERAGE = 3, "average"
"""Seeds from which on a number has a spread of its own, and the column whose printed spread is over streams."""


@dataclass(frozen=True)
class Differing:
    """The numbers of a table that differ for one reason."""

    table: str
    cause: Cause
    numbers: list[Standing]


def cause_of(standing: Standing, every: Mapping[tuple[Any, ...], Standing]) -> Cause:
    """Why a number differs. `every` are all numbers by `place`."""
    if _by_chance(standing):
        return SEEDS
    if _lacks_a_part(standing, every):
        return THREE_PARTS
    released, better = _as_released(standing, every.values())
    known = released if better else next((c for c in CAUSES if fits(c, standing)), UNKNOWN)
    if known is UNKNOWN and _by_chance(standing, draw=True):
        return DRAW
    if known is UNKNOWN and _by_peers(standing, every.values()):
        return FEW_SEEDS
    return released if known is UNKNOWN else known


def _as_released(standing: Standing, every: Iterable[Standing]) -> tuple[Cause, bool]:
    """That a number is near as released code has it, or unknown; and whether this fits more of the table's numbers."""
    if standing.released is None or not standing.near_as_released:
        return UNKNOWN, False
    both = [s for s in every if s.table == standing.table and s.ours and s.released]
    near, text = sum(s.near_as_released for s in both), sum(s.state == "near" for s in both)
    why = (
        f"as released code has it, it is within {NEAR} points; so are {near} of the {len(both)} numbers of the table "
        f"that were measured both ways, and by the paper's text {text}"
    )
    return Cause(standing.table, why, standing.released.file), near > text


def fits(cause: Cause, standing: Standing) -> bool:
    """Whether a cause is about this number."""
    wanted = all(str(standing.fields.get(name)) in values for name, values in cause.where)
    file = standing.ours.file if standing.ours else ""
    if cause.as_released and standing.released is not None:
        return False
    return cause.table == standing.table and wanted and (not cause.file or file == cause.file)


def _by_chance(standing: Standing, draw: bool = False) -> bool:
    """Whether the two means differ by no more than their spreads allow, or with `draw` the paper's test images too."""
    values = list(standing.ours.by_seed.values()) if standing.ours else []
    more = _of_draw(standing) if draw else 0.0
    return len(values) >= LEAST and _within(standing, variance(values), len(values) - 1, more)


def _by_peers(standing: Standing, every: Iterable[Standing]) -> bool:
    """The same for a number of few seeds, whose variance is the mean of those of two or more rows of its column."""
    ours = standing.ours
    if ours is None or ours.seeds >= LEAST:
        return False
    column = [s.ours for s in every if s.ours and s.table == standing.table]
    peers = [o for o in column if (o.file, o.column) == (ours.file, ours.column) and o.seeds >= LEAST]
    if len(peers) < 2:
        return False
    return _within(standing, fmean(variance(o.by_seed.values()) for o in peers), sum(o.seeds - 1 for o in peers))


def _within(standing: Standing, spread: float, freedom: int, more: float = 0.0) -> bool:
    """Whether a difference is no larger than chance allows, by Welch's test, our seeds having this variance; `more` is
    that of the paper's test images."""
    own = spread / standing.ours.seeds if standing.ours else 0.0
    printed = 0.0 if standing.fields.get("stream") == AVERAGE else standing.theirs.std or 0.0
    theirs = (printed * published.error_of_spread(standing.table)) ** 2
    both = own + theirs + more
    known = own**2 / freedom + theirs**2 / (published.RUNS - 1)
    of_both = both**2 / known if known else min(STUDENT)
    quantile = STUDENT[max(n for n in STUDENT if n <= of_both + 1e-9)]
    return abs(standing.difference or 0.0) <= quantile * sqrt(both)


def _of_draw(standing: Standing) -> float:
    """The variance of the published number, in points, over draws of as many test images; 0 where it is not known."""
    images = ONE_DRAW.get(standing.table, {}).get(str(standing.fields.get("domain")))
    return standing.theirs.mean * (100.0 - standing.theirs.mean) / images if images else 0.0


NATURAL, PARTS = "natural", ("original", "corrupted", "out-of-client")


def _lacks_a_part(standing: Standing, every: Mapping[tuple[Any, ...], Standing]) -> bool:
    if standing.ours is None or standing.fields.get("stream") != "mixture":
        return False
    natural, *parts = [every.get(place(standing.table, {**standing.fields, "stream": p})) for p in (NATURAL, *PARTS)]
    if natural is not None and natural.ours is not None and natural.ours.file == standing.ours.file:
        return False  # where the natural stream was measured, the mixture had it too
    theirs = [part.theirs.mean for part in parts if part is not None]
    return len(theirs) == len(PARTS) and abs(standing.ours.mean - fmean(theirs)) <= NEAR


def place(table: str, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """What names a published number."""
    return table, *sorted((name, str(value)) for name, value in fields.items())


def groups(found: Iterable[Standing], tables: Sequence[str]) -> list[Differing]:
    """The numbers that are further off, by table in this order and by cause, what is unknown last."""
    found = list(found)
    every = {place(s.table, s.fields): s for s in found}
    out: dict[tuple[str, str, str], Differing] = {}
    for standing in (s for s in found if s.state == "far"):
        cause = cause_of(standing, every)  # several may say the same of other numbers
        group = out.setdefault((standing.table, cause.why, cause.evidence), Differing(standing.table, cause, []))
        group.numbers.append(standing)
    made = list(out.values())
    return sorted(made, key=lambda group: (tables.index(group.table), group.cause is UNKNOWN))


HEAD = ("table", "numbers", "which", "why", "by")


def line(group: Differing) -> tuple[str, ...]:
    """A group in words, as `HEAD` says."""
    return group.table, str(len(group.numbers)), _which(group.numbers), group.cause.why, group.cause.evidence or "-"


def _which(numbers: Sequence[Standing]) -> str:
    """The values of the field that says most: methods, unless there are many."""
    names = [str(next(iter(s.fields.values()))) for s in numbers]
    several = list(dict.fromkeys(names))
    return ", ".join(several) if len(several) <= 4 else f"{len(several)} rows"


def markdown(found: Sequence[Differing]) -> str:
    """The groups as a Markdown table, with a sentence before it."""
    told = sum(len(g.numbers) for g in found if g.cause.evidence)
    all_ = sum(len(g.numbers) for g in found)
    head = (
        f"{all_} measured numbers are more than {NEAR} points from the published ones: "
        f"{told} have a cause that an experiment or a computation supports, of {all_ - told} it is unknown."
    )
    return "\n".join([head, "", *layout.table(HEAD, [line(g) for g in found])])


def as_json(group: Differing) -> dict[str, Any]:
    """A group with its numbers."""
    numbers = [{**s.fields, "difference": s.difference} for s in group.numbers]
    return {"table": group.table, "why": group.cause.why, "by": group.cause.evidence, "numbers": numbers}
