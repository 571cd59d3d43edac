"""Small charts as inline SVG: curves, dots, a scatter, and the data card with its bubbles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .style import DASH, TONES, details, esc, facts, mean, num, pct, plural, size, span, table

WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 40, 62
STRIP = 168
MOST_BUBBLES = 2000
MOST_TITLES = 400

Tick = tuple[float, str]
"""A place along an axis, in pixels, and its label (escaped)."""


@dataclass(frozen=True)
class Curve:
    """One method's learning curve: `lines` holds one list of (round, share) per seed."""

    name: str
    tone: int
    lines: tuple[tuple[tuple[float, float], ...], ...]


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
    """About `count` round numbers that enclose low..high; only whole ones where told."""
    span = high - low or max(abs(high), 1.0) * 0.1
    raw = max(span / count, float(whole))
    unit = 10.0 ** math.floor(math.log10(raw))
    steps = [m * unit for m in (1, 2, 2.5, 5, 10) if not whole or (m * unit) % 1 == 0]
    step = next(s for s in steps if s >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]


def _shares(values: Sequence[float]) -> list[float]:
    """Ticks for shares, kept within 0..1."""
    ticks = [t for t in nice(min(values), max(values)) if 0 <= t <= 1]
    return ticks if len(ticks) > 1 else [0.0, 0.5, 1.0]


def linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A scale: `low` is at `start`, `high` at `end`."""
    span = high - low or 1.0
    return lambda v: start + (v - low) / span * (end - start)


def _percent(value: float) -> str:
    return f"{value * 100:.4g}"


def marker(shape: int, x: float, y: float, tone: int, title: str = "", r: float = 5.0) -> str:
    """A small filled mark; six shapes, so that nothing is told by colour alone. `title` is plain text."""
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


def legend(items: Sequence[tuple[str, int | None, int | None]], label: str) -> str:
    """A list of (name, tone, shape): a line without shape, a neutral mark without tone."""
    rows = []
    for name, tone, shape in items:
        line = f'<path class="line c{(tone or 0) % TONES}" d="M1 7h24"/>' if tone is not None else ""
        mark = marker(shape, 13, 7, 7 if tone is None else tone) if shape is not None else ""
        rows.append(
            f'<li><svg class="swatch" viewBox="0 0 26 14" aria-hidden="true">{line}{mark}</svg>{esc(name)}</li>'
        )
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


def drawing(cls: str, width: float, height: float, label: str, body: str) -> str:
    """An SVG element with its text alternative; `label` is plain text, `body` is SVG."""
    said = esc(label)
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="{cls}" {box} role="img" aria-label="{said}"><title>{said}</title>{body}</svg>'


def curves(items: Sequence[Curve], what: str = "Validation accuracy", of: str = "method") -> str:
    """Learning curves with their legend; lines of one method's seeds share its colour and mark."""
    points = [p for c in items for line in c.lines for p in line]
    rounds = nice(min(p[0] for p in points), max(p[0] for p in points), 6, whole=True)
    shares = _shares([p[1] for p in points])
    at_x = linear(min(p[0] for p in points), max(max(p[0] for p in points), rounds[0] + 1), LEFT + 8, WIDTH - RIGHT - 8)
    at_y = linear(shares[0], shares[-1], HEIGHT - BOTTOM, TOP)
    body, last = [], max(p[0] for p in points)
    for c in items:
        for line in c.lines:
            path = "L".join(f"{at_x(x):.1f} {at_y(y):.1f}" for x, y in line)
            body.append(f'<path class="line c{c.tone % TONES}" d="M{path}"><title>{esc(c.name)}</title></path>')
            body += [
                marker(c.tone, at_x(x), at_y(y), c.tone, f"{c.name}, round {x:g}: {_percent(y)} %")
                for x, y in _some(line)
            ]
    xs = [(at_x(t), f"{t:g}") for t in rounds if points and min(p[0] for p in points) <= t <= last]
    ys = [(at_y(t), _percent(t)) for t in shares]
    label = f"Line chart of {what[0].lower()}{what[1:]} per round for {plural(len(items), of)}"
    chart = _frame(label, xs, ys, "Round", f"{what}, %", "".join(body))
    return chart + legend([(c.name, c.tone, c.tone) for c in items], "Lines")


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
    """Accuracy against bytes; methods with the same upload stand side by side."""
    at_x, xs = _uploads([d.x for d in dots])
    shares = _shares([d.y for d in dots])
    at_y = linear(shares[0], shares[-1], HEIGHT - BOTTOM, TOP)
    columns: dict[int, list[str]] = {}
    for d in dots:
        names = columns.setdefault(round(at_x(d.x) / 12), [])
        names += [d.name] * (d.name not in names)
    body = []
    for column, names in columns.items():
        gap = min(14.0, 60.0 / len(names))
        for i, name in enumerate(names):
            mine = [d for d in dots if d.name == name and round(at_x(d.x) / 12) == column]
            x = at_x(mine[0].x) + (i - (len(names) - 1) / 2) * gap
            ends = [at_y(d.y) for d in mine]
            body.append(f'<path class="range c{mine[0].tone % TONES}" d="M{x:.1f} {min(ends):.1f}V{max(ends):.1f}"/>')
            body += [marker(d.shape, x, at_y(d.y), d.tone, _said(d)) for d in mine]
    ys = [(at_y(t), _percent(t)) for t in shares]
    chart = _frame("Scatter of mean accuracy against upload", xs, ys, x_label, y_label, "".join(body))
    methods = list(dict.fromkeys((d.name, d.tone, None) for d in dots))
    kinds = list(dict.fromkeys((f"adapter {d.kind}", None, d.shape) for d in dots))
    note = '<p class="muted">Methods with nearly the same upload stand side by side.</p>'
    aside = note * any(len(names) > 1 for names in columns.values())
    return chart + legend(methods, "Colours: methods") + legend(kinds, "Shapes: adapters") + aside


def _said(dot: Dot) -> str:
    return f"{dot.name}, {dot.kind}: {dot.y * 100:.1f} % for {size(dot.x)}"


Strip = Sequence[float]
"""The clients' accuracies of one row on one stream."""


def strips(streams: Sequence[str], rows: Sequence[tuple[str, str, int, Sequence[Strip]]]) -> str:
    """A table of dot strips on one scale: per row its name, its adapter, its tone and a strip per stream."""
    every = [v for *_, cells in rows for values in cells for v in values if math.isfinite(v)]
    marks = _shares(every) if every else [0.0, 1.0]
    ends = f'<span class="axis"><span>{_percent(marks[0])} %</span><span>{_percent(marks[-1])} %</span></span>'
    lines = []
    for name, adapter, tone, cells in rows:
        drawn = [_strip(v, marks, tone, f"{name}, {adapter}, {s}") for s, v in zip(streams, cells, strict=True)]
        lines.append(f'<th scope="row">{esc(name)}</th><td>{esc(adapter)}</td>' + "".join(drawn))
    head = [("Method", ""), ("Adapter", ""), *((esc(s) + ends, "") for s in streams)]
    return table("Accuracy of every client", head, lines, "board strips")


def _strip(values: Strip, marks: Sequence[float], tone: int, label: str) -> str:
    """Dots, one per client, on three levels so that near ones do not hide each other; an upright line is their mean."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return f"<td>{DASH}</td>"
    at = linear(marks[0], marks[-1], 6, STRIP - 6)
    dots = "".join(f"M{at(v):.1f} {(10, 5, 15)[i % 3]}h0" for i, v in enumerate(sorted(finite)))
    ends = f"{pct(min(finite))} to {pct(max(finite))}"
    body = f'<path class="grid" d="M2 10H{STRIP - 2}"/><path class="dots c{tone % TONES}" d="{dots}"/>'
    body += f'<path class="mean" d="M{at(mean(finite)):.1f} 2V18"/>'
    said = f"{label}: {len(finite)} values, {ends} %"
    return f"<td>{drawing('strip', STRIP, 20, said, body)}<small>{ends}</small></td>"


def bubbles(counts: Sequence[Sequence[float]], classes: Sequence[str], label: str) -> str:
    """Clients across, classes down, the area of a bubble for how many examples. Wide federations are cut short."""
    shown = counts[: max(MOST_BUBBLES // max(len(classes), 1), 1)]
    cell, left, top = 24, 24 + 7 * min(max(map(len, classes), default=0), 15), 34
    most = max((n for row in shown for n in row), default=0) or 1
    titled = len(shown) * len(classes) <= MOST_TITLES
    parts = [f'<text x="{left}" y="12">Client</text>']
    every = math.ceil(len(shown) / 30)
    for i in range(0, len(shown), every):
        parts.append(f'<text x="{left + (i + 0.5) * cell:.0f}" y="{top - 6}" text-anchor="middle">{i}</text>')
    for k, name in enumerate(classes):
        short = name if len(name) <= 15 else name[:14] + "\u2026"
        parts.append(
            f'<text x="{left - 10}" y="{top + (k + 0.5) * cell + 4:.0f}" text-anchor="end">{esc(short)}</text>'
        )
    for i, row in enumerate(shown):
        for k, n in enumerate(row[: len(classes)]):
            if n > 0:
                title = f"<title>client {i}, {esc(classes[k])}: {n:g}</title>" if titled else ""
                r = max(math.sqrt(n / most) * (cell / 2 - 1), 0.8)
                at = f'cx="{left + (i + 0.5) * cell:.0f}" cy="{top + (k + 0.5) * cell:.0f}" r="{r:.1f}"'
                parts.append(f'<circle class="bubble" {at}>{title}</circle>')
    width, height = left + len(shown) * cell + 6, top + len(classes) * cell + 6
    svg = drawing("plot", width, height, label, "".join(parts)).replace(
        "<svg", f'<svg width="{width}" height="{height}"', 1
    )
    note = f"Area is the number of training examples; the largest is {most:g}."
    note += f" The first {len(shown)} of {len(counts)} clients." * (len(shown) < len(counts))
    scroll = f'<div class="scroll" role="region" tabindex="0" aria-label="{esc(label)}">{svg}</div>'
    return f'{scroll}<p class="muted">{note}</p>'


def data_card(card: Mapping[str, Any], is_open: bool) -> str:
    """One federation: who holds how much of what, and the hashes that name it."""
    classes = [str(c) for c in card.get("classes") or ()]
    counts = [[num(n) for n in row] for row in (card.get("histograms") or {}).get("train") or ()]
    said = f"Training examples of {len(counts)} clients by class"
    plot = bubbles(counts, classes, said) if counts and classes else ""
    rows = []
    for name, part in (card.get("splits") or {}).items():
        sizes = [num(n) for n in part.get("sizes") or ()]
        cells = f'<td class="num">{span([sum(sizes)])}</td><td class="num">{span(sizes)}</td>'
        rows.append(f'<th scope="row">{esc(name)}</th>{cells}<td><code>{esc(part.get("hash"))}</code></td>')
    head = [("Split", ""), ("Examples", "num"), ("Per client", "num"), ("Hash", "")]
    known = {k: card[k] for k in ("examples", "clients", "shape", "domains", "hash") if k in card}
    known |= {f"stream {k}": v for k, v in (card.get("streams") or {}).items()}
    body = f"{plot}{facts(known.items())}{table('Splits', head, rows)}"
    return details(f"{card.get('name')}, seed {card.get('seed')}", "clients by class, splits and hashes", body, is_open)
