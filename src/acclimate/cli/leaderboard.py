"""`acclimate submit` and `acclimate leaderboard`: the board `brfl-v1`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .json_out import Json, document
from .trust import Trust

Folder = Annotated[Path, typer.Option("--folder", help="Where submissions lie, a folder per track.")]
ROOT = Path("results/leaderboard/brfl-v1")


def submit(
    run: Annotated[Path, typer.Argument(help="A folder with a finished run per seed of the track.")],
    track: Annotated[str, typer.Option(help="small, cifar10-cnn or cifar10-resnet20.")],
    chosen: Annotated[
        str, typer.Option(help="How hyper-parameters were chosen: defaults, paper, or validation (never test).")
    ] = "defaults",
    note: Annotated[str, typer.Option(help="A sentence that the page shows.")] = "",
    folder: Folder = ROOT,
    trust: Trust = False,
) -> None:
    """Write a run as one JSON file for the leaderboard; refuse what is not of the track.

    The file holds the configuration, hashes, every client's accuracy, seeds, seconds, bytes, the commit and how
    hyper-parameters were chosen. A name that is there already gets a new version; files are never edited.
    """
    from ..leaderboard.folder import submit as write

    typer.echo(f"wrote {write(run, track, chosen, folder, note)}")


def leaderboard(
    folder: Folder = ROOT,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file.")] = Path("leaderboard.html"),
    rerun: Annotated[Path | None, typer.Option(help="Instead, run one row of this submission again.")] = None,
    adapter: Annotated[str, typer.Option(help="The row's adapter.")] = "none",
    seed: Annotated[int, typer.Option(help="The row's seed.")] = 0,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Check all submissions and write the leaderboard as one static page, with a Markdown table per track."""
    from .. import store
    from ..leaderboard import __main__ as plain
    from ..leaderboard import page
    from ..leaderboard.folder import rerun as again

    if rerun is not None:
        if as_json:
            found = again(store.read_json(rerun), adapter, seed)
            body = {"matches": found.matches, "equal": found.equal, "gaps": dict(found.gaps)}
            body["missing"] = list(found.missing)
            typer.echo(document("leaderboard-rerun", **body))
            raise typer.Exit(0 if found.matches else 1)
        words = ["rerun", str(rerun), "--adapter", adapter, "--seed", str(seed)]
        typer.echo(plain.answer(plain.parser().parse_args(words)))
        return
    store.write(out, page.html(folder))
    written = [out, *plain.tables(folder)]
    if as_json:
        typer.echo(document("leaderboard", tracks=page.rankings(folder), wrote=[str(path) for path in written]))
    for path in written if not as_json else ():
        typer.echo(f"wrote {path}")
