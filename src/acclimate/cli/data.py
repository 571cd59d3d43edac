"""`acclimate data`: which data sets there are, whether they are sound, and what an experiment makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .json_out import Json, document

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

DIGITS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
"""How many of the 1,797 handwritten digits that scikit-learn carries are a 0, a 1, ..."""


@data_app.command("list")
def list_(
    root: Annotated[
        Path | None, typer.Option("--root", help="The folder that holds data sets (default: ACCLIMATE_DATA).")
    ] = None,
    as_json: Json = False,
) -> None:
    """List all data sets: what was published, and whether their files are there."""
    from ..data import FileDataset
    from ..experiment.catalogue_data import DATASETS
    from ..ops.places import DATA

    folder = FileDataset(root=str(root or "")).folder()
    head = ("name", "examples", "classes", "shape", "files")
    rows = [(name, *_figures(record), _state(record, str(root or ""))) for name, record in DATASETS.items()]
    if as_json:
        sets = [dict(zip(head, row, strict=True)) for row in rows]
        typer.echo(document("data-list", root=str(folder) if folder else None, datasets=sets))
        return
    if folder is None:
        typer.echo(f"data root: none; name it with --root or the environment variable {DATA}")
    else:
        typer.echo(f"data root: {folder}" + ("" if folder.is_dir() else " (does not exist)"))
    rows = [head, *rows]
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    for row in rows:
        typer.echo("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]))
    typer.echo("`acclimate data check NAME` says which files a set needs and where to get them.")


@data_app.command()
def check(
    name: Annotated[str, typer.Argument(help="A data set of `acclimate data list`, or your own as module:Class.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value settings of the set, e.g. root=/data domains=mnist,usps")
    ] = None,
) -> None:
    """Compare a set's files, counts, shapes and class histograms with the published ones.

    Exit 0: as published. Exit 1: something differs. Exit 2: files are missing.
    """
    from ..experiment.settings import expand

    prefixed = [s if s.startswith("data.") else f"data.{s}" for s in settings or []]
    findings = [line for e in expand([f"data={name}", *prefixed]) for line in _findings(e.data)]
    kinds = [line.partition(":")[0] for line in findings]
    for kind, line in zip(kinds, findings, strict=True):
        if kind != "missing":
            typer.echo(line)
    for line in findings:
        if line.startswith("missing: "):
            typer.echo(f"acclimate: {line.removeprefix('missing: ')}", err=True)
    if code := 2 if "missing" in kinds else 1 if "differs" in kinds else 0:
        raise SystemExit(code)


@data_app.command()
def preview(
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value settings as for `acclimate run`, e.g. data.clients=5")
    ] = None,
    config: Annotated[Path | None, typer.Option("-c", "--config", help="A TOML file of settings.")] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The HTML file.")] = Path("preview.html"),
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


def _figures(record: Dataset) -> tuple[str, str, str]:
    """What was published: examples (training + test), classes, shape; a dash for what was not."""
    from ..data import Cells, FileDataset, Phrases
    from ..data.tables import TableRows

    want: dict[str, Any] = {"all": sum(DIGITS), "classes": len(DIGITS), "shape": (1, 8, 8)}
    if isinstance(record, Cells):
        want = {"all": 569, "classes": 2, "shape": (30,)}
    elif isinstance(record, Phrases):
        want = {"all": len(record.styles) * record.each, "classes": 8, "shape": (record.length,)}
    elif isinstance(record, TableRows):
        want = {}
    elif isinstance(record, FileDataset):
        want = record.expected()
    counts = [want["all"]] if "all" in want else [want[p] for p in ("train", "test") if p in want]
    shape = " x ".join(map(str, want.get("shape", ())))
    return " + ".join(f"{n:,}" for n in counts) or "-", str(want.get("classes", "-")), shape or "-"


def _state(record: Dataset, root: str) -> str:
    """Whether the files of a set are there, and what is missing, in a short phrase."""
    import dataclasses

    from ..data import FileDataset
    from ..data.own import OwnFiles
    from ..data.tables import TableRows

    if isinstance(record, OwnFiles | TableRows):
        return f"your own: {record.needs}"
    if not isinstance(record, FileDataset):
        return "embedded"
    try:
        base = dataclasses.replace(record, root=root).sources().base
    except FileNotFoundError as e:
        lacking = str(e).partition(" lacks ")[2]  # so the message reads where a part of the set is there
        lacking = lacking.partition(" (data.root=")[0].partition(";")[0]
        phrase = lacking or record.needs
        return f"missing: {phrase if len(phrase) <= 64 else f'{phrase[:61].rstrip()}...'}"
    except (ValueError, ImportError, OSError) as e:
        return f"unreadable: {e}"
    return f"found in {base}"


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
