"""`acclimate reproduce`: the papers' tables and figures, ours beside the published numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

    from ..recipes import Plan, Recipe


class _Group(TyperGroup):
    """`reproduce fedthe/table1` is `reproduce run fedthe/table1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next((a for a in args if not a.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


reproduce_app = typer.Typer(
    cls=_Group,
    help="Run the papers' tables and figures: `reproduce list`, `reproduce show NAME`, `reproduce NAME`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Name = Annotated[str, typer.Argument(help="A recipe of `acclimate reproduce list`, such as fedthe/table1.")]
OUT = Path("reproduced")


@reproduce_app.command("list")
def list_(paper: Annotated[str | None, typer.Argument(help="Only this paper, such as fedthe.")] = None) -> None:
    """List all recipes: what they show, what data they need and whether it is there, and how long they take."""
    from ..recipes import OMITTED, RECIPES

    papers = list(dict.fromkeys(r.paper for r in RECIPES.values()))
    if paper is not None and paper not in papers:
        raise ValueError(f"no paper '{paper}'; allowed: {', '.join(papers)}")
    rows: list[tuple[str, ...]] = [("name", "trainings", "time", "printed", "data", "what")]
    rows += [_about(r) for r in RECIPES.values() if paper in (None, r.paper)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        typer.echo("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]))
    typer.echo(
        "\ntrainings, time: at paper scale, roughly, for one seed on a large GPU; --scale smoke takes minutes on two "
        "cores and needs no data.\nprinted: how many of its numbers the paper prints. data: what paper scale needs; "
        "! is not there (ACCLIMATE_DATA names the folder; see `acclimate data list`)."
    )
    left = [f"{name} ({why})" for name, why in OMITTED.items() if paper in (None, name.partition("/")[0])]
    typer.echo(f"Without a recipe: {'; '.join(left)}.")


@reproduce_app.command()
def show(name: Name) -> None:
    """Show a recipe: its rows, columns, data and notes, and the published numbers."""
    from ..recipes import recipe
    from ..recipes.show import details

    typer.echo(details(recipe(name)))


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
def run(
    name: Name,
    scale: Annotated[str, typer.Option(help="smoke: embedded digits, minutes; paper: its data, model and rounds.")] = (
        "smoke"
    ),
    rows: Annotated[list[str] | None, typer.Option(help="Only these rows (repeat it, or separate them by ;).")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of results; what it holds is not run again.")] = OUT,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress display.")] = False,
) -> None:
    """Run a recipe and print ours beside the published numbers. Run it again to go on where it was stopped."""
    from rich.console import Console

    from .. import recipes
    from ..running.run import device_of
    from .progress import display
    from .threads import use_half_of_the_cores

    if seeds < 1:
        raise ValueError(f"--seeds {seeds} must be at least 1")
    device_of(device)  # before anything is read
    asked = [part.strip() for word in rows or [] for part in word.split(";") if part.strip()]
    plan = recipes.plan(recipes.recipe(name), scale, asked)  # type: ignore[arg-type]
    console = Console(markup=False)  # reasons, folders and rows may have square brackets
    _say_missing(plan, console)
    use_half_of_the_cores()
    try:
        with display(quiet) as watch:
            result = recipes.run(plan, out, range(seeds), device, watch)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on: what is finished lies in {out}", err=True)
        raise typer.Exit(130) from None
    _print(result, console)
    console.print(f"results: {out / name}-{scale}.json and .md", highlight=False, soft_wrap=True)


def _about(recipe: Recipe) -> tuple[str, ...]:
    from ..recipes import needs, published
    from ..recipes.record import trainings

    cells = recipe.cells("paper")
    trained = trainings(cells)
    data = [word if there else f"{word}!" for word, there in needs.wanted(cells).items()]
    name = recipe.published
    printed = sum(bool(name and c.key is not None and published.find(name, c.key)) for c in cells)
    time = _span(sum(t.rounds for t in trained) * recipe.pace)
    return recipe.name, str(len(trained)), time, str(printed or "-"), ", ".join(data), recipe.title


def _span(seconds: float) -> str:
    return f"~{seconds / 3600:.0f} h" if seconds >= 5400 else f"~{max(seconds / 60, 1):.0f} min"


def _say_missing(plan: Plan, console: Console) -> None:
    """What cannot run, and what runs nevertheless."""
    from ..recipes import Cell

    cells = [c for c in plan.cells if isinstance(c, Cell)]
    for reason, gone in plan.left_out.items():
        console.print(f"missing: {reason} ({len(gone)} cells, such as {gone[0]})", highlight=False, soft_wrap=True)
    if plan.left_out and cells:
        console.print(f"running without: {len(cells)} cells, {len(plan.trainings)} trainings", highlight=False)
    if not cells:
        from ..store import RunError

        raise RunError(
            f"{plan.recipe.name}: nothing can run at {plan.scale} scale; see `acclimate data list` for what is there, "
            "or use --scale smoke"
        )


def _print(result: dict[str, Any], console: Console) -> None:
    from rich import box
    from rich.table import Table

    from ..recipes.table import blocks, remarks, summary

    for head, body in blocks(result["cells"]):
        table = Table(*head, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for line in body:
            table.add_row(*line)
        console.print(table)
    console.print("ours ± std over seeds (published, difference); ? marks a doubtful published number", highlight=False)
    console.print(summary(result), highlight=False, soft_wrap=True)
    for text in remarks(result):
        console.print(f"- {text}", highlight=False, soft_wrap=True)
