"""The report: run folders' JSON as one HTML file that needs no network and reads without JavaScript."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from . import analysis, svg
from .style import esc, fixed, mean, message, num, page, pct, plural, setup, size, span, spread, table, views, words

SELECTIONS = {"last": "Last round", "validation": "Validation-selected round"}
IGNORED = {"seed", "device", "backend", "adapters", "checkpoint_every", "analysis"}
"""Settings in which runs of one row may differ."""

Run = Mapping[str, Any]


@dataclass
class Row:
    """One method with one adapter: its table rows by selection, stream and seed, and its cost by seed."""

    name: str
    adapter: str
    tone: int
    cells: dict[tuple[str, str], dict[Any, Mapping[str, Any]]] = field(default_factory=dict)
    costs: dict[Any, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The row in words."""
        return f"{self.name} " + ("without adaptation" if self.adapter == "none" else f"with {self.adapter}")

    def by_seed(self, selection: str, streams: Sequence[str], key: str = "accuracy") -> list[float]:
        """One number per seed, averaged over streams; NaN unless every stream has the same seeds."""
        found = [self.cells.get((selection, s), {}) for s in streams]
        if any(f.keys() != found[0].keys() for f in found):
            return [math.nan]
        return [mean(num(f[seed].get(key)) for f in found) for seed in (found[0] if found else ())]

    def score(self, selection: str, streams: Sequence[str]) -> float:
        """Accuracy, averaged over seeds and streams."""
        return mean(self.by_seed(selection, streams))

    def cost(self, key: str) -> float:
        """A number of the cost card, averaged over seeds."""
        return mean(num(c.get(key)) for c in self.costs.values())


@dataclass
class Board:
    """All that the page shows of several runs, gathered once."""

    runs: Sequence[Run]
    names: list[str]
    rows: list[Row] = field(default_factory=list)
    tones: dict[str, int] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)
    selections: dict[str, str] = field(default_factory=dict)

    def tone(self, name: str) -> int:
        """A method's colour: the same in every chart."""
        return self.tones.setdefault(name, len(self.tones))

    def shown(self, selection: str) -> list[Row]:
        """The rows that have results for a selection."""
        return [r for r in self.rows if any(s == selection for s, _ in r.cells)]


def _settings(value: Any, path: str = "") -> dict[str, str]:
    """A configuration, flat: `method.mu` -> `0.1`."""
    if isinstance(value, Mapping):
        inner = [(k, v) for k, v in value.items() if k not in IGNORED]
    elif isinstance(value, list):
        inner = [(str(i), v) for i, v in enumerate(value)]
    else:
        return {path.removesuffix(".type"): value if isinstance(value, str) else json.dumps(value)}
    return {k: v for name, item in inner for k, v in _settings(item, f"{path}.{name}" if path else name).items()}


def _suffixes(runs: Sequence[Run]) -> list[str]:
    """What tells runs of one label apart, where they differ in more than the seed: ` [rounds=5]`."""
    flat = [_settings((r.get("config") or {}).get("experiment") or {}) for r in runs]
    groups: dict[str, list[dict[str, str]]] = {}
    for run, mine in zip(runs, flat, strict=True):
        kinds = groups.setdefault(_label(run), [])
        kinds += [mine] * (mine not in kinds)
    return [_suffix(mine, groups[_label(run)]) for run, mine in zip(runs, flat, strict=True)]


def _suffix(mine: Mapping[str, str], kinds: Sequence[Mapping[str, str]]) -> str:
    paths = [p for p in dict.fromkeys(p for f in kinds for p in f) if len({f.get(p) for f in kinds}) > 1]
    said = [f"{p}={mine.get(p, 'unset')}" for p in paths[:3]]
    said += [f"variant {kinds.index(mine) + 1}"] * (len(paths) > 3)
    return f" [{', '.join(said)}]" if said else ""


def _label(run: Run) -> str:
    return str(run["results"].get("label") or _folder(run))


def _folder(run: Run) -> str:
    return PurePath(str(run.get("path", "run"))).name


def _joined(entry: Mapping[str, Any]) -> str:
    method, personal = str(entry.get("method")), entry.get("personal")
    return method if personal in (None, "", "none") else f"{method}+{personal}"


def collect(runs: Sequence[Run]) -> Board:
    """Group the runs' tables: one row per method and adapter, seeds side by side; the first of a repeat counts."""
    suffixes = _suffixes(runs)
    board = Board(runs, [_label(r) + s for r, s in zip(runs, suffixes, strict=True)])
    rows: dict[tuple[str, str], Row] = {}
    for run, suffix in zip(runs, suffixes, strict=True):
        results = run["results"]
        for t in results.get("table") or ():
            name, adapter = _joined(t) + suffix, str(t.get("adapter"))
            row = rows.setdefault((name, adapter), Row(name, adapter, board.tone(name)))
            seed = t.get("seed", results.get("seed"))
            row.cells.setdefault((str(t.get("selection", "last")), str(t.get("stream"))), {}).setdefault(seed, t)
            row.costs.setdefault(seed, results.get("cost") or {})
    board.rows = list(rows.values())
    keys = [k for r in board.rows for k in r.cells]
    board.streams = list(dict.fromkeys(stream for _, stream in keys))
    found = dict.fromkeys(s for s, _ in keys)
    board.selections = {s: SELECTIONS.get(s, s) for s in sorted(found, key=lambda s: [*SELECTIONS, s].index(s))}
    return board


def _notes(board: Board) -> str:
    """Warnings: runs that repeat a seed, and runs on different data."""
    data: dict[Any, set[Any]] = {}
    seen: dict[tuple[str, Any], Run] = {}
    said = []
    for name, run in zip(board.names, board.runs, strict=True):
        seed, card = run["results"].get("seed"), run["results"].get("data") or {}
        data.setdefault(seed, set()).add((card.get("name"), card.get("hash")))
        if seen.setdefault((name, seed), run) is not run:
            said.append(f"{esc(_folder(run))} repeats {esc(name)} with seed {esc(seed)}; only the first is counted.")
    mixed = [seed for seed, kinds in data.items() if len(kinds) > 1]
    said += [f"Runs of seed {words(mixed)} do not share the same data: compare them with care."] * bool(mixed)
    return "".join(f'<p class="note">{s}</p>' for s in said)


# --- the page, from top to bottom -----------------------------------------------------------------------------------


def _summary(board: Board) -> str:
    results = [r["results"] for r in board.runs]
    data = words(dict.fromkeys((r.get("data") or {}).get("name") for r in results))
    clients = span((r.get("data") or {}).get("clients") for r in results)
    rounds = span((r.get("cost") or {}).get("rounds") for r in results)
    seeds = list(dict.fromkeys(r.get("seed") for r in results))
    said = f"{plural(len(board.runs), 'run')} of {plural(len(set(board.names)), 'method')} on {data}: "
    said += f"{clients} clients, {rounds} rounds, seed{'s' * (len(seeds) != 1)} {words(seeds)}."
    if not board.selections:
        return f'<p class="lede">{said} There are no results yet.</p>'
    tiles = "".join(_winner(board, s) for s in board.streams)
    said += f" Best on each stream ({esc(next(iter(board.selections.values()))).lower()}):"
    return f'<p class="lede">{said}</p><ul class="best-of">{tiles}</ul>'


def _winner(board: Board, stream: str) -> str:
    """One sentence: which row is best on a stream, and by how much."""
    selection = next(iter(board.selections))
    ranked = [r for r in board.rows if math.isfinite(r.score(selection, [stream]))]
    ranked.sort(key=lambda r: -r.score(selection, [stream]))
    if not ranked:
        return f"<li>On <b>{esc(stream)}</b>, no method has a number.</li>"
    first, score = ranked[0], ranked[0].score(selection, [stream])
    said = f"On <b>{esc(stream)}</b>, <b>{esc(first.title)}</b> is best"
    if len(ranked) > 1:
        gap = round(score, 3) - round(ranked[1].score(selection, [stream]), 3)
        said += f", {gap * 100:.1f} points ahead of " if gap > 0 else ", level with "
        said += esc(ranked[1].title)
        noise = max([s for r in ranked[:2] if math.isfinite(s := spread(r.by_seed(selection, [stream])))], default=0)
        said += " (less than the spread over seeds)" * (0 < gap < noise)
    return f'<li><span class="figure">{pct(score)}<small> %</small></span> {said}.</li>'


def _cell(row: Row, selection: str, streams: Sequence[str], overall: bool, best: bool) -> str:
    """Accuracy, its spread over clients (on a single stream), and its spread over seeds."""
    values, hint = row.by_seed(selection, streams), ""
    score = mean(values)
    text = f"<b>{pct(score)}</b>"
    if not overall and math.isfinite(score):
        std, loss, ece = (mean(row.by_seed(selection, streams, k)) for k in ("std", "loss", "ece"))
        text += f' <span class="pm">&plusmn; {pct(std)}</span>'
        rounds = span(row.by_seed(selection, streams, "round"))
        hint = f' title="loss {fixed(loss, 3)}, ECE {fixed(ece, 3)}, round {rounds}"'
    text += '<span class="vh"> best</span>' * best
    text += f"<small>seeds &plusmn; {pct(spread(values))}</small>" * (len(values) > 1)
    order = repr(score) if math.isfinite(score) else ""
    return f'<td class="num{" best" * best}" data-v="{order}"{hint}>{text}</td>'


def _board(board: Board, selection: str) -> str:
    """The headline table for one selection."""
    rows = board.shown(selection)
    lines = [f'<th scope="row">{esc(r.name)}</th><td>{esc(r.adapter)}</td>' for r in rows]
    for streams, overall in [*(([s], False) for s in board.streams), (board.streams, True)]:
        scores = [round(r.score(selection, streams), 3) for r in rows]
        most = max((v for v in scores if math.isfinite(v)), default=None)
        for i, row in enumerate(rows):
            lines[i] += _cell(row, selection, streams, overall, scores[i] == most)
    for i, row in enumerate(rows):
        up = row.cost("up_bytes_per_client")
        lines[i] += f'<td class="num" data-v="{up if math.isfinite(up) else ""}">{size(up)}</td>'
    names = [*map(esc, board.streams), "Mean over streams", "Upload per client and round"]
    head = [("Method", ""), ("Adapter", ""), *((n, "num") for n in names)]
    return table(f"Results, {board.selections[selection]}", head, lines, "board sortable")


def _results(board: Board) -> str:
    said = "Accuracy in %, mean over clients &plusmn; standard deviation over clients."
    counts = {len(c) for r in board.rows for c in r.cells.values()}
    if max(counts, default=0) > 1:
        said += f" Both are means over seeds ({span(counts)} per cell); &lsquo;seeds &plusmn;&rsquo; is the sample"
        said += " standard deviation of the accuracy over seeds."
    said += " The best of every column is marked; upload is what one client sends in one round."
    lines = []
    for run, name in zip(board.runs, board.names, strict=True):
        for f in run["results"].get("refused") or ():
            what = f"{_joined(f)}{name.removeprefix(_label(run))} with {f.get('adapter')}"
            lines.append(f"<li><b>{esc(what)}</b>: {esc(f.get('reason'))}</li>")
    listed = f"<h3>Refused combinations</h3><ul>{''.join(dict.fromkeys(lines))}</ul>" if lines else ""
    return f'<p class="muted">{said}</p>{views(board.selections, lambda s: _board(board, s))}{listed}'


def _learning(board: Board) -> str:
    """Curves of all runs; trainings that are equal to the last digit are one curve."""
    lines: dict[str, list[tuple[tuple[float, float], ...]]] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        points = ((num(m.get("round")), num(m.get("val_accuracy"))) for m in run.get("metrics") or ())
        if kept := tuple(p for p in points if math.isfinite(p[0] + p[1])):
            lines.setdefault(name, []).append(kept)
    same: dict[Any, list[str]] = {}
    for name, of_seeds in lines.items():
        same.setdefault(tuple(of_seeds), []).append(name)
    curves = [svg.Curve(" = ".join(names), board.tone(names[0]), of_seeds) for of_seeds, names in same.items()]
    if not curves:
        return "<p>No validation accuracy was recorded.</p>"
    more = " Lines of one colour are seeds." * any(len(c.lines) > 1 for c in curves)
    caption = f"<figcaption>Mean over clients, on validation data.{more}</figcaption>"
    rows = [
        (name, board.tone(name), run.get("metrics") or ()) for name, run in zip(board.names, board.runs, strict=True)
    ]
    return f"<figure>{svg.curves(curves)}{caption}</figure>{analysis.stream_curves(rows, board.streams)}"


def _clients(board: Board, selection: str) -> str:
    def pooled(row: Row, stream: str) -> list[float]:
        return [num(v) for t in row.cells.get((selection, stream), {}).values() for v in t.get("per_client") or ()]

    rows = [(r.name, r.adapter, r.tone, [pooled(r, s) for s in board.streams]) for r in board.shown(selection)]
    return svg.strips(board.streams, rows)


def _upload(board: Board, selection: str) -> str:
    kinds = list(dict.fromkeys(r.adapter for r in board.rows))
    dots = [
        svg.Dot(r.name, r.adapter, r.tone, kinds.index(r.adapter), r.cost("up_bytes_total"), y)
        for r in board.shown(selection)
        if math.isfinite((y := r.score(selection, board.streams)) + r.cost("up_bytes_total"))
    ]
    label = "Mean accuracy over streams, %"
    return svg.scatter(dots, "Uploaded in training, all clients", label) if dots else "<p>There is nothing to draw.</p>"


def _messages(board: Board) -> str:
    costs: dict[str, Any] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        costs.setdefault(name, run["results"].get("cost") or {})
    return "".join(message(name, cost) for name, cost in costs.items())


def _data(board: Board) -> str:
    cards: dict[Any, Any] = {}
    for run in board.runs:
        card = run["results"].get("data") or {}
        cards.setdefault((card.get("name"), card.get("hash")), card)
    return "".join(svg.data_card(card, i == 0) for i, card in enumerate(cards.values()))


def render(runs: Sequence[Run], title: str = "acclimate report") -> str:
    """The page: `runs` hold path, config, results, metrics and env as read from run folders."""
    board = collect(runs)
    dots = '<p class="muted">One dot per client and seed; the upright line is their mean.</p>'
    told = [
        (f"{n}, seed {r['results'].get('seed')}", r.get("analysis") or {})
        for n, r in zip(board.names, runs, strict=True)
    ]
    sections = {
        "Results": _results(board),
        "Learning curves": _learning(board),
        "What the adapter did": analysis.section(told, board.streams),
        "Every client": dots + views(board.selections, lambda s: _clients(board, s)),
        "Accuracy against upload": views(board.selections, lambda s: _upload(board, s)),
        "What left the client": _messages(board),
        "Data": _data(board),
        "Configuration and environment": "".join(map(setup, board.names, runs)),
    }
    return page(title, _summary(board) + _notes(board), {name: part for name, part in sections.items() if part})
