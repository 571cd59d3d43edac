"""`acclimate reproduce`: the papers' tables and figures, ours beside the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from . import completion
from .json_out import Json, document


class _Group(TyperGroup):
    """`reproduce fedthe/table1` is `reproduce run fedthe/table1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((a for a in args if not a.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


class _Run(TyperCommand):
    """`weights=FILE`, as settings are written elsewhere, is `--weights=FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"--{a}" if a.startswith("weights=") else a for a in args])


reproduce_app = typer.Typer(
    cls=_Group,
    help="Run the papers' tables and figures: `reproduce list`, `reproduce show NAME`, `reproduce NAME`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Name = Annotated[
    str,
    typer.Argument(
        help="A recipe of `acclimate reproduce list`, such as fedthe/table1.",
        autocompletion=completion.one_of("recipes"),
    ),
]
OUT = Path("reproduced")


@reproduce_app.command("list")
def list_(
    paper: Annotated[str | None, typer.Argument(help="Only this paper, such as fedthe.")] = None, as_json: Json = False
) -> None:
    """List all recipes: what they show, what data they need and whether it is there, and how long they take."""
    from ..recipes import command

    if as_json:
        recipes, omitted = command.cards(paper)
        typer.echo(document("reproduce-list", recipes=recipes, without_recipe=omitted))
    else:
        typer.echo(command.listed(paper))


@reproduce_app.command()
def show(name: Name, as_json: Json = False) -> None:
    """Show a recipe: its rows, columns, data and notes, and the published numbers."""
    from ..recipes import recipe
    from ..recipes.show import details

    text = details(recipe(name))
    typer.echo(document("reproduce-show", name=name, text=text) if as_json else text)


@reproduce_app.command("index")
def index_(
    results: Annotated[Path, typer.Argument(help="A folder of results.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write to this file instead of printing.")] = None,
) -> None:
    """Make an index page of results: what was reproduced, on what device, at what commit, how far from the paper."""
    from .. import store
    from ..recipes import index

    page = index(results)
    if out is None:
        typer.echo(page, nl=False)
    else:
        store.write(out, page)
        typer.echo(f"wrote {out}")


@reproduce_app.command()
def coverage(
    results: Annotated[Path, typer.Argument(help="A folder of results.")] = Path("results"),
    data: Annotated[
        str | None, typer.Option(help="The data that counts as being here: 'CIFAR10; Digit5 (mnist, usps)'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write a picture (SVG) to this file.")] = None,
    page: Annotated[Path | None, typer.Option(help="Put it into this page, between its marks.")] = None,
) -> None:
    """Say how many of the papers' accuracies results have, how near they are, and which of the papers' orders hold."""
    from ..recipes import command

    typer.echo(command.coverage(results, data, as_json, out, page))


Scale = Annotated[str, typer.Option(help="smoke: embedded digits, minutes; paper: its data, model and rounds.")]
Seeds = Annotated[str, typer.Option(help="How many seeds, from 0; or which, with commas: 0,2.")]
Rounds = Annotated[int | None, typer.Option(help="Train for so many rounds instead.")]
Fraction = Annotated[float | None, typer.Option(help="Use this share of the recipe's data.")]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Start from this ResNet-18 or -50, or a folder of them; also weights=FILE."),
]
Out = Annotated[Path, typer.Option("-o", "--out", help="Folder of results; what it holds is not run again.")]
Names = Annotated[list[str] | None, typer.Option(help="Only these rows (repeat it, or separate them by ;).")]
Words = Annotated[list[str] | None, typer.Option(help="Only columns with these words in their names, such as Photo.")]


@reproduce_app.command(cls=_Run)
def run(
    name: Name,
    scale: Scale = "smoke",
    rows: Names = None,
    columns: Words = None,
    seeds: Seeds = "1",
    rounds: Rounds = None,
    fraction: Fraction = None,
    weights: Weights = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Out = OUT,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress display.")] = False,
    as_json: Json = False,
) -> None:
    """Run a recipe and print ours beside the published numbers. Run it again to go on where it was stopped."""
    from .. import recipes
    from ..recipes import command
    from .progress import display
    from .threads import use_half_of_the_cores

    numbers = command.seeds_of(seeds)
    plan = command.planned(name, scale, device, rows or (), columns or (), rounds, fraction, weights)
    for line in command.lacking(plan):
        typer.echo(line, err=as_json)
    command.require_some(plan)
    use_half_of_the_cores()
    try:
        with display(quiet) as watch:
            result = recipes.run(plan, out, numbers, device, watch)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on: what is finished lies in {out}", err=True)
        raise SystemExit(130) from None
    _show(result, command.written(plan, out), as_json)


def _show(result: Any, written: str, as_json: bool) -> None:
    from ..recipes.pages import plain

    typer.echo(document("reproduce", result=result) if as_json else f"{plain(result)}\n{written}")


@reproduce_app.command()
def table(
    name: Name,
    scale: Scale = "smoke",
    rows: Names = None,
    columns: Words = None,
    seeds: Seeds = "1",
    rounds: Rounds = None,
    fraction: Fraction = None,
    weights: Weights = None,
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Write the table of what is finished in a folder, wherever it was trained; nothing is trained."""
    from .. import recipes
    from ..recipes import command

    numbers = command.seeds_of(seeds)
    plan = command.planned(name, scale, "auto", rows or (), columns or (), rounds, fraction, weights)
    _show(recipes.table(plan, out, numbers), command.written(plan, out), as_json)
