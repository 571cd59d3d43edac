"""A search as HTML: what was searched, how every trial did, and the chosen one. It needs no script and no network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import store

Card = Mapping[str, Any]
"""tune.json."""
WIDTH, HEIGHT, LEFT, BOTTOM = 320.0, 180.0, 44.0, 34.0
MARGIN = 10.0
STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; color-scheme: light dark; max-width: 70rem; margin: auto; padding: 1rem }
.tune-scroll { overflow-x: auto } .tune table { border-collapse: collapse; font-variant-numeric: tabular-nums }
.tune th, .tune td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid #8884 }
.tune td { white-space: nowrap }
.tune .tune-best { font-weight: 700 }
"""


def page(card: Card) -> str:
    """A page of its own: report.html of a search."""
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>acclimate tune</title>'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{head}<style>{STYLE}</style></head><body><h1>Search</h1>{section_html(card)}</body></html>\n"


def section_html(card: Card) -> str:
    """The body of a report's section: words, a picture per dimension and a table of all trials, the best first."""
    ranked = sorted(card["trials"], key=lambda t: (t["score"] is None, -(t["score"] or 0.0), t["number"]))
    pictures = "".join(_picture(dim, card) for dim in card["space"])
    return f'<div class="tune">{_words(card)}{pictures}{_table(ranked, card)}</div>'


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
    score, seeds, chosen = card["score"], card["seeds"], card["chosen"]
    said = f"{len(card['trials'])} of {card['planned']} trials ({card['sampler']}), {len(seeds)} seed(s) each. "
    said += f"The score is the accuracy on <em>validation</em> data ({_esc(', '.join(score['streams']))}; adapter "
    said += f"{_esc(score['adapter'])}) at the validation-selected round, averaged over clients and seeds. Test data "
    said += "was not looked at: the chosen settings are still to be tested. "
    if card.get("grid"):
        said += f"The grid is {_esc(card['grid']['name'])} ({_esc(card['grid']['place'])}). "
    if chosen:
        values = ", ".join(f"{k}={_number(v)}" for k, v in chosen["values"].items())
        said += f"<strong>Chosen: {_esc(values)}</strong> (trial {chosen['number']}, {_percent(chosen['score'])})."
    return f"<p>{said}</p>"


def _table(ranked: Sequence[Card], card: Card) -> str:
    keys = [d["key"] for d in card["space"]]
    heads = ["Trial", *keys, "Score", "Each seed", "Selected round", "Seconds"]
    head = "".join(f'<th scope="col">{_esc(h)}</th>' for h in heads)
    body = "".join(_line(t, keys, card) for t in ranked)
    inner = (
        f"<table><caption>Trials, the best first</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
    return f'<div class="tune-scroll" role="region" tabindex="0" aria-label="Trials">{inner}</div>'


def _line(trial: Card, keys: Sequence[str], card: Card) -> str:
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
    best = card["chosen"] is not None and trial["number"] == card["chosen"]["number"]
    mark = ' class="tune-best"' if best else ""
    return f"<tr{mark}>" + "".join(f"<td>{_esc(c)}</td>" for c in cells) + "</tr>"


def _picture(dim: Card, card: Card) -> str:
    """Score against one dimension; every dot is a trial, the chosen one is filled."""
    scored = [t for t in card["trials"] if t["score"] is not None]
    if not scored:
        return ""
    scores = [t["score"] for t in scored]
    low, high = min(scores), max(scores)
    y = _scale(low, high, HEIGHT - BOTTOM - MARGIN, MARGIN)
    x, ticks = _axis(dim)
    chosen = card["chosen"]["number"] if card["chosen"] else None
    dots = "".join(_dot(x(t["values"][dim["key"]]), y(t["score"]), t, t["number"] == chosen) for t in scored)
    marks = f'<path d="M{LEFT:g} 0V{HEIGHT - BOTTOM + 3:g}H{WIDTH:g}" fill="none" stroke="currentColor" opacity="0.4"/>'
    marks += "".join(_text(x(v), HEIGHT - BOTTOM + 16, _number(v), "middle") for v in ticks)
    marks += "".join(_text(LEFT - 4, y(v) + 4, _percent(v), "end") for v in dict.fromkeys((low, high)))
    marks += _text((LEFT + WIDTH) / 2, HEIGHT - 4, dim["key"], "middle")
    label = _esc(f"Validation accuracy against {dim['key']}, from {_percent(low)} to {_percent(high)}")
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}"'
    return f'<svg {size} role="img" aria-label="{label}" fill="currentColor">{dots}{marks}</svg>'


def _axis(dim: Card) -> tuple[Any, list[Any]]:
    """Where a value stands, and the values that are written out: choices stand side by side, ranges by their size."""
    right = WIDTH - 3 * MARGIN
    if "choices" in dim:
        place = _scale(0, max(len(dim["choices"]) - 1, 1), LEFT + MARGIN, right)
        return lambda v: place(dim["choices"].index(v)), dim["choices"]
    bend = math.log if dim["log"] else float
    place = _scale(bend(dim["low"]), bend(dim["high"]), LEFT + MARGIN, right)
    return lambda v: place(bend(v)), [dim["low"], dim["high"]]


def _scale(low: float, high: float, start: float, end: float) -> Any:
    width = high - low or 1.0
    return lambda v: start + (end - start) * ((v - low) / width if high > low else 0.5)


def _dot(x: float, y: float, trial: Card, chosen: bool) -> str:
    said = _esc(f"trial {trial['number']}: {_percent(trial['score'])}")
    look = 'r="5"' if chosen else 'r="4" fill="none" stroke="currentColor"'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" {look}><title>{said}</title></circle>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11">{_esc(text)}</text>'


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _esc(text: str) -> str:
    return html.escape(text)
