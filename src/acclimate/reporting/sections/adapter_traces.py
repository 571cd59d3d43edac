"""What the adapters did, drawn: histograms of numbers per sample, and maps of features.

The report has this section only where a run had `analysis=true`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...ops.layout import counted
from ..board import Board, ordered
from ..style import TONES, details, esc, fixed, num, words
from ..svg import drawing, linear

GLYPHS = ("h0", "m-2.4-2.4l4.8 4.8m0-4.8l-4.8 4.8", "m-3 0h6m-3-3v6", "m-2.4 2h4.8l-2.4-4.4z", "m-2-2h4v4h-4z")
"""Marks of a map's streams, as SVG paths: a dot, a cross, a plus, a triangle, a square."""
WIDE, HIGH, FOOT = 220, 132, 18
"""A histogram in pixels, and the strip below it for the scale."""
SIDE, EDGE = 360, 10
"""A map in pixels, and the margin within."""


def section(board: Board) -> str:
    """The histograms and maps of all runs that have them; nothing where none has.

    Maps are large: only a method's first run has its maps drawn.
    """
    parts, mapped = [], set()
    for method, run in zip(board.names, board.runs, strict=True):
        analysis = run.get("analysis") or {}
        if body := _run(analysis, board.streams, method not in mapped):
            parts.append((f"{method}, seed {run['results'].get('seed')}", body))
            mapped |= {method} if analysis.get("maps") else set()
    if not parts:
        return ""
    note = "What adapters tell of every test sample at the last round, all clients together. Labels play no part in it."
    note += " Maps are drawn of every method's first seed." * bool(mapped)
    folds = [details(name, "per sample, by stream", body, i == 0) for i, (name, body) in enumerate(parts)]
    return f'<p class="muted">{note}</p>{"".join(folds)}'


def _run(analysis: Mapping[str, Any], order: Sequence[str], with_maps: bool) -> str:
    drawn = [_histograms(h, order) for h in analysis.get("histograms") or ()]
    maps: dict[str, list[Mapping[str, Any]]] = {}
    for m in (analysis.get("maps") or ()) if with_maps else ():
        maps.setdefault(str(m.get("adapter")), []).append(m)
    return "".join(drawn + [_maps(adapter, of, order) for adapter, of in maps.items()])


def _histograms(entry: Mapping[str, Any], order: Sequence[str]) -> str:
    """One adapter's number: a panel per stream, all on one scale."""
    streams = {s: h for s, h in (entry.get("streams") or {}).items() if num(h.get("samples")) > 0}
    most = max((num(n) / num(h["samples"]) for h in streams.values() for n in h["counts"]), default=0.0)
    if not most:
        return ""
    panels = [_bars(entry, s, streams[s], most, tone) for s, tone in ordered(list(streams), order).items()]
    title = f"<h3>{esc(entry.get('adapter'))}: {esc(entry.get('meaning'))}</h3>"
    caption = f"<figcaption>Share of a stream's samples; the highest bar is {most * 100:.0f} %.</figcaption>"
    return f'{title}<figure><div class="panels">{"".join(panels)}</div>{caption}</figure>'


def _bars(entry: Mapping[str, Any], stream: str, histogram: Mapping[str, Any], most: float, tone: int) -> str:
    low, high, counts = num(entry.get("low")), num(entry.get("high")), [num(n) for n in histogram["counts"]]
    total, base = num(histogram["samples"]), HIGH - FOOT
    at_x, at_y = linear(0, len(counts), 2, WIDE - 2), linear(0, most, base, 6)
    bars = []
    for i, n in enumerate(counts):
        top = at_y(n / total)
        bars.append(f"M{at_x(i) + 0.5:.1f} {base}V{top:.1f}H{at_x(i + 1) - 0.5:.1f}V{base}z" if n else "")
    body = (
        f'<path class="grid" d="M2 {base + 0.5}H{WIDE - 2}"/><path class="bars c{tone % TONES}" d="{"".join(bars)}"/>'
    )
    mean = num(histogram.get("mean"))
    if math.isfinite(mean):
        body += f'<path class="mean" d="M{linear(low, high, 2, WIDE - 2)(mean):.1f} {base}v5"/>'
    ends = [(2, "start", low), (WIDE / 2, "middle", (low + high) / 2), (WIDE - 2, "end", high)]
    body += "".join(f'<text x="{x:g}" y="{HIGH - 3}" text-anchor="{a}">{v:.3g}</text>' for x, a, v in ends)
    label = f"Histogram of {entry.get('meaning')} on {stream}: {counted(int(total), 'sample')}, mean {mean:.3g}"
    head = f"<h4>{esc(stream)} <small>mean {fixed(mean, 2)}</small></h4>"
    return f"<div>{head}{drawing('panel', WIDE, HIGH, label, body)}</div>"


def _maps(adapter: str, maps: Sequence[Mapping[str, Any]], order: Sequence[str]) -> str:
    """One adapter's vectors, a map each, side by side."""
    streams = ordered([s for m in maps for s in m.get("streams") or {}], order)
    panels = "".join(f"<div><h4>{esc(m.get('meaning'))}</h4>{_map(m, streams)}</div>" for m in maps)
    note = "t-SNE, every map on its own: near points are alike, directions and sizes mean nothing."
    title = f"<h3>{esc(adapter)}: {words(m.get('meaning') for m in maps)}</h3>"
    return (
        f'{title}<figure><div class="panels maps">{panels}</div>{_key(streams)}<figcaption>{note}</figcaption></figure>'
    )


def _map(entry: Mapping[str, Any], streams: Mapping[str, int]) -> str:
    at = linear(-1, 1, EDGE, SIDE - EDGE)
    body, count = [], 0
    for stream, i in streams.items():
        points = [(num(x), num(y)) for x, y in (entry.get("streams") or {}).get(stream) or ()]
        path = "".join(f"M{at(x):.1f} {at(-y):.1f}{_glyph(i)}" for x, y in points if math.isfinite(x + y))
        body.append(f'<path class="{_dress(i)}" d="{path}"><title>{esc(stream)}</title></path>' if path else "")
        count += len(points)
    frame = f'<path class="grid" fill="none" d="M.5 .5H{SIDE - 0.5}V{SIDE - 0.5}H.5z"/>'
    label = f"Map of {entry.get('meaning')}: {counted(count, 'sample')} of {counted(len(streams), 'stream')}"
    return drawing("panel", SIDE, SIDE, label, frame + "".join(body))


def _glyph(stream: int) -> str:
    return GLYPHS[stream % len(GLYPHS)]


def _dress(stream: int) -> str:
    return f"glyphs g{stream % len(GLYPHS)} c{stream % TONES}"


def _key(streams: Mapping[str, int]) -> str:
    """The legend of a map."""
    items = []
    for stream, i in streams.items():
        mark = f'<path class="{_dress(i)}" d="M13 7{_glyph(i)}"/>'
        items.append(f'<li><svg class="swatch" viewBox="0 0 26 14" aria-hidden="true">{mark}</svg>{esc(stream)}</li>')
    return f'<ul class="legend" aria-label="Streams">{"".join(items)}</ul>'
