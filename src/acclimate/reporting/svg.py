"""Charts as inline SVG: learning curves in one chart or in small ones side by side, and a scatter."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..ops.layout import counted
from .style import TONES, esc, size

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 40, 62
SMALL, LOW = 240, 140
"""A small chart's width and height."""
MOST_CURVES = 6
"""How many methods share a chart."""

Tick = tuple[float, str]
"""A place along an axis, in pixels, and its label (escaped)."""


@dataclass(frozen=True)
class Curve:
    """One method's learning curve: `lines` holds one list of (round, share) per seed."""

    name: str
    tone: int
    lines: tuple[tuple[tuple[float, float], ...], ...]

    def spread(self) -> list[tuple[float, float, float, float]]:
        """(round, mean, lowest, highest) over the seeds that have the round."""
        found: dict[float, list[float]] = {}
        for x, y in (p for line in self.lines for p in line):
            found.setdefault(x, []).append(y)
        return [(x, sum(v) / len(v), min(v), max(v)) for x, v in sorted(found.items())]

    def middle(self) -> list[tuple[float, float]]:
        """The mean over seeds, round by round."""
        return [(x, y) for x, y, _, _ in self.spread()]


@dataclass(frozen=True)
class Dot:
    """One point of the scatter: colour for the method, `shape` for the adapter."""

    name: str
    kind: str
    tone: int
    shape: int
    x: float
    y: float


def nice(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """About `count` round numbers that enclose low..high; only whole ones where `whole`."""
    span = high - low or max(abs(high), 1.0) * 0.1
    raw = max(span / count, float(whole))
    unit = 10.0 ** math.floor(math.log10(raw))
    steps = [m * unit for m in (1, 2, 2.5, 5, 10) if not whole or (m * unit) % 1 == 0]
    step = next(s for s in steps if s >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def shares(values: Sequence[float]) -> list[float]:
    """Ticks for shares, kept within 0..1."""
    ticks = [t for t in nice(min(values), max(values)) if 0 <= t <= 1]
    return ticks if len(ticks) > 1 else [0.0, 0.5, 1.0]


def linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A scale: `low` is at `start`, `high` at `end`."""
    span = high - low or 1.0
    return lambda v: start + (v - low) / span * (end - start)


def percent(value: float) -> str:
    """A share in per cent, with no more digits than it needs."""
    return f"{value * 100:.4g}"


def marker(shape: int, x: float, y: float, tone: int, title: str = "", r: float = 5.0) -> str:
    """A small filled mark; six shapes, so that nobody needs to see its colour. `title` is plain text."""
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)),
        3: ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        4: ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)),
        5: ((-1.2, -1.2), (0, -0.4), (1.2, -1.2), (0.4, 0), (1.2, 1.2), (0, 0.4), (-1.2, 1.2), (-0.4, 0)),
    }.get(shape % 6)
    inner = f"<title>{esc(title)}</title>" if title else ""
    cls = f'class="mark c{tone % TONES}"'
    if corners is None:
        return f'<circle {cls} cx="{x:.1f}" cy="{y:.1f}" r="{r}">{inner}</circle>'
    points = " ".join(f"{x + dx * r * 0.9:.1f},{y + dy * r * 0.9:.1f}" for dx, dy in corners)
    return f'<polygon {cls} points="{points}">{inner}</polygon>'


def swatch(tone: int | None, shape: int | None, line: bool = False) -> str:
    """A small picture of a line, of a mark or of both, for legends and the heads of rows."""
    drawn = f'<path class="line c{(tone or 0) % TONES}" d="M1 7h24"/>' if line and tone is not None else ""
    drawn += marker(shape, 13, 7, 7 if tone is None else tone) if shape is not None else ""
    return f'<svg class="swatch" viewBox="0 0 26 14" aria-hidden="true">{drawn}</svg>'


def legend(items: Sequence[tuple[str, int | None, int | None]], label: str, lines: bool = True) -> str:
    """A list of (name, tone, shape): a line without shape, a neutral mark without tone, and both where `lines`."""
    rows = [f"<li>{swatch(tone, shape, lines)}{esc(name)}</li>" for name, tone, shape in items]
    return f'<ul class="legend" aria-label="{esc(label)}">{"".join(rows)}</ul>'


def _frame(label: str, xs: Sequence[Tick], ys: Sequence[Tick], x_label: str, y_label: str, body: str) -> str:
    """A chart with its grid; the label of the upright axis lies flat above it."""
    parts = [f'<text x="4" y="18">{esc(y_label)}</text>']
    for y, text in ys:
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4.5:.1f}" text-anchor="end">{text}</text>')
    for x, text in xs:
        parts.append(f'<path class="grid" d="M{x:.1f} {HEIGHT - BOTTOM}v5"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">{text}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{esc(x_label)}</text>')
    return drawing("chart", WIDTH, HEIGHT, label, "".join(parts) + body)


def drawing(
    cls: str, width: float, height: float, label: str, body: str, titled: bool = True, fixed: bool = False
) -> str:
    """An SVG element with its text alternative, also as a tooltip where `titled`; `label` is plain text, `body` SVG.

    Where `fixed`, it keeps its size, so that its text is never shrunk.
    """
    label = esc(label)
    title = f"<title>{label}</title>" if titled else ""
    size = f'width="{width:g}" height="{height:g}" ' if fixed else ""
    place = f'{size}class="{cls}" viewBox="0 0 {width:g} {height:g}"'
    return f'<svg {place} role="img" aria-label="{label}">{title}{body}</svg>'


def learning(items: Sequence[Curve], what: str = "Validation accuracy", of: str = "method") -> str:
    """Learning curves: in one chart where that is readable, else in a small chart each."""
    return curves(items, what, of) if len(items) <= MOST_CURVES else multiples(items, what, of)


def curves(items: Sequence[Curve], what: str = "Validation accuracy", of: str = "method") -> str:
    """Learning curves with their legend: the mean over seeds, and a band from the lowest to the highest seed."""
    points = [p for c in items for line in c.lines for p in line]
    rounds = nice(min(p[0] for p in points), max(p[0] for p in points), 6, whole=True)
    marks = shares([p[1] for p in points])
    at_x = linear(min(p[0] for p in points), max(max(p[0] for p in points), rounds[0] + 1), LEFT + 8, WIDTH - RIGHT - 8)
    at_y = linear(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    body, last = [], max(p[0] for p in points)
    for c in items:
        mean = c.middle()
        path = _path(mean, at_x, at_y)
        body.append(_band(c, at_x, at_y))
        body.append(f'<path class="line c{c.tone % TONES}" d="{path}"><title>{esc(c.name)}</title></path>')
        body += [
            marker(c.tone, at_x(x), at_y(y), c.tone, f"{c.name}, round {x:g}: {percent(y)} %") for x, y in _some(mean)
        ]
    body.append(_readouts(items, at_x, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM))
    xs = [(at_x(t), f"{t:g}") for t in rounds if points and min(p[0] for p in points) <= t <= last]
    ys = [(at_y(t), percent(t)) for t in marks]
    label = f"Line chart of {what[0].lower()}{what[1:]} per round for {counted(len(items), of)}"
    chart = _frame(label, xs, ys, "Round", f"{what}, %", "".join(body))
    return chart + legend([(c.name, c.tone, c.tone) for c in items], "Lines")


def multiples(items: Sequence[Curve], what: str, of: str) -> str:
    """A small chart per method on one scale: its own lines in colour, those of all the others behind them."""
    points = [p for c in items for line in c.lines for p in line]
    first, last = min(p[0] for p in points), max(p[0] for p in points)
    marks = shares([p[1] for p in points])
    at_x = linear(first, max(last, first + 1), 34, SMALL - 4)
    at_y = linear(marks[0], marks[-1], LOW - 20, 8)
    behind = "".join(_path(c.middle(), at_x, at_y) for c in items)
    name = f"behind-{zlib.crc32(behind.encode()):x}"
    grid = "".join(
        f'<path class="grid" d="M34 {at_y(t):.1f}H{SMALL - 4}"/>'
        f'<text class="tick" x="30" y="{at_y(t) + 4:.1f}" text-anchor="end">{percent(t)}</text>'
        for t in (marks[0], marks[len(marks) // 2], marks[-1])
    )
    for x, anchor, round_ in ((34, "start", first), (SMALL - 4, "end", last)):
        grid += f'<text class="tick" x="{x}" y="{LOW - 5}" text-anchor="{anchor}">{round_:g}</text>'
    shared = f'<g id="{name}">{grid}<path class="behind" d="{behind}"/></g>'
    panels = []
    for i, c in enumerate(items):
        own = _path(c.middle(), at_x, at_y)
        end = sum(line[-1][1] for line in c.lines) / len(c.lines)
        body = shared if i == 0 else f'<use href="#{name}"/>'
        label = f"{what} of {c.name}: {percent(round(end, 3))} % at the end"
        body += f'{_band(c, at_x, at_y)}<path class="line c{c.tone % TONES}" d="{own}"/>'
        body += _readouts([c], at_x, SMALL - 4, 8, LOW - 20)
        head = f"<h4>{esc(c.name)} <small>{percent(round(end, 3))} %</small></h4>"
        panels.append(f"<div>{head}{drawing('panel', SMALL, LOW, label, body, titled=False)}</div>")
    note = f"{what} in % against the round, one chart per {of}; grey lines are the others."
    return f'<p class="muted">{note}</p><div class="panels">{"".join(panels)}</div>'


def _band(curve: Curve, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    """From the lowest to the highest seed; nothing where there is one."""
    if len(curve.lines) < 2:
        return ""
    found = curve.spread()
    edge = [(x, high) for x, _, _, high in found] + [(x, low) for x, _, low, _ in reversed(found)]
    return f'<path class="band c{curve.tone % TONES}" d="{_path(edge, at_x, at_y)}z"/>'


def _readouts(
    items: Sequence[Curve], at_x: Callable[[float], float], end: float, top: float, foot: float, most: int = 50
) -> str:
    """An upright strip per round that shows the numbers of all lines while the pointer is over it."""
    found = {c.name: {x: (m, low, high) for x, m, low, high in c.spread()} for c in items}
    rounds = sorted({x for own in found.values() for x in own})
    rounds = rounds[:: max(math.ceil(len(rounds) / most), 1)]
    half = (at_x(rounds[-1]) - at_x(rounds[0])) / max(len(rounds) - 1, 1) / 2 + 0.1
    out = []
    for x in rounds:
        said = [
            f"{c.name if len(items) > 1 else ''} {_said(*found[c.name][x])}".strip()
            for c in items
            if x in found[c.name]
        ]
        step = 15 if len(items) > 1 else 0
        lines = "".join(
            f'<text class="c{c.tone % TONES}" x="{end:.0f}" y="{foot - 8 - step * (len(said) - i):.0f}" '
            f'text-anchor="end">{esc(text)}</text>'
            for i, (c, text) in enumerate(zip([c for c in items if x in found[c.name]], said, strict=True))
        )
        head = f'<text x="{end:.0f}" y="{foot - 8 - step * (len(said) + 1) - 15 * (not step):.0f}" text-anchor="end">'
        out.append(
            f'<g class="at"><rect x="{at_x(x) - half:.1f}" y="{top}" width="{2 * half:.1f}" height="{foot - top:.0f}"/>'
            f'<path d="M{at_x(x):.1f} {top}V{foot}"/>{head}round {x:g}</text>{lines}</g>'
        )
    return "".join(out)


def _said(middle: float, low: float, high: float) -> str:
    """`81.2 (80.4 to 82.0)`."""
    return f"{100 * middle:.1f}" + (f" ({100 * low:.1f} to {100 * high:.1f})" if high > low else "")


def _path(line: Sequence[tuple[float, float]], at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line)


def _some(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most five points of a line, always the last: where its marks go."""
    step = max((len(line) - 1) // 4, 1)
    return list(line[::-1][::step])


def _uploads(values: Sequence[float]) -> tuple[Callable[[float], float], list[Tick]]:
    """A scale for bytes: from zero, or logarithmic with a place for zero when they differ a lot."""
    start, end = LEFT + 36.0, WIDTH - RIGHT - 36.0
    above = [v for v in values if v > 0]
    if not above or max(above) / min(above) <= 30:
        marks = nice(0, max(above, default=1.0), 4)
        place = linear(marks[0], marks[-1], start, end)
        return place, [(place(m), size(m)) for m in (marks if above else [0.0])]
    powers = range(math.floor(math.log10(min(above))), math.ceil(math.log10(max(above))) + 1)
    zero = len(above) < len(values)
    logs = linear(powers[0], powers[-1], start + 80 * zero, end)
    shown = powers[:: math.ceil(len(powers) / 6)]
    return lambda v: logs(math.log10(v)) if v > 0 else start, [(start, size(0))] * zero + [
        (logs(p), size(10.0**p)) for p in shown
    ]


def scatter(dots: Sequence[Dot], x_label: str, y_label: str) -> str:
    """Accuracy against bytes; methods with the same upload stand side by side, numbered where colours run out."""
    at_x, xs = _uploads([d.x for d in dots])
    marks = shares([d.y for d in dots])
    at_y = linear(marks[0], marks[-1], HEIGHT - BOTTOM, TOP)
    methods = list(dict.fromkeys((d.name, d.tone) for d in dots))
    numbers = {name: i + 1 for i, (name, _) in enumerate(methods)} if len(methods) > TONES else {}
    columns: dict[int, list[str]] = {}
    for d in dots:
        names = columns.setdefault(round(at_x(d.x) / 12), [])
        names += [d.name] * (d.name not in names)
    body = []
    for column, names in columns.items():
        gap = min(18.0, _room(column, columns) / len(names))
        for i, name in enumerate(names):
            mine = [d for d in dots if d.name == name and round(at_x(d.x) / 12) == column]
            x = at_x(mine[0].x) + (i - (len(names) - 1) / 2) * gap
            ends = [at_y(d.y) for d in mine]
            body.append(f'<path class="range c{mine[0].tone % TONES}" d="M{x:.1f} {min(ends):.1f}V{max(ends):.1f}"/>')
            body += [marker(d.shape, x, at_y(d.y), d.tone, _title(d)) for d in mine]
            if numbers:
                body.append(f'<text x="{x:.1f}" y="{min(ends) - 8:.1f}" text-anchor="middle">{numbers[name]}</text>')
    ys = [(at_y(t), percent(t)) for t in marks]
    chart = _frame("Scatter of mean accuracy against upload", xs, ys, x_label, y_label, "".join(body))
    named = [(f"{numbers[n]} {n}" if numbers else n, tone, None) for n, tone in methods]
    kinds = list(dict.fromkeys((f"adapter {d.kind}", None, d.shape) for d in dots))
    note = '<p class="muted">Methods with nearly the same upload stand side by side.</p>'
    aside = note * any(len(names) > 1 for names in columns.values())
    return chart + legend(named, "Colours: methods") + legend(kinds, "Shapes: adapters") + aside


def _room(column: int, columns: Iterable[int]) -> float:
    """How wide the marks of a column may be without meeting those of the next."""
    away = [abs(column - other) * 12.0 for other in columns if other != column]
    edge = 2 * min(column * 12.0 - LEFT, WIDTH - RIGHT - column * 12.0)
    return max(min([*away, edge]) - 10, 30.0)


def _title(dot: Dot) -> str:
    return f"{dot.name}, {dot.kind}: {dot.y * 100:.1f} % for {size(dot.x)}"
