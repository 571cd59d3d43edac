"""`acclimate compare`: two methods side by side, with intervals and a plain sentence per stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .json_out import Json, document


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    rows: Annotated[
        list[str] | None,
        typer.Option("--row", help="Which two, where there are more: fedavg+finetune, or fedavg/tent. Give it twice."),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(help="Compare what this strategy chose, in runs with select=: source, entropy, consistency, ..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write all numbers: .json, or a table: .md")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which of two methods is better on each stream, and whether that is more than chance; rank many.

    Differences are paired: the same client, the same split, the same seed. Intervals are bootstrapped over seeds and
    clients; of fewer than ten numbers in all they are Student's. Where the runs hold more than two rows and none is
    named, all are ranked by their mean over streams.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    from .. import store
    from ..running import compare
    from .describe import console
    from .ranking import show

    if out is not None and out.suffix not in (".json", ".md"):
        raise ValueError(f"--out={out}: must end in .json or .md")
    there = [folder for path in runs for folder in store.find_runs(path)]
    if missing := sum(not folder.finished for folder in there):
        left = f"runs that are not finished, and left out: {missing} of {len(there)}"
        typer.echo(f"{left}; go on with: acclimate resume FOLDER", err=True)
    try:
        found = compare.compare(*runs, rows=rows or [], select=select)
    except compare.NotTwo:
        ranking = None if rows else compare.ranked(*runs, select=select)
        if ranking is None:
            raise
        if as_json:
            typer.echo(document("compare", ranking=ranking.to_dict()))
        else:
            show(ranking, out)
        return
    if out is not None:
        store.write(out, found.to_json() if out.suffix == ".json" else found.to_markdown() + "\n")
    if as_json:
        said = [*found.sentences(), *found.choices, *([found.caveat()] if found.caveat() else [])]
        typer.echo(document("compare", comparison=json.loads(found.to_json()), sentences=said))
        return
    head = ("stream", "round", found.first, found.second, "difference", "interval", "seeds x\nclients")
    table = Table(*head, box=SIMPLE, pad_edge=False, padding=0)  # 80 columns have room for it
    for column in (*table.columns[:2], *table.columns[4:]):
        column.no_wrap = True
    for column in (table.columns[2], table.columns[3]):
        column.overflow = "fold"  # the methods' names are whole, over several lines where they are long
    for cells in found.cells():
        table.add_row(*cells)
    console().print(table)
    for sentence in found.sentences():
        typer.echo(sentence)
    for sentence in found.choices:
        typer.echo(sentence)
    if caveat := found.caveat():
        typer.echo(caveat)
    if out is not None:
        typer.echo(f"wrote {out}")
