"""Accuracy without labels: how far each estimate is from the truth, and their curves side by side.

The report has this section only where a run had `analysis=true`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..board import Board
from ..style import details, esc, fixed, mean, num, table
from ..svg import drawing, legend, linear

WIDE, HIGH, LEFT, FOOT = 220, 120, 30, 8
"""A panel in pixels, and its margins."""
TRUTH, ESTIMATE = 0, 1
"""Their tones."""
Row = Mapping[str, Any]


def section(board: Board) -> str:
    """Errors and curves of all runs that have them; nothing where none has."""
    parts = []
    for method, run in zip(board.names, board.runs, strict=True):
        kept = (run.get("analysis") or {}).get("estimates") or {}
        if body := _run(kept):
            parts.append((f"{method}, seed {run['results'].get('seed')}", body))
    if not parts:
        return ""
    note = (
        "Estimates are fitted on the clients' labelled validation data; labels of the streams are read for the true "
        "accuracy alone. Errors are in points of accuracy, per client, mean over clients; the least of a line is bold. "
        "The draw is the error of who knows each client's expected accuracy, but not its samples: they are few."
    )
    folds = [details(name, "estimated and true accuracy", body, i == 0) for i, (name, body) in enumerate(parts)]
    return f'<p class="muted">{note}</p>{"".join(folds)}'


def _run(kept: Mapping[str, Any]) -> str:
    rows: list[Row] = [r for r in kept.get("rows") or () if math.isfinite(num(r.get("error")))]
    if not rows:
        return ""
    names = list(dict.fromkeys(str(r.get("estimator")) for r in rows))
    best = _best(rows, names)
    error = mean([num(r["error"]) for r in rows if r["estimator"] == best])
    luck = [num(r["draw"]) for r in rows if r["estimator"] == best and math.isfinite(num(r.get("draw")))]
    beside = f" The draw of samples alone is worth {fixed(100 * mean(luck))}." if luck else ""
    far = f"{fixed(100 * error)} points off."
    lead = f"<p>Over all adapters and streams, <b>{esc(best)}</b> is nearest: {far}{beside}</p>"
    return lead + _errors(rows, names) + _panels(kept.get("curves") or (), best)


def _best(rows: Sequence[Row], names: Sequence[str]) -> str:
    """The estimate with the least mean error over these rows."""
    return min(names, key=lambda n: mean([num(r["error"]) for r in rows if r["estimator"] == n] or [math.inf]))


def _errors(rows: Sequence[Row], names: Sequence[str]) -> str:
    head = [("adapter", ""), ("stream", ""), *((esc(n), "n") for n in names), ("draw", "n")]
    pairs = dict.fromkeys((str(r.get("adapter")), str(r.get("stream"))) for r in rows)
    lines = []
    for adapter, stream in pairs:
        here = {str(r["estimator"]): r for r in rows if (str(r["adapter"]), str(r["stream"])) == (adapter, stream)}
        least = min(num(r["error"]) for r in here.values())
        luck = num(next(iter(here.values())).get("draw"))
        cells = [*(_cell(here.get(n), least) for n in names), f'<td class="n">{fixed(100 * luck)}</td>']
        lines.append(f"<th scope='row'>{esc(adapter)}</th><td>{esc(stream)}</td>{''.join(cells)}")
    return table("Mean absolute error of each estimate of accuracy, in points", head, lines)


def _cell(row: Row | None, least: float) -> str:
    if row is None:
        return '<td class="n">-</td>'
    text = fixed(100 * num(row["error"]))
    return f'<td class="n">{f"<b>{text}</b>" if num(row["error"]) == least else text}</td>'


def _panels(curves: Sequence[Row], best: str) -> str:
    """The truth and the best estimate along every stream that is long enough to have a curve."""
    panels = [_panel(c, best) for c in curves]
    if not any(panels):
        return ""
    key = legend([("true accuracy", TRUTH, None), (f"{best}, an estimate", ESTIMATE, None)], "Lines")
    note = "Accuracy in %, mean over clients, smoothed over a few batches, from the stream's first batches to its last."
    return f'<figure><div class="panels">{"".join(panels)}</div>{key}<figcaption>{note}</figcaption></figure>'


def _panel(entry: Row, best: str) -> str:
    lines = entry.get("curves") or {}
    truth, estimate = ([num(v) for v in lines.get(n) or ()] for n in ("truth", best))
    if min(len(truth), len(estimate)) < 2:
        return ""
    at_x, at_y = linear(0, len(truth) - 1, LEFT, WIDE - 4), linear(0, 1, HIGH - FOOT, 8)
    grid = "".join(
        f'<path class="grid" d="M{LEFT} {at_y(v):.1f}H{WIDE - 4}"/>'
        f'<text class="tick" x="{LEFT - 4}" y="{at_y(v) + 4:.1f}" text-anchor="end">{100 * v:.0f}</text>'
        for v in (0.0, 0.5, 1.0)
    )
    paths = []
    for values, tone in ((truth, TRUTH), (estimate, ESTIMATE)):
        points = [f"{at_x(i):.1f} {at_y(v):.1f}" for i, v in enumerate(values) if math.isfinite(v)]
        paths.append(f'<path class="line c{tone}" d="M{"L".join(points)}"/>' if points else "")
    label = f"{entry.get('adapter')} on {entry.get('stream')}: true accuracy and the estimate {best}"
    head = f"<h4>{esc(entry.get('adapter'))} <small>{esc(entry.get('stream'))}</small></h4>"
    return f"<div>{head}{drawing('panel', WIDE, HIGH, label, grid + ''.join(paths), titled=False)}</div>"
