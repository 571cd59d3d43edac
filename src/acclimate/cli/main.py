"""The command line. It imports torch only inside commands, so that `--help` is instant."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..version import __version__
from . import completion, index
from .compare import compare
from .data import data_app
from .deploy import deploy
from .export import export
from .fleet import fleet_app
from .heartbeat import Heartbeat, beating
from .help import command
from .join import join
from .json_out import Json, document
from .leaderboard import leaderboard, submit
from .predict import predict
from .report import report
from .reproduce import reproduce_app
from .serve import replay, serve, tokens
from .trust import Trust
from .tune import selection_text, tune

app = typer.Typer(
    name="acclimate",
    help="Federated learning that keeps adapting after training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Settings = Annotated[
    list[str] | None,
    typer.Argument(help="key=value settings, e.g. method=fedprox method.mu=0.01", autocompletion=completion.settings),
]
Track = Annotated[str | None, typer.Option(help="Also log to tensorboard, mlflow, or both with a comma.")]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"acclimate {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass  # the option acts by itself; a docstring here would be the text of --help


@app.command()
def run(
    settings: Settings = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file of settings.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder (default: runs/NNN-name).")] = None,
    seeds: Annotated[int, typer.Option(help="Repeat with this many consecutive seeds.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already there.")] = False,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress display.")] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train, adapt and test; write a run folder and a report.

    Without `method=` it compares FedAvg, FedAvg with fine-tuning, FedTHE and FedTTA. Commas sweep: `seed=0,1,2`.
    """
    root = out
    try:
        experiments = _experiments(settings or [], config, seeds)
        from .chosen import chosen
        from .small import fitted

        given = _given(settings or [], config)
        experiments, smaller = fitted(experiments, given)
        for line in [] if quiet else [*chosen(experiments[0], given), *smaller]:
            typer.echo(f"data: {line}", err=True)
        from .. import store
        from ..running import run as api
        from ..running import track as tracking
        from ..running.failures import tolerant
        from .progress import display
        from .threads import use_half_of_the_cores

        use_half_of_the_cores()
        root = out or store.next_free(Path("runs"), experiments[0].label if len(experiments) == 1 else "comparison")
        with display(quiet) as shown, tracking.tracked(root, track, shown) as watch:
            table, failed = tolerant(api.run_all, experiments, root, overwrite, watch)
    except KeyboardInterrupt:
        _stopped(root)
    _show(table, root, as_json, failed)


@app.command()
def resume(
    path: Annotated[Path, typer.Argument(help="A run folder, or a folder of them.")],
    again: Annotated[bool, typer.Option("--again", help="Train runs that diverged once more, from the start.")] = False,
    track: Track = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress display.")] = False,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run; the result is the same as if it had not been interrupted."""
    try:
        from ..running import run as api
        from ..running import track as tracking
        from ..running.failures import tolerant
        from .progress import display
        from .threads import use_half_of_the_cores

        use_half_of_the_cores()
        with display(quiet) as shown, tracking.tracked(path, track, shown) as watch:
            table, failed = tolerant(api.resume, path, watch, again)
    except KeyboardInterrupt:
        _stopped(path)
    _show(table, path, as_json, failed)


app.command()(report)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="methods, adapters, ... (default: all)", autocompletion=completion.one_of("kinds")),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what there is: methods, personalisers, adapters, models, data sets, streams, ..."""
    text = index.listing(kind)
    kinds = index.read()["kinds"]
    if as_json:
        text = document("list", kinds=kinds if kind is None else {kind: kinds[kind]}, groups=index.read()["groups"])
    typer.echo(text)


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(help="A name from `acclimate list`.", autocompletion=completion.one_of("details")),
    ],
    as_json: Json = False,
) -> None:
    """Show a record's paper, fields and defaults."""
    text = index.details(name)
    typer.echo(document("show", name=name, text=text, fields=_fields_of(name)) if as_json else text)


def _fields_of(name: str) -> dict[str, list[str]]:
    """The fields of the records of this name, by kind."""
    found = ((key.partition("/"), fields) for key, fields in index.read()["fields"].items())
    return {kind: fields for (kind, _, own), fields in found if own == name}


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check torch, device, extras and data roots, and say what to do about each."""
    from .describe import doctor as examine
    from .describe import findings

    if as_json:
        typer.echo(document("doctor", findings=[dict(zip(("what", "ok", "says"), f, strict=True)) for f in findings()]))
    else:
        typer.echo(examine())


# after `run` and its neighbours: `--help` lists commands in this order
for other in (compare, tune, deploy, predict, serve, replay, tokens, join, export, submit, leaderboard):
    app.command()(other)
app.add_typer(data_app, name="data")
app.add_typer(fleet_app, name="fleet")
app.add_typer(reproduce_app, name="reproduce")


def _experiments(settings: list[str], config: Path | None, seeds: int) -> list[Any]:
    from ..experiment.settings import expand, merged
    from ..running import run as api
    from . import first

    pairs, given = merged(config, list(settings)), _given(settings, config)
    return api.with_seeds(expand(pairs) if "method" in given else first.experiments(pairs, given), seeds)


def _given(settings: list[str], config: Path | None) -> set[str]:
    """The keys that settings and the file give."""
    from ..experiment.settings import merged

    pairs = merged(config, list(settings))
    return {p.partition("=")[0].strip() if isinstance(p, str) else p[0] for p in pairs}


def _show(table: Any, root: Path, as_json: bool, failed: Any) -> None:
    from .. import store
    from ..running.chosen import tables
    from .describe import results_table, run_document
    from .first import shown, story, unequal

    if failed is not None and not (table.rows or table.refused):
        raise failed
    runs = [folder.experiment() for folder in store.find_runs(root)]
    short, own = shown(table)
    notes = [note for note in (unequal(runs), own, story(short)) if note]
    selected = tables(root)
    if as_json:
        typer.echo(run_document(table, root, notes, failed.failed if failed else {}, selected))
    else:
        results_table(short, root, notes)
        for label, chosen in selected.items():
            typer.echo(f"\nadapters of {label}, chosen by strategies:\n{selection_text(chosen)}")
    if failed is not None:
        raise failed
    if not table.rows:  # known only now where a personaliser might have added what the adapters lack
        _fail("no adapter could be tested: nothing was measured", 2)


def _stopped(root: Path | None) -> NoReturn:
    """Say how to go on after Ctrl-C. In a round, training says so itself; elsewhere typer would end without a word."""
    saved = root is not None and any((root / name).exists() for name in ("config.json", "index.json"))
    _fail(
        f"stopped; go on with: acclimate resume {root}" if saved else "stopped before anything was saved", INTERRUPTED
    )


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"acclimate: {message}", err=True)
    raise SystemExit(code)


def _stop(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


LOADING = {"run", "resume", "tune", "join", "deploy", "predict", "report", "compare", "export", "replay"}
LOADING |= {"tokens", "submit", "leaderboard", "doctor", "reproduce", "fleet deploy", "fleet init"}
"""The commands that import torch first, and say so; what `serve` says are lines of JSON."""


INTERRUPTED = 130


def main() -> None:
    """The console script: errors are one sentence; exit 2 for bad input, 1 for a failed run, 130 when interrupted."""
    signal.signal(signal.SIGTERM, _stop)
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")  # as worker processes have it; torch reads it when imported
    heart: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if _loads(sys.argv[1:]) and not _hushed():
        typer.echo("acclimate: loading torch ...", err=True)  # takes seconds, minutes on a slow disk
        heart = beating(Heartbeat(sys.stderr, _called(sys.argv[1:])))
    if "" not in sys.path:
        sys.path.insert(0, "")  # so that module:Class finds a user's own file in the current folder
    try:
        with heart:
            code = command(app)(standalone_mode=False)
        if code == INTERRUPTED:  # typer's own word for Ctrl-C
            raise KeyboardInterrupt
        raise SystemExit(code if isinstance(code, int) else 0)
    except (KeyboardInterrupt, typer.Abort):
        _fail("stopped", INTERRUPTED)
    except Exception as e:
        _explain(e)


def _called(typed: list[str]) -> str:
    """The command in words: `fleet deploy`, where a command has commands of its own."""
    return " ".join(typed[: 2 if typed[0] in ("data", "fleet", "reproduce") else 1])


def _loads(typed: list[str]) -> bool:
    """Whether a command imports torch: of `data`, all but `list` do, and `fleet init` where settings are typed."""
    words = typed[:2]
    if words == ["fleet", "init"]:
        return any(word.startswith("--settings") for word in typed)
    named = {" ".join(words[:1]), " ".join(words)}
    return (words[:1] == ["data"] and words[1:] not in ([], ["list"])) or bool(LOADING & named)


def _hushed() -> bool:
    """Whether a line before the imports would be of no use: torch is there, or nobody asked for anything."""
    return "torch" in sys.modules or bool({"-q", "--quiet", "-h", "--help"} & set(sys.argv))


def _explain(error: Exception) -> NoReturn:
    import click

    if isinstance(error, click.NoSuchOption):
        _hint(error)
    if "Did you mean" in getattr(error, "message", "") and hasattr(error, "possibilities"):
        error.possibilities = None  # typer has said it, and click would say it again
    if isinstance(error, click.ClickException):
        error.show()
        raise SystemExit(error.exit_code)
    from ..store import RunError, SeveralRuns

    if isinstance(error, SeveralRuns):
        _fail(f"{error}; for example:\n  {_with_one(error, sys.argv[1:])}", 2)
    if isinstance(error, ValueError | RunError | FileNotFoundError | ImportError):
        _fail(str(error), 2)
    if _interrupted(error):
        _fail(str(error), INTERRUPTED)
    if isinstance(error, ArithmeticError):  # a value that is not finite, among others
        _fail(str(error), 1)
    if isinstance(error, OSError):
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}", 2)
    if isinstance(error, MemoryError | RecursionError):
        _fail(f"{type(error).__name__}: {error or 'what was asked for does not fit into memory'}", 2)
    _raise(error)


def _interrupted(error: Exception) -> bool:
    """Whether training was stopped, which says itself how to go on; without torch nothing trains."""
    if "torch" not in sys.modules:
        return False
    from ..running.run import Interrupted

    return isinstance(error, Interrupted)


def _with_one(error: Any, words: list[str]) -> str:
    """The command that was typed, with the first of the runs in the place of their folder."""
    typed = [str(error.runs[0]) if Path(word) == error.path else word for word in words]
    return f"acclimate {shlex.join(typed)}"


def _hint(error: Any) -> None:
    """Let click's error say how settings are written, where somebody wrote a setting as an option."""
    name = error.option_name.lstrip("-").partition(".")[0].replace("-", "_")
    if name in index.read()["settings"]:
        error.possibilities = None
        error.message = f"No such option '{error.option_name}': settings are written key=value, for example {name}=..."


def _raise(error: Exception) -> NoReturn:
    raise error
