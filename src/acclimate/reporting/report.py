"""The report: run folders' JSON as one HTML file that needs no network and reads without JavaScript."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from .board import Board, Run, collect, folder
from .page import page
from .sections import (
    adapter_traces,
    calibration,
    clients,
    communication,
    data_cards,
    headline,
    heat_maps,
    label_free,
    learning_curves,
    stream_samples,
)
from .style import details, deviation, esc, facts, pct, plural, span, words


def render(runs: Sequence[Run], title: str = "acclimate report", more: Mapping[str, str] | None = None) -> str:
    """The page: `runs` hold path, config, results, metrics and env as read from run folders.

    `more` are further sections, by their heading.
    """
    board = collect(runs)
    sections = {
        "Results": headline.section(board),
        "Method and adapter": heat_maps.section(board),
        "Learning curves": learning_curves.section(board),
        "What the adapter did": adapter_traces.section(board),
        "Accuracy without labels": label_free.section(board),
        "Every client": clients.dots(board),
        "Fairness": clients.evenness(board),
        "Calibration": calibration.section(board),
        "Accuracy against upload": communication.against_upload(board),
        "What left the client": communication.messages(board),
        "Streams": stream_samples.section(board),
        "Data": data_cards.section(board),
        "Configuration and environment": "".join(map(_setup, board.names, runs)),
    }
    shown = {name: part for name, part in (sections | dict(more or {})).items() if part}
    return page(title, _summary(board) + _notes(board), shown, "the JSON of run folders", headline.record(board, title))


def _summary(board: Board) -> str:
    """Two sentences on top: what was run, and who is best on every stream."""
    results = [r["results"] for r in board.runs]
    data = words(dict.fromkeys((r.get("data") or {}).get("name") for r in results))
    clients = span((r.get("data") or {}).get("clients") for r in results)
    rounds = span((r.get("cost") or {}).get("rounds") for r in results)
    seeds = list(dict.fromkeys(r.get("seed") for r in results))
    text = f"{plural(len(board.runs), 'run')} of {plural(len(set(board.names)), 'method')} on {data}: "
    text += f"{clients} clients, {rounds} rounds, seed{'s' * (len(seeds) != 1)} {words(seeds)}."
    if not board.selections:
        return f'<p class="lede">{text} There are no results yet.</p>'
    tiles = "".join(_winner(board, s) for s in board.streams)
    text += f" Best on each stream ({esc(next(iter(board.selections.values()))).lower()}):"
    return f'<p class="lede">{text}</p><ul class="best-of">{tiles}</ul>'


def _winner(board: Board, stream: str) -> str:
    """One sentence: which row is best on a stream, and by how much."""
    selection = next(iter(board.selections))
    ranked = [r for r in board.rows if math.isfinite(r.score(selection, [stream]))]
    ranked.sort(key=lambda r: -r.score(selection, [stream]))
    if not ranked:
        return f"<li>On <b>{esc(stream)}</b>, no method has a number.</li>"
    first, score = ranked[0], ranked[0].score(selection, [stream])
    text = f"On <b>{esc(stream)}</b>, <b>{esc(first.title)}</b> is best"
    if len(ranked) > 1:
        gap = round(score, 3) - round(ranked[1].score(selection, [stream]), 3)
        text += f", {gap * 100:.1f} points ahead of " if gap > 0 else ", level with "
        text += esc(ranked[1].title)
        noise = max([s for r in ranked[:2] if math.isfinite(s := deviation(r.by_seed(selection, [stream])))], default=0)
        text += " (less than the spread over seeds)" * (0 < gap < noise)
    return f'<li><span class="figure">{pct(score)}<small> %</small></span> {text}.</li>'


def _notes(board: Board) -> str:
    """Warnings: runs that repeat a seed, and runs on different data."""
    data: dict[Any, set[Any]] = {}
    seen: dict[tuple[str, Any], Run] = {}
    notes = []
    for name, run in zip(board.names, board.runs, strict=True):
        seed, card = run["results"].get("seed"), run["results"].get("data") or {}
        data.setdefault(seed, set()).add((card.get("name"), card.get("hash")))
        if seen.setdefault((name, seed), run) is not run:
            notes.append(f"{esc(folder(run))} repeats {esc(name)} with seed {esc(seed)}; only the first is counted.")
    mixed = [seed for seed, kinds in data.items() if len(kinds) > 1]
    notes += [f"Runs of seed {words(mixed)} do not share the same data: compare them with care."] * bool(mixed)
    return "".join(f'<p class="note">{s}</p>' for s in notes)


def _setup(name: str, run: Mapping[str, Any]) -> str:
    """A run's environment, timings and configuration, folded."""
    results = run["results"]
    known = {"command": results.get("command"), **(run.get("env") or {}), **(results.get("timings") or {})}
    config = json.dumps(run.get("config") or {}, indent=1, ensure_ascii=False)
    body = f'{facts(known.items())}<pre tabindex="0">{esc(config)}</pre>'
    place = "/".join(PurePath(str(run.get("path", ""))).parts[-2:])  # not the whole path: reports are passed on
    return details(f"{name}, seed {results.get('seed')}", place, body)
