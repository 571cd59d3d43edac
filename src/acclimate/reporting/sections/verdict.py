"""The verdict: which row to deploy, what it cannot be told from, and what it costs; and the ranks it comes from.

It says no more than `acclimate compare` does: both judge by the paired intervals of `eval.paired`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...eval.ranking import RankedPlace, Ranking, rank
from ...ops.layout import counted
from ..board import Board, BoardRow, folder
from ..style import TONES, esc, fixed, pct, short, size, views, words
from ..svg import drawing, linear

NAMED = 4
"""How many rows a sentence names; of more, it says the number."""
LINE, WIDE, LONGEST = 38, 640, 44
"""A line of the rank plot and its width, in pixels, and how many letters of a name it has room for."""
BARS = 12
"""How many bars stand side by side."""
MOST = 24
"""How many rows the rank plot has room for."""


def rankings(board: Board) -> dict[str, Ranking]:
    """The ranking of every selection, where two rows can be paired."""
    found = {s: rank([r.entry(s) for r in board.shown(s)]) for s in board.selections}
    return {s: r for s, r in found.items() if r is not None}


def verdict(board: Board, ranking: Ranking | None, costs: bool = True) -> str:
    """The sentences on top of the page; without `costs` where times of several machines cannot be compared."""
    rows = {r.title: r for r in board.rows}
    if ranking is None:
        return _alone(board)
    first, level = ranking.places[0], [p for p in ranking.places[1:] if p.level]
    streams = list(ranking.by_stream)
    best = rows[first.title]
    title = first.title if best.adapter == "none" else f"{best.name} with adapter {best.adapter}"
    text = f"<b>Deploy {esc(title)}</b>: best mean over {counted(len(streams), 'stream')}, {pct(first.mean)} %"
    others = "every other row that is ranked" if ranking.left_out else "every other row"
    text += f"; within chance of {_some(level)}." if level else f", more than chance above {others}."
    parts = [text, *_on_streams(ranking, first), _cost(best) if costs else ""]
    parts += [_cheaper(rows, first, level)] if level and costs else []
    return f'<p class="verdict">{" ".join(p for p in parts if p)}</p>{_tiles(ranking)}{_doubts(ranking)}'


def _alone(board: Board) -> str:
    """What stands in the verdict's place where no two rows can be paired."""
    many = len(board.rows) > 1
    return '<p class="note">No two rows were tested on the same seeds and streams: there is no verdict.</p>' * many


def _some(places: Sequence[RankedPlace]) -> str:
    """Some rows in words."""
    if len(places) > NAMED:
        return f"{esc(places[0].title)} and {len(places) - 1} other rows"
    return words(p.title for p in places)


def _on_streams(ranking: Ranking, first: RankedPlace) -> list[str]:
    """Where the row that is best over all streams is best, level with the best, or worse."""
    worse, level, best = [], [], []
    for stream, places in ranking.by_stream.items():
        own = next(p for p in places if p.title == first.title)
        if own.rank == 1:
            best.append(stream)
        elif own.level:
            level.append(f"{stream} ({places[0].title})")
        else:
            worse.append(f"{stream} ({places[0].title}, {100 * (places[0].mean - own.mean):.1f} points above)")
    if len(ranking.by_stream) < 2:
        return []
    return [
        f"It is first on {words(best)}." if best else "",
        f"It is within chance of the best on {words(level)}." if level else "",
        f"It is below the best by more than chance on {words(worse)}." if worse else "",
    ]


def _cost(row: BoardRow) -> str:
    time, kept = row.served("ms_per_sample"), row.served("state_bytes")
    if not math.isfinite(time):
        return ""
    more = f", and {size(kept)} for its state" if kept > 0 else ""
    return f"It costs {fixed(time, 2)} ms per sample{more}."


def _cheaper(rows: dict[str, BoardRow], first: RankedPlace, level: Sequence[RankedPlace]) -> str:
    """The cheapest row that cannot be told from the first, where it costs at most half."""
    costs = {p.title: rows[p.title].served("ms_per_sample") for p in (first, *level)}
    known = {t: c for t, c in costs.items() if math.isfinite(c)}
    if first.title not in known:
        return ""
    least = min(known, key=known.__getitem__)
    if least == first.title or known[least] * 2 > known[first.title]:
        return ""
    return f"The cheapest row within chance of it is <b>{esc(least)}</b>, at {fixed(known[least], 2)} ms per sample."


def _tiles(ranking: Ranking) -> str:
    """A tile per stream: its best row, and the rows that are level with it."""
    tiles = []
    for stream, places in ranking.by_stream.items():
        level = [p for p in places[1:] if p.level]
        text = f"On <b>{esc(stream)}</b>, <b>{esc(places[0].title)}</b> is best"
        text += f", within chance of {_some(level)}" if level else ", more than chance above the rest"
        tiles.append(f'<li><span class="figure">{pct(places[0].mean)}<small> %</small></span> {text}.</li>')
    return f'<ul class="best-of">{"".join(tiles)}</ul>'


def _doubts(ranking: Ranking) -> str:
    """What the verdict does not cover."""
    out = ranking.besides()
    if len(ranking.seeds) < 2:
        out.append("One seed: the intervals cover the choice of clients, not that of splits and initial weights.")
    out += [f"{t} is not ranked: {why}." for t, why in list(ranking.left_out.items())[:8]]
    if len(ranking.left_out) > 8:
        out.append(f"{len(ranking.left_out) - 8} more rows are not ranked.")
    return "".join(f'<p class="note">{esc(s)}</p>' for s in out)


def section(board: Board, found: dict[str, Ranking]) -> str:
    """The rank plot: every row's mean rank over streams and seeds, and bars over rows that cannot be told apart."""
    if not any(len(r.places) > 2 for r in found.values()):
        return ""
    note = (
        "Rows from the best mean over streams down. The dot is the mean rank over streams and seeds, the line its best"
        " and worst stream; left is better. A bar at the right joins rows of which no two can be told apart by their"
        " paired 95 % intervals, the same that acclimate compare gives. Of many, some exceed chance by chance."
    )
    shown = {s: name for s, name in board.selections.items() if s in found}
    return f'<p class="muted">{note}</p>{views(shown, lambda s: _plot(board, found[s]))}'


def _plot(board: Board, ranking: Ranking) -> str:
    """Every name stands above its own line, so that it is whole on a phone too."""
    places, tones = ranking.places[:MOST], {r.title: r.tone for r in board.rows}
    groups = [(a, min(b, len(places) - 1)) for a, b in ranking.groups if a < len(places) - 1]
    end = WIDE - 10 - 9 * min(len(groups), BARS)
    at = linear(1, len(ranking.places), 12, end - 14)
    body = [_rank_line(ranking, p, 20 + i * LINE, at, tones[p.title]) for i, p in enumerate(places)]
    for k, (first, last) in enumerate(groups):
        body.append(f'<path class="tie" d="M{end + 9 * (k % BARS)} {8 + first * LINE}V{38 + last * LINE}"/>')
    foot = 34 + len(places) * LINE
    body.append(f'<text x="6" y="{foot - 8}">rank 1</text>')
    body.append(f'<text x="{end - 8}" y="{foot - 8}" text-anchor="end">rank {len(ranking.places)}</text>')
    label = f"Ranks of {counted(len(places), 'row')}; the first is {places[0].title}"
    more = f'<p class="muted">The first {MOST} of {len(ranking.places)} rows.</p>' * (len(ranking.places) > MOST)
    return drawing("chart ranks", WIDE, foot, label, "".join(body), titled=False) + more


def _rank_line(ranking: Ranking, place: RankedPlace, y: float, at: Callable[[float], float], tone: int) -> str:
    own = [p.rank for places in ranking.by_stream.values() for p in places if p.title == place.title]
    said = f"mean {100 * place.mean:.1f} %, mean rank {place.average_rank:.1f}"
    title = f"{place.title}: {said}, ranks {min(own)} to {max(own)} by stream"
    return (
        f'<g class="c{tone % TONES}"><title>{esc(title)}</title><text x="6" y="{y}">{esc(short(place.title, LONGEST))}'
        f'<tspan class="aside"> {100 * place.mean:.1f} %</tspan></text>'
        f'<path class="range" d="M{at(min(own)):.1f} {y + 12}H{at(max(own)):.1f}"/>'
        f'<circle class="mark" cx="{at(place.average_rank):.1f}" cy="{y + 12}" r="5"/></g>'
    )


def unfinished(names: Sequence[str]) -> str:
    """A note on runs that were asked for and are not in the page because they are not finished."""
    if not names:
        return ""
    return f'<p class="note">{counted(len(names), "run")} not finished, and not in this page: {words(names[:8])}.</p>'


def uneven(board: Board) -> str:
    """A note where methods do not have the same seeds."""
    seeds: dict[str, set[int]] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        seeds.setdefault(name, set()).add(run["results"].get("seed", folder(run)))
    most = set().union(*seeds.values()) if seeds else set()
    short = {name: own for name, own in seeds.items() if own != most}
    if not short:
        return ""
    said = [
        f"{name} has {words(sorted(own, key=str))} of seeds {words(sorted(most, key=str))}"
        for name, own in short.items()
    ]
    return f'<p class="note">Seeds are not the same for all: {esc("; ".join(said[:6]))}.</p>'
