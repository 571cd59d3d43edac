"""How the report writes numbers and colours, and the small pieces of HTML that its sections share."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

DASH = "&ndash;"
"""What stands for a number that is missing or not finite."""

LIGHT = ("#0035b9", "#da7109", "#439e6b", "#9c4990", "#4a2b00", "#987bea", "#0d373c", "#666464")
DARK = ("#7297f4", "#e24212", "#45f182", "#ef89b7", "#ece229", "#8f38ff", "#aae1ff", "#856d6d")
"""Colours that differ under protanopia, deuteranopia and tritanopia, with a contrast of at least 3:1 to the page."""
TONES = len(LIGHT)
"""How many colours there are; a ninth method has the first again, with another marker."""
SHADES = 7
"""How many shades a heat map has; from pale to strong in the light, from dark to bright in the dark."""


def esc(value: Any) -> str:
    """Any value as text that is safe in HTML and in a quoted attribute; None is a dash."""
    return DASH if value is None else html.escape(str(value), quote=True)


def num(value: Any) -> float:
    """A number from JSON; NaN for anything that is not one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mean(values: Iterable[float]) -> float:
    """The mean; NaN when there is nothing to average or when any value is NaN."""
    items = list(values)
    return sum(items) / len(items) if items else math.nan


def deviation(values: Iterable[float]) -> float:
    """The sample standard deviation; NaN for fewer than two values."""
    items = list(values)
    if len(items) < 2:
        return math.nan
    centre = mean(items)
    return math.sqrt(sum((v - centre) ** 2 for v in items) / (len(items) - 1))


def fixed(value: float, digits: int = 1) -> str:
    """A number with fixed decimals, or a dash."""
    return f"{value:.{digits}f}" if math.isfinite(value) else DASH


def pct(value: float) -> str:
    """A share as a percentage without its sign: 0.8123 is 81.2."""
    return fixed(value * 100)


def size(value: float) -> str:
    """Bytes for people, in powers of 1000."""
    if not math.isfinite(value):
        return DASH
    for unit in ("B", "kB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB" if value < 1000 else f"{value:.0f} GB"


def words(items: Iterable[Any]) -> str:
    """Escaped items as prose: `a, b and c`."""
    parts = [esc(i) for i in items]
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts) or DASH


def short(text: str, most: int) -> str:
    """A text of at most so many letters; a longer one is cut and ends with three dots."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def span(values: Iterable[Any], form: str = "g") -> str:
    """The range of numbers: `20` or `5 to 20`."""
    found = sorted({v for v in map(num, values) if math.isfinite(v)})
    return DASH if not found else f"{found[0]:{form}}" + f" to {found[-1]:{form}}" * (len(found) > 1)


def plain(value: Any) -> str:
    """JSON in words, for facts whose form is not fixed."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if isinstance(v, Mapping) else f"{k} {plain(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return "\u2013" if value is None or value != value else str(value)


def facts(pairs: Iterable[tuple[str, Any]]) -> str:
    """A list of names and values."""
    return "<dl>" + "".join(f"<dt>{esc(k)}</dt><dd>{esc(plain(v))}</dd>" for k, v in pairs) + "</dl>"


def scroll(label: str, inner: str, tall: bool = False) -> str:
    """A box that scrolls by itself, so that the page does not; `label` is plain text, `inner` HTML."""
    cls = "scroll tall" if tall else "scroll"
    return f'<div class="{cls}" role="region" tabindex="0" aria-label="{esc(label)}">{inner}</div>'


def table(label: str, head: Sequence[tuple[str, str]], rows: Iterable[str], cls: str = "") -> str:
    """A table that scrolls by itself; `head` is (HTML, class), `rows` are cells as HTML."""
    cells = "".join(f'<th scope="col" class="{c}">{text}</th>' for text, c in head)
    body = "".join(f"<tr>{r}</tr>" for r in rows)
    inner = f'<table class="{cls}">{caption(label)}<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'
    return scroll(label, inner)


def caption(label: str) -> str:
    """A table's caption, for those who do not see the heading above it; plain text."""
    return f'<caption class="vh">{esc(label)}</caption>'


def details(title: str, more: str, body: str, is_open: bool = False) -> str:
    """A part that folds; `title` and `more` are plain text."""
    start = "<details open>" if is_open else "<details>"
    return f"{start}<summary>{esc(title)} <span>{esc(more)}</span></summary>{body}</details>"


def views(selections: Mapping[str, str], draw: Callable[[str], str]) -> str:
    """One panel per selection (name by key): tabs with JavaScript, one under the other without."""
    out = []
    for key, name in selections.items():
        start = f'<div class="view" data-view="{esc(key)}" data-name="{esc(name)}">'
        out.append(f"{start}<h3>{esc(name)}</h3>{draw(key)}</div>")
    return f'<div class="views">{"".join(out)}</div>'
