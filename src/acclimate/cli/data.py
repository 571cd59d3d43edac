"""`acclimate data`: which data sets there are, whether they are sound, and what an experiment makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import completion, index
from .json_out import Json, document
from .trust import Trust

if TYPE_CHECKING:
    from ..data import Dataset
    from ..experiment import Experiment

data_app = typer.Typer(
    help="List data sets, check their files, show what clients get.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@data_app.command("list")
def list_(
    root: Annotated[
        Path | None, typer.Option("--root", help="The folder that holds data sets (default: ACCLIMATE_DATA).")
    ] = None,
    as_json: Json = False,
) -> None:
    """List all data sets: what was published, and whether their files are there."""
    from ..ops import layout
    from ..ops.places import DATA, data_root
    from .data_sets import states

    folder = data_root(str(root or ""))
    head = ("name", "examples", "classes", "shape", "files")
    there = states(folder)
    rows = [(n, *(own[k] for k in head[1:-1]), there[n]) for n, own in index.read()["datasets"].items()]
    if as_json:
        sets = [dict(zip(head, row, strict=True)) for row in rows]
        typer.echo(document("data-list", root=str(folder) if folder else None, datasets=sets))
        return
    if folder is None:
        typer.echo(f"data root: none; name it with --root or the environment variable {DATA}")
    else:
        typer.echo(f"data root: {folder}" + ("" if folder.is_dir() else " (does not exist)"))
    typer.echo("\n".join(layout.lined([head, *rows], layout.room())))
    typer.echo("`acclimate data check NAME` says which files a set needs and where to get them.")


@data_app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            help="A data set of `acclimate data list`, or your own as module:Class.",
            autocompletion=completion.one_of("datasets"),
        ),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value settings of the set, e.g. root=/data domains=mnist,usps")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare a set's files, counts, shapes and class histograms with the published ones.

    Exit 0: as published. Exit 1: something differs. Exit 2: files are missing.
    """
    from ..experiment.settings import expand

    prefixed = [s if s.startswith("data.") else f"data.{s}" for s in settings or []]
    findings = [line for e in expand([f"data={name}", *prefixed]) for line in _findings(e.data)]
    kinds = [line.partition(":")[0] for line in findings]
    if as_json:
        said = [dict(zip(("kind", "text"), line.split(": ", 1), strict=True)) for line in findings]
        typer.echo(document("data-check", name=name, findings=said))
    for kind, line in zip(kinds, findings, strict=True) if not as_json else ():
        if kind != "missing":
            typer.echo(line)
    for line in findings:
        if line.startswith("missing: ") and not as_json:
            typer.echo(f"acclimate: {line.removeprefix('missing: ')}", err=True)
    if code := 2 if "missing" in kinds else 1 if "differs" in kinds else 0:
        raise SystemExit(code)


@data_app.command()
def preview(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value settings as for `acclimate run`, e.g. data.clients=5", autocompletion=completion.settings
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file of settings.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file.")] = Path("preview.html"),
    trust: Trust = False,
) -> None:
    """Show an experiment's data on a page: clients and classes, training examples, and every stream. Trains nothing."""
    experiment = _experiment(settings or [], config)
    from ..reporting.preview import preview as write

    typer.echo(f"wrote {write(experiment, out)}")


def _experiment(settings: list[str], config: Path | None) -> Experiment:
    """The one experiment that settings describe; those that differ in what is not shown count as one."""
    from ..experiment import ConfigError
    from ..experiment.settings import expand, merged

    found = expand(merged(config, list(settings)))
    different = {(e.data, e.streams, e.seed): e for e in found}
    if len(different) > 1:
        raise ConfigError(
            f"these settings describe {len(different)} experiments that differ in data, streams or seed; "
            "a preview shows one: give a single value to each setting"
        )
    return found[0]


def _findings(record: Dataset) -> list[str]:
    from ..data import Cells, Digits, Phrases, Text
    from ..data.check_sets import check_published
    from ..data.own import OwnFiles
    from ..data.tables import TableRows

    if isinstance(record, TableRows | Cells | Phrases | Text):
        return _numbers(record)
    if isinstance(record, OwnFiles):
        record.sources()  # a set that was never named is a wrong setting, not a set that differs
    if isinstance(record, Digits):
        return _embedded(record)
    return check_published(record)


def _numbers(record: Dataset) -> list[str]:
    """A table can be compared with nothing: what was read, and what becomes of it."""
    world = record.world()
    shape = " x ".join(map(str, world.shape))
    read = f"examples {len(world.examples.y):,}, clients {world.clients}, classes {world.num_classes}, shape {shape}"
    return [f"ok: {read}", *(f"note: {note}" for note in world.notes)]


def _embedded(record: Dataset) -> list[str]:
    """The embedded digits have no files to be missing; scikit-learn may still carry others than it used to."""
    import torch

    from .data_files import DIGITS

    examples = record.load()
    real = torch.tensor([d != "font" for d in examples.domains])[examples.domain]
    found = tuple(torch.bincount(examples.y[real], minlength=10).tolist())
    shape = " x ".join(map(str, examples.x.shape[1:]))
    out = [
        "ok: embedded, no files are needed",
        f"ok: examples {len(examples.y):,}",
        f"ok: classes {len(examples.classes)}",
        f"ok: shape {shape}",
    ]
    if not bool(real.any()):
        return [*out, "note: drawn by the library; nothing is published for the domain font alone"]
    same = "ok: class histogram is the published one"
    return [*out, same if found == DIGITS else f"differs: class histogram {found}, published {DIGITS}"]
