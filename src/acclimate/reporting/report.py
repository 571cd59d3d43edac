"""The report: run folders' JSON as one HTML file that needs no network and reads without JavaScript."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ..eval.ranking import Ranking
from ..ops.layout import counted
from .board import Board, Run, collect, folder
from .page import page
from .sections import (
    adapter_traces,
    calibration,
    choices,
    clients,
    communication,
    data_cards,
    headline,
    heat_maps,
    label_free,
    learning_curves,
    stream_samples,
    verdict,
)
from .style import details, esc, facts, span, words


def render(
    runs: Sequence[Run],
    title: str = "acclimate report",
    more: Mapping[str, str] | None = None,
    unfinished: Sequence[str] = (),
) -> str:
    """The page: `runs` hold path, config, results, metrics and env as read from run folders.

    `more` are further sections, by their heading; `unfinished` names runs that should be in the page and cannot.
    """
    board = collect(runs)
    ranks = verdict.rankings(board)
    ranking = ranks.get(next(iter(board.selections), ""))
    sections = {
        "Results": headline.section(board),
        "Ranks": verdict.section(board, ranks),
        "Method and adapter": heat_maps.section(board),
        "Learning curves": learning_curves.section(board),
        "What the adapter did": adapter_traces.section(board),
        "Accuracy without labels": label_free.section(board),
        "Choice without labels": choices.section(board),
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
    head = _summary(board, ranking) + verdict.unfinished(unfinished) + _notes(board)
    return page(title, head, shown, "the JSON of run folders", headline.record(board, title))


def _of(numbers: str, one: str) -> str:
    """A range of numbers and what they count: `1 client`, `5 to 20 clients`."""
    return f"{numbers} {one}{'s' * (numbers != '1')}"


def _summary(board: Board, ranking: Ranking | None) -> str:
    """What was run, and the verdict."""
    results = [r["results"] for r in board.runs]
    data = words(dict.fromkeys((r.get("data") or {}).get("name") for r in results))
    clients = span((r.get("data") or {}).get("clients") for r in results)
    rounds = span((r.get("cost") or {}).get("rounds") for r in results)
    seeds = list(dict.fromkeys(r.get("seed") for r in results))
    text = f"{counted(len(board.runs), 'run')} of {counted(len(set(board.names)), 'method')} on {data}: "
    text += f"{_of(clients, 'client')}, {_of(rounds, 'round')}, seed{'s' * (len(seeds) != 1)} {words(seeds)}."
    if not board.selections:
        return f'<p class="lede">{text} There are no results yet.</p>'
    return f'<p class="lede">{text}</p>{verdict.verdict(board, ranking)}{verdict.uneven(board)}'


def _notes(board: Board) -> str:
    """Warnings: runs that repeat a seed, and runs on different data."""
    data: dict[Any, set[Any]] = {}
    seen: dict[tuple[str, Any], set[Any]] = {}
    notes = []
    for name, run in zip(board.names, board.runs, strict=True):
        seed, card = run["results"].get("seed"), run["results"].get("data") or {}
        data.setdefault(seed, set()).add((card.get("name"), card.get("hash")))
        known, own = seen.setdefault((name, seed), set()), _numbered(run)
        if twice := known & own:
            part = "only the first is counted" if twice == own else "of what is there twice, only the first is counted"
            notes.append(f"{esc(folder(run))} repeats {esc(name)} with seed {esc(seed)}; {part}.")
        known |= own
    mixed = [seed for seed, kinds in data.items() if len(kinds) > 1]
    notes += [f"Runs of seed {words(mixed)} do not share the same data: compare them with care."] * bool(mixed)
    return "".join(f'<p class="note">{s}</p>' for s in notes)


def _numbered(run: Run) -> set[tuple[str, ...]]:
    """What a run has numbers of: runs of one method and seed may share out adapters, and are no repeats."""
    rows = run["results"].get("table") or ()
    return {tuple(str(t.get(k)) for k in ("method", "personal", "adapter", "stream", "selection")) for t in rows}


def _setup(name: str, run: Mapping[str, Any]) -> str:
    """A run's environment, timings and configuration, folded."""
    results = run["results"]
    known = {"command": results.get("command"), **(run.get("env") or {}), **(results.get("timings") or {})}
    config = json.dumps(run.get("config") or {}, indent=1, ensure_ascii=False)
    body = f'{facts(known.items())}<pre tabindex="0">{esc(config)}</pre>'
    place = "/".join(PurePath(str(run.get("path", ""))).parts[-2:])  # not the whole path: reports are passed on
    return details(f"{name}, seed {results.get('seed')}", place, body)
