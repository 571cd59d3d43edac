"""A search as HTML: its own page, and its section in a report. It needs no script and no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import store
from ..ops.layout import counted
from ..reporting import page as pages
from ..reporting.style import esc, table
from ..reporting.svg import drawing, linear, marker

Card = Mapping[str, Any]
"""The content of a tune.json."""
WIDTH, HEIGHT, LEFT, RIGHT, FOOT, EDGE = 320, 170, 44, 30, 24, 10
"""A chart in pixels: its size, its margins, and the room between its axes and its marks."""


def page(card: Card) -> str:
    """A page of its own: report.html of a search."""
    return pages.page("acclimate tune", "", {"Search": section_html(card)}, "tune.json")


def section_html(card: Card) -> str:
    """The body of a report's section: words, a chart per dimension and a table of all trials, the best first."""
    ranked = sorted(card["trials"], key=lambda t: (t["score"] is None, -(t["score"] or 0.0), t["number"]))
    charts = "".join(_chart(dim, card) for dim in card["space"])
    return f'{_words(card)}<div class="panels maps">{charts}</div>{_table(ranked, card)}'


def sections(paths: Iterable[Path]) -> dict[str, str]:
    """Sections for a report, by title in plain text: one for every folder among these that holds a search."""
    found = list(dict.fromkeys(p.resolve() for p in paths if (p / "tune.json").exists()))
    return {f"Search {_short(p, found)}": section_html(store.read_json(p / "tune.json")) for p in found}


def _short(path: Path, others: Sequence[Path]) -> str:
    """A folder's name, with as many of its parents as it takes to tell it from the others."""
    ends = (path.parts[-n:] for n in range(1, len(path.parts) + 1))
    return Path(*next(e for e in ends if sum(o.parts[-len(e) :] == e for o in others) == 1)).as_posix()


def _words(card: Card) -> str:
    """What the numbers are, and which trial was chosen."""
    score, chosen = card["score"], card["chosen"]
    text = f"{len(card['trials'])} of {card['planned']} trials ({esc(card['sampler'])}), "
    text += f"{counted(len(card['seeds']), 'seed')} each. The score is the accuracy on <em>validation</em> data "
    text += f"({esc(', '.join(score['streams']))}; adapter {esc(score['adapter'])}) at the validation-selected round, "
    text += "averaged over clients and seeds. Test data was not looked at: the chosen settings are still to be tested. "
    if card.get("grid"):
        text += f"The grid is {esc(card['grid']['name'])} ({esc(card['grid']['place'])}). "
    if chosen:
        values = ", ".join(f"{k}={_number(v)}" for k, v in chosen["values"].items())
        text += f"<strong>Chosen: {esc(values)}</strong> (trial {chosen['number']}, {_percent(chosen['score'])})."
    return f"<p>{text}</p>"


def _table(ranked: Sequence[Card], card: Card) -> str:
    keys = [d["key"] for d in card["space"]]
    head = [(esc(h), "") for h in ("Trial", *keys, "Score", "Each seed", "Selected round", "Seconds")]
    return table("Trials, the best first", head, (_line(t, keys, card["chosen"]) for t in ranked))


def _line(trial: Card, keys: Sequence[str], chosen: Card | None) -> str:
    seeds = trial["seeds"]
    score = f"failed: {trial['failed']}" if trial["failed"] else _percent(trial["score"])
    if trial["same_as"] is not None:
        score += f" (as trial {trial['same_as']})"
    cells = [
        str(trial["number"]),
        *(_number(trial["values"][k]) for k in keys),
        score,
        ", ".join(_percent(s["accuracy"]) for s in seeds),
        ", ".join(str(s["round"]) for s in seeds),
        f"{sum(s['seconds'] for s in seeds):.1f}",
    ]
    mark = ' class="best"' if chosen is not None and trial["number"] == chosen["number"] else ""
    return "".join(f"<td{mark}>{esc(c)}</td>" for c in cells)


def _chart(dim: Card, card: Card) -> str:
    """Score against one dimension; every mark is a trial, and a large diamond is the chosen one."""
    scored = [t for t in card["trials"] if t["score"] is not None]
    if not scored:
        return ""
    low, high = min(t["score"] for t in scored), max(t["score"] for t in scored)
    margin = 0.0 if high > low else 1.0  # equal scores stand in the middle
    at_y = linear(low - margin, high + margin, HEIGHT - FOOT - EDGE, EDGE)
    at_x, ticks = _axis(dim)
    chosen = card["chosen"]["number"] if card["chosen"] else None
    body = f'<path class="grid" fill="none" d="M{LEFT} 0V{HEIGHT - FOOT}H{WIDTH}"/>'
    body += "".join(_text(at_x(v), HEIGHT - 6, _number(v), "middle") for v in ticks)
    body += "".join(_text(LEFT - 4, at_y(v) + 4, _percent(v), "end") for v in dict.fromkeys((low, high)))
    for t in sorted(scored, key=lambda t: t["number"] == chosen):
        tone, shape, r = (1, 3, 7.0) if t["number"] == chosen else (0, 0, 4.0)
        title = f"trial {t['number']}: {_percent(t['score'])}"
        body += marker(shape, at_x(t["values"][dim["key"]]), at_y(t["score"]), tone, title, r)
    label = f"Validation accuracy against {dim['key']}, from {_percent(low)} to {_percent(high)}"
    drawn = drawing("panel", WIDTH, HEIGHT, label, body, titled=False)
    return f"<div><h4>{esc(dim['key'])}</h4>{drawn}</div>"


def _axis(dim: Card) -> tuple[Callable[[Any], float], list[Any]]:
    """Where a value stands, and the values that are written out: choices stand side by side, ranges by their size."""
    start, end = LEFT + EDGE, WIDTH - RIGHT
    if "choices" in dim:
        place = linear(0, max(len(dim["choices"]) - 1, 1), start, end)
        return lambda v: place(dim["choices"].index(v)), dim["choices"]
    bend: Callable[[float], float] = math.log if dim["log"] else float
    scale = linear(bend(dim["low"]), bend(dim["high"]), start, end)
    return lambda v: scale(bend(v)), [dim["low"], dim["high"]]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{esc(text)}</text>'


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
