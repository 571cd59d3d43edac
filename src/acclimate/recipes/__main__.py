"""`python -m acclimate.recipes`: what `acclimate reproduce` does, with torch, numpy and safetensors alone.

It is for machines with a GPU that have none of the command line's packages. Smoke scale needs scikit-learn's file of
digits, none of its code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import recipes, store
from ..experiment import ConfigError
from ..running.progress import Lines
from . import command
from .pages import plain
from .show import details


def parser() -> argparse.ArgumentParser:
    """The words and options of the command."""
    top = argparse.ArgumentParser(prog="python -m acclimate.recipes", description="The papers' tables and figures.")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("list", help="list all recipes")
    verb.add_argument("paper", nargs="?", help="only this paper, such as fedthe")
    verb = verbs.add_parser("show", help="show a recipe: rows, columns, data, notes and published numbers")
    verb.add_argument("name")
    verb = verbs.add_parser("index", help="make an index page of results")
    verb.add_argument("results", type=Path)
    verb.add_argument("-o", "--out", type=Path, help="write to this file instead of printing")
    verb = verbs.add_parser("coverage", help="say how many of the published accuracies results have, and how near")
    verb.add_argument("results", type=Path, nargs="?", default=command.RESULTS)
    verb.add_argument("--data", help="the data that counts as being here, such as 'CIFAR10; Digit5 (mnist, usps)'")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.add_argument("-o", "--out", type=Path, help="write a picture (SVG) to this file")
    verb.add_argument("--page", type=Path, help="put it into this page, between its marks")
    _asked_for(verbs.add_parser("table", help="write the table of what is finished, and train nothing"))
    verb = _asked_for(verbs.add_parser("run", help="run a recipe, or go on with it"))
    verb.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    verb.add_argument("-q", "--quiet", action="store_true", help="no lines about progress")
    return top


def _asked_for(verb: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options that say what is asked for of a recipe."""
    verb.add_argument("name")
    verb.add_argument("--scale", default="smoke", help="smoke or paper")
    verb.add_argument("--rows", action="append", default=[], help="only these rows (repeat it, or separate them by ;)")
    verb.add_argument("--columns", action="append", default=[], help="only columns with these words in their names")
    verb.add_argument("--seeds", default="1", help="how many, from 0; or which, such as 0,2")
    verb.add_argument("--rounds", type=int, help="train for so many rounds instead")
    verb.add_argument("--fraction", type=float, help="use this share of the recipe's data")
    verb.add_argument("--weights", metavar="FILE", help="start from this ResNet-18 or -50; also written weights=FILE")
    verb.add_argument("-o", "--out", type=Path, default=command.OUT, help="folder; what it holds is not run again")
    return verb


def run(args: argparse.Namespace) -> str:
    """Run a recipe; its table as text."""
    seeds = command.seeds_of(args.seeds)
    sizes = args.rounds, args.fraction, args.weights
    plan = command.planned(args.name, args.scale, args.device, args.rows, args.columns, *sizes)
    for line in command.lacking(plan):
        print(line, flush=True)
    command.require_some(plan)
    watch = None if args.quiet else Lines(sys.stderr)
    result = recipes.run(plan, args.out, seeds, args.device, watch)
    return f"{plain(result)}\n{command.written(plan, args.out)}"


def table(args: argparse.Namespace) -> str:
    """The table of what is finished, as text."""
    sizes = args.rounds, args.fraction, args.weights
    plan = command.planned(args.name, args.scale, "auto", args.rows, args.columns, *sizes)
    result = recipes.table(plan, args.out, command.seeds_of(args.seeds))
    return f"{plain(result)}\n{command.written(plan, args.out)}"


def answer(args: argparse.Namespace) -> str:
    """What a command prints in the end."""
    if args.verb == "list":
        return command.listed(args.paper)
    if args.verb == "show":
        return details(recipes.recipe(args.name))
    if args.verb == "run":
        return run(args)
    if args.verb == "table":
        return table(args)
    if args.verb == "coverage":
        return command.coverage(args.results, args.data, args.json, args.out, args.page)
    page = recipes.index(args.results)
    if args.out is None:
        return page.rstrip("\n")
    store.write(args.out, page)
    return f"wrote {args.out}"


def main() -> None:
    """The command; errors of the user's are one line."""
    # `weights=FILE` is how `acclimate` writes settings
    args = parser().parse_args([f"--{word}" if word.startswith("weights=") else word for word in sys.argv[1:]])
    sys.argv[:1] = ["python", "-m", "acclimate.recipes"]  # what results say they were made by
    try:
        print(answer(args))
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on: what is finished lies in {args.out}", file=sys.stderr)
        raise SystemExit(130) from None
    except (ConfigError, ValueError, store.RunError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
