"""How `acclimate compare` shows a ranking of many rows."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from ..eval.ranking import Ranking
from ..ops import layout

SCHEMA = "acclimate.ranking/1"


def show(ranking: Ranking, out: Path | None) -> None:
    """Print a ranking and what it means; write it too where `out` says so."""
    from rich.box import SIMPLE
    from rich.table import Table

    from .. import store
    from .describe import console

    head = ("", "row", "mean", "rank", "behind the first", "same as")
    rows = _cells(ranking)
    table = Table(*head, box=SIMPLE, pad_edge=False, padding=0)
    table.columns[1].overflow = "fold"
    for cells in rows:
        table.add_row(*cells)
    console().print(table)
    typer.echo("mean: accuracy in %, over streams; rank: its mean over streams and seeds; rows that share a letter")
    typer.echo("under 'same as' cannot be told apart (95 % paired intervals).\n")
    for sentence in ranking.words():
        typer.echo(sentence)
    if out is not None:
        text = json.dumps({"schema": SCHEMA, **ranking.to_dict()}, indent=1) + "\n"
        page = "\n".join(layout.table(head, rows)) + "\n"
        store.write(out, text if out.suffix == ".json" else page)
        typer.echo(f"wrote {out}")


def _cells(ranking: Ranking) -> list[tuple[str, ...]]:
    out: list[tuple[str, ...]] = []
    for place, letters in zip(ranking.places, ranking.bars(), strict=True):
        gap = "" if place.rank == 1 else f"{100 * place.low:+.1f} to {100 * place.high:+.1f}"
        out.append((str(place.rank), place.title, f"{100 * place.mean:.1f}", f"{place.average_rank:.1f}", gap, letters))
    return out
