"""The leaderboard as a page and as Markdown, made of submissions alone: the same files give the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..eval.fairness import fairness
from ..eval.grid import NOT_FINITE
from ..eval.ranking import Ranking, rank
from ..ops.layout import markdown as markdown_line
from ..reporting.board import Board, BoardRow, collect
from ..reporting.board_table import TableCell, TableColumn, board_table
from ..reporting.page import page
from ..reporting.sections import headline, verdict
from ..reporting.style import details, esc, fixed, mean, num, pct, size, views
from .folder import read
from .submission import commits
from .tracks import BOARD, TRACKS, frozen

NARROW = (
    '<form class="tools narrow" aria-label="Which rows are shown" hidden><label>Rows <input type="search" '
    'autocomplete="off" placeholder="fedavg tent"></label><label class="chip"><input type="checkbox"> '
    'the best row of every method alone</label><div class="foot"><output aria-live="polite"></output></div></form>'
)
"""What narrows a track's table; hidden until page.js shows it."""

Submissions = Mapping[str, Sequence[Mapping[str, Any]]]


def board_of(found: Submissions) -> Board:
    """The last versions as the report's board: a row per method and adapter."""
    return collect([run for name in sorted(found) for run in _runs(found[name][-1])])


def _runs(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A submission's seeds, each as a report takes a run."""
    method, _, personal = body["name"].partition("+")
    out = []
    for seed, own in body["seeds"].items():
        table = [
            {**r, "method": method, "personal": personal or "none", "selection": "last", "settings": []}
            for r in body["rows"]
            if str(r["seed"]) == seed
        ]
        # the frozen hashes: rows of several machines, whose bytes differ by rounding, are of the same streams
        streams = {s: {"hash": c["hash"]} for s, c in frozen(body["track"])["seeds"][seed]["streams"].items()}
        data = {"hash": own["data"]["examples"], "streams": streams}
        results = {"label": body["name"], "seed": int(seed), "table": table, "data": data, "serving": own["serving"]}
        results["cost"] = {"up_bytes_per_client": body["up_bytes"]}
        out.append({"path": body["name"], "config": {}, "results": results, "metrics": []})
    return out


def worst_tenth(row: BoardRow, streams: Sequence[str]) -> float:
    """The accuracy of the worst-served tenth of the clients, mean over seeds and streams."""
    return mean(fairness(own)["worst10"] for s in streams for own in row.per_client("last", s))


def markdown(found: Submissions, title: str) -> str:
    """The table of one track: rows from the best mean down, ties as ties."""
    board = board_of(found)
    ranking = rank([r.entry("last") for r in board.rows])
    rows = {r.title: r for r in board.rows}
    head = ["rank", "same as", "method", "adapter", *board.streams, "mean", "worst tenth", "ECE", "ms/sample", "upload"]
    words = [*_words(ranking), *_machines(found)]
    lines = [f"# {BOARD}, {title}", "", *words, "", _line(head), _line(["---"] * len(head))]
    for place, letters in zip(ranking.places, ranking.bars(), strict=True) if ranking else ():
        row = rows[place.title]
        streams = [pct(row.score("last", [s])) for s in board.streams]
        numbers = [pct(place.mean), pct(worst_tenth(row, board.streams)), pct(row.score("last", board.streams, "ece"))]
        cost = [fixed(row.served("ms_per_sample"), 2), size(row.cost("up_bytes_per_client"))]
        lines.append(_line([str(place.rank), letters, row.name, row.adapter, *streams, *numbers, *cost]))
    return "\n".join([*lines, "", *_chosen(found)]) + "\n"


def _words(ranking: Ranking | None) -> list[str]:
    if ranking is None:
        return ["There are not two rows yet."]
    said = " ".join(s for s in ranking.words() if not s.startswith("Ranks "))
    return [said, "", "Rows that share a letter cannot be told apart by their paired 95 % intervals."]


def _machines(found: Submissions) -> list[str]:
    """Whose times cannot be compared: a sentence where the rows are of several machines."""
    kinds = (versions[-1]["environment"] for versions in found.values())
    machines = sorted({f"{e.get('platform')} with torch {e.get('torch')}" for e in kinds})
    many = len(machines) > 1
    return [f"Times are of the submitters' machines ({'; '.join(machines)}): compare those of one alone."] * many


def _line(cells: Sequence[str]) -> str:
    return markdown_line([c.replace("&ndash;", "-") for c in cells])


def _chosen(found: Submissions) -> list[str]:
    """How hyper-parameters were chosen, which versions no longer count, and which adapters failed."""
    out = []
    for name in sorted(found):
        last, *old = found[name][::-1]
        text = f"- {name}, version {last['version']}, commit {', '.join(commits(last))}, "
        text += f"{last['environment'].get('platform')}: hyper-parameters by {last['hyper_parameters']}"
        text += "".join(f"; version {b['version']} is superseded" for b in old)
        text += "".join(f"; without rows: {reason}" for reason in last["refused"].values() if NOT_FINITE in reason)
        out.append(text + (f". {last['note']}" if last["note"] else "."))
    return out


def rankings(folder: Path) -> dict[str, Any]:
    """The ranking of every track that has two rows, as JSON."""
    ranks = {name: rank([r.entry("last") for r in board_of(subs).rows]) for name, subs in _tracks(folder).items()}
    return {name: found.to_dict() for name, found in ranks.items() if found}


def _tracks(folder: Path) -> dict[str, Submissions]:
    found = {name: subs for name in TRACKS if (folder / name).exists() and (subs := read(folder / name))}
    if not found:
        raise ValueError(f"{folder} holds no submission; a track is a folder of it: {', '.join(TRACKS)}")
    return dict(found)


def html(folder: Path) -> str:
    """The page over all tracks that have submissions."""
    found = _tracks(folder)
    boards = {name: board_of(subs) for name, subs in found.items()}
    sections = {name: _section(name, boards[name], found[name]) for name in found}
    lede = "Everybody trains and tests on the same splits and streams, which is checked; numbers are means over seeds."
    lede += " Rows that share a letter cannot be told apart by their paired 95 % intervals."
    title = f"Leaderboard {BOARD}"
    record = headline.record(next(iter(boards.values())), title)
    return page(title, f'<p class="lede">{lede}</p>', sections, "submissions", record)


def _section(name: str, board: Board, found: Submissions) -> str:
    ranks = verdict.rankings(board)
    ranking, machines = ranks.get("last"), _machines(found)
    said = verdict.verdict(board, ranking, costs=not machines).partition('<ul class="best-of">')[0]
    notes = "".join(f"<li>{esc(line.removeprefix('- '))}</li>" for line in _chosen(found))
    about = (
        f'<p class="muted">{esc(TRACKS[name].about)}</p>{said}{"".join(f"<p>{esc(m)}</p>" for m in machines)}{NARROW}'
    )
    table = views({"last": "Last round"}, lambda _: _table(board, ranking))
    plot = verdict.section(board, ranks)
    return f"{about}{table}{plot}{details('Submissions', 'versions and how they were tuned', f'<ul>{notes}</ul>')}"


def _table(board: Board, ranking: Ranking | None) -> str:
    columns = [TableColumn("Rank"), TableColumn("Same as"), TableColumn("Mean over streams", "max")]
    columns += [TableColumn(esc(s), "max", stream=i) for i, s in enumerate(board.streams)]
    columns += [TableColumn("Worst tenth of clients", "max"), TableColumn("ECE, %", "min")]
    columns += [TableColumn("ms per sample"), TableColumn("Upload per client and round")]
    order = {p.title: (p, b) for p, b in zip(ranking.places, ranking.bars(), strict=True)} if ranking else {}
    rows = sorted(board.rows, key=lambda r: order[r.title][0].rank if r.title in order else math.inf)
    return board_table("Leaderboard", columns, [(r, _cells(board, r, order.get(r.title))) for r in rows])


def _cells(board: Board, row: BoardRow, place: Any) -> list[TableCell]:
    rank_, letters = (num(place[0].rank), place[1]) if place else (math.nan, "")
    shares = [row.score("last", board.streams), *(row.score("last", [s]) for s in board.streams)]
    shares += [worst_tenth(row, board.streams), row.score("last", board.streams, "ece")]
    time, up = row.served("ms_per_sample"), row.cost("up_bytes_per_client")
    first = [TableCell(fixed(rank_, 0), rank_), TableCell(f'<span class="pm">{esc(letters)}</span>', rank_)]
    return [*first, *(TableCell(f"<b>{pct(v)}</b>", v) for v in shares), TableCell(fixed(time, 2), time),
            TableCell(size(up), up)]  # fmt: skip
