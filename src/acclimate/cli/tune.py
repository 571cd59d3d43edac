"""`acclimate tune`: search over settings, judged on validation data alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..ops import layout
from . import completion
from .json_out import Json, document
from .trust import Trust

if TYPE_CHECKING:
    from rich.console import Console

    from ..eval.selection_table import Selection
    from ..tuning import Grid, Search, Selected


def tune(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings; some with choices (mu=0.01,0.1) or ranges (lr=0.01..0.1:log).",
            autocompletion=completion.settings,
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file of settings.")] = None,
    grid: Annotated[str | None, typer.Option(help="A paper's grid, such as fedtta or fedthe/memo.")] = None,
    grids: Annotated[bool, typer.Option("--grids", help="List the papers' grids and stop.")] = False,
    trials: Annotated[int | None, typer.Option(help="How many (default: a grid of up to 20 points, or 20).")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per trial; its score is their mean.")] = 1,
    sampler: Annotated[str, typer.Option(help="auto, tpe, random or grid.")] = "auto",
    select: Annotated[
        str | None,
        typer.Option(
            help="Choose between settings of adapters on the unlabelled streams instead: by fixed, source, entropy, "
            "consistency, snd or (with test labels) oracle. Of several, with commas, the first chooses."
        ),
    ] = None,
    on: Annotated[str, typer.Option(help="Streams to make of the validation data, with commas.")] = "original",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Folder (default: runs/NNN-tune).")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress.")] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Search for good settings on validation data; test data is never looked at, but for --select its inputs.

    Run it again with the same --out to go on where it was stopped, or with more --trials to search on. best.toml has
    the chosen settings: test them with `acclimate run -c`.
    """
    from rich.console import Console

    from .. import store, tuning
    from ..experiment import ConfigError
    from ..experiment.settings import expand, merged
    from .progress import display
    from .threads import use_half_of_the_cores

    if grids:
        typer.echo(document("tune", grids=_grids(tuning.GRIDS)) if as_json else _listing(tuning.GRIDS))
        return
    pairs = merged(config, list(settings or []))
    if select is not None and (trials, sampler, on, grid) != (None, "auto", "original", None):
        more = "leave out --trials, --sampler, --on and --grid"
        raise ConfigError(f"--select={select} serves every candidate on the experiment's streams; {more}")
    root = out or store.next_free(Path("runs"), "tune")
    if store.holds_run(root):
        raise store.RunError(f"{root} holds a run, whose report.html a search would replace; choose another --out")
    streams = expand([f"streams={on}"])[0].streams
    console = Console(stderr=True, markup=False)  # values and errors may have square brackets
    use_half_of_the_cores()
    try:
        with display(quiet, console) as watch:
            if select is not None:
                choice = tuning.choose(pairs, root, [s.strip() for s in select.split(",")], seeds, watch)
                _show_choice(choice, as_json)
                return
            search = tuning.tune(
                pairs,
                root,
                trials,
                seeds,
                sampler,  # type: ignore[arg-type]
                streams,
                tuning.grid(grid) if grid else None,
                watch,
                _reporter(console) if not quiet else lambda search, total: None,
            )
    except KeyboardInterrupt:
        again = "starts over" if select is not None else "goes on where it was"
        typer.echo(f"stopped; the same command with --out {root} {again}", err=True)
        raise SystemExit(130) from None
    _show(search, as_json)


def _grids(grids: tuple[Grid, ...]) -> list[dict[str, Any]]:
    """Every grid with its place, how many points it has and what is searched."""
    return [
        {
            "name": g.name,
            "points": g.size,
            "place": g.place,
            "searched": {k: v for k, v in g.settings if isinstance(v, list)},
            "chosen": g.found,
            "note": g.note,
        }
        for g in grids
    ]


def _listing(grids: tuple[Grid, ...]) -> str:
    """The same as lines."""
    rows = []
    for g in _grids(grids):
        searched = ", ".join(f"{k}: {len(v)}" for k, v in g["searched"].items())
        note = f" [{g['note']}]" if g["note"] else ""
        about = f"{g['place']}; {searched}; the paper chose {g['chosen']}{note}"
        rows.append((g["name"], layout.counted(g["points"], "point").rjust(12), about))
    return "\n".join(layout.lined(rows, layout.room()))


def _reporter(console: Console) -> Callable[[Search, int], None]:
    """Prints a line per trial: its score, the best so far, and how long the rest will take."""
    from ..running.progress import duration

    began, before = time.perf_counter(), -1

    def report(search: Search, total: int) -> None:
        nonlocal before
        done, best = search.trials, search.best
        before = len(done) - 1 if before < 0 else before  # finished in earlier sessions
        last = max(done, key=lambda t: t.number)
        each = (time.perf_counter() - began) / (len(done) - before)
        score = f"failed ({last.failed})" if last.score is None else f"{100 * last.score:.1f} %"
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in last.values.items())
        top = f"; best {100 * (best.score or 0):.1f} %" if best else ""
        left = f"; {duration(each * (total - len(done)))} left" if len(done) < total else ""
        console.print(
            f"trial {last.number} ({len(done)} of {total} done): {score} with {values}{top}{left}",
            highlight=False,
            soft_wrap=True,
        )

    return report


def _show(search: Search, as_json: bool) -> None:
    best, root = search.best, search.path
    if as_json:
        trials = [asdict(t) for t in search.trials]
        typer.echo(document("tune", folder=str(root), best=best and asdict(best), trials=trials))
        if best is None:
            raise typer.Exit(1)
        return
    if best is None:
        typer.echo(f"no trial has a score; see {root / 'tune.json'}", err=True)
        raise typer.Exit(1)
    typer.echo(
        f"best of {len(search.trials)}: {100 * (best.score or 0):.2f} % on validation data (trial {best.number})"
    )
    typer.echo("".join(f"  {key} = {value}\n" for key, value in best.values.items()), nl=False)
    typer.echo(f"all trials: {root / 'tune.json'} and {root / 'report.html'}")
    typer.echo(f"test it: acclimate run -c {root / 'best.toml'}{_trust()}")


def _show_choice(choice: Selected, as_json: bool) -> None:
    if as_json:
        chosen = {"strategy": choice.strategy, "name": choice.name, "selection": choice.selection.to_dict()}
        typer.echo(document("tune", folder=str(choice.path), chosen=chosen))
        return
    labels = " (by test labels: no result)" if choice.strategy == "oracle" else ""
    gap = 100 * choice.selection.gap(choice.strategy)
    typer.echo(selection_text(choice.selection))
    for reason in dict.fromkeys(choice.selection.left_out):
        typer.echo(f"left out: {reason}")
    typer.echo(f"{choice.strategy}{labels} chose {choice.name} over all streams")
    typer.echo(f"chosen stream by stream, it is {gap:.1f} points below the oracle, which knows the test labels")
    typer.echo(f"all scores: {choice.path / 'select.json'}")
    typer.echo(f"test it: acclimate run -c {choice.path / 'best.toml'}{_trust()}")


def _trust() -> str:
    """The word that a file needs which names classes of the user's own; empty where there are none."""
    from ..experiment.names import own_names

    return " --trust" if own_names() else ""


def selection_text(selection: Selection) -> str:
    """What strategies chose: a Markdown table, or, where a window is too narrow for it, columns that fit."""
    text, width = selection.to_markdown(), layout.room()
    lines = text.splitlines()
    if not width or max(map(len, lines)) <= width:
        return text
    rows = [layout.unmarked(line) for line in (lines[0], *lines[2:])]
    return "\n".join(layout.lined([[*row[:2], *row[3:], row[2]] for row in rows], width))
