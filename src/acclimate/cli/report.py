"""`acclimate report`: one page over runs, or their table for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The HTML file; or .tex, .md or .csv, for the table alone.")
    ] = Path("report.html"),
    selection: Annotated[
        str, typer.Option(help="The table's round: last, or validation for the best one. A page has both.")
    ] = "last",
) -> None:
    """Write one self-contained HTML page over finished runs, or their table for a paper."""
    from .. import store, tuning
    from ..running import run as api

    tested = [r for r in runs if store.holds_run(r) or not store.holds_search(r)]
    if not tested:
        pages = ", ".join(str(r / "report.html") for r in runs)
        raise store.RunError(f"{', '.join(map(str, runs))}: a search, with a page of its own, {pages}; name a run too")
    typer.echo(f"wrote {api.report(*tested, out=out, more=tuning.sections(runs), selection=selection)}")
    found = [f for r in tested for f in store.find_runs(r)]
    if missing := sum(not f.finished for f in found):
        typer.echo(f"runs that are not finished, and not in it: {missing} of {len(found)}", err=True)
