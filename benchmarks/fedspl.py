"""FedSPL's Tables 1 and 4 on PACS: each domain left out in turn, and a client for each of the other three.

    export ACCLIMATE_DATA=...
    python benchmarks/fedspl.py --seeds 0 1 2 --out fedspl.json
    python benchmarks/fedspl.py --show --out fedspl.json

Rows, methods and adapters are those of `acclimate reproduce`. Other than in the paper: an EfficientNet-Lite0 with
ImageNet weights (extra `backbones`) instead of a ResNet-18, images of 64 pixels, 40 rounds instead of 200, and batches
of 64 instead of 128, so that these rounds have more steps. FMR acts after blocks 2 and 4, where maps have a quarter and
an eighth of the image's side, as they have after the two ResNet stages of the released code.

The rate of local training is the paper's 0.2, for all methods. Of 0.05, 0.2 and 0.4 it had the best validation accuracy
on the training domains (31.7, 47.8 and 45.9 %), by FedAvg without Photo, seed 0, with --fraction 0.12 --rounds 8: few
steps, which favour large rates. At test time nothing was chosen: adapters have the rates of their papers or released
code; only MBSL has four times the released batch (64) and rate (8e-4), to save time. ATP's model is trained in four
fifths of the rounds, and its rates in the others.

All domains and seeds of one training are trained together, and tested together row by row. What --out already
holds is not run again, and it is written after every row. --fraction and --rounds make it small enough to try out.
--show prints the table beside the published numbers. Where there is no git, ACCLIMATE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import by_domain
import rows
from by_domain import Seeds
from rows import Record, Row

import acclimate as ac
from acclimate.adapters.mbsl import MBSL
from acclimate.core import SGD, Method, Work
from acclimate.models.encoders import LITE
from acclimate.recipes import fedspl as recipes
from acclimate.recipes import published
from acclimate.recipes.federations import PACS4
from acclimate.recipes.record import Line, adapter
from acclimate.running import run as api

SCHEMA = "acclimate.fedspl/1"
DOMAINS = tuple(PACS4.domains)
MEAN, STD = LITE
MODEL = ac.models.Pretrained("efficientnet-lite0")
ROUNDS, RATE, WORK = 40, recipes.RATE.lr, Work(epochs=1, batch=64)
AFTER = ("*._blocks.2", "*._blocks.4")
"""Where FMR exchanges values."""
TAUGHT = {"batch": 64, "opt": replace(MBSL().opt, lr=8e-4), "rho": MBSL().rho ** 4}
"""MBSL's batches and rate: four times the released ones, so that there are a fourth of the steps; the teacher moves in
each as far as in four."""
CONTROLS: dict[str, Line] = {
    "BN": replace(recipes.FEDAVG, adapter=adapter("bn")),
    "FMR, BN": replace(recipes.FMR, adapter=adapter("bn")),
    "ATP, not adapted": replace(recipes.ROWS["ATP"], adapter=adapter("none")),
    "FedSPL, released": Line(recipes.FMR.method.but(variant="released"), adapter("mbsl", variant="released", views=5)),
}
"""Not in the paper: what a test batch's statistics do by themselves, ATP's shorter training, and FedSPL as its code has
it, whose teacher moves in every step."""
LINES: dict[str, Line] = {**recipes.ROWS, "FMR": recipes.FMR, "MBSL": recipes.ABLATION["MBSL"], **CONTROLS}
ASKED = ("FedAvg", "BN", "Tent", "T3A", "MBSL", "FMR", "FMR, BN", "FedSPL", "GA", "ATP", "ATP, not adapted")
ASKED += ("FedSPL, released",)
"""The rows that are run unless others are named: five trainings."""


def row_of(line: Line) -> Row:
    """A row as the script runs it."""
    named = line.adapter.but(**TAUGHT) if line.adapter.name == "mbsl" else line.adapter
    return Row(line.method.name, line.personal.record, named.record)


ROWS = {name: row_of(line) for name, line in LINES.items()}


def trained_for(name: str, rounds: int, rate: float) -> Method:
    """The method behind a row, with this script's local work, for this model and so many rounds."""
    named = recipes.timed(LINES[name].method.but(opt=SGD(lr=rate), work=WORK), rounds)
    own: dict[str, dict[str, Any]] = {"fedspl": {"after": AFTER}, "fedatp": {"rate_work": replace(WORK, epochs=5)}}
    method: Method = named.but(**own.get(named.name, {})).record
    return method


def experiment(method: Method, held: str, seed: int, rounds: int, fraction: float = 1.0) -> ac.Experiment:
    """A training that leaves out this domain (as the paper prints it), and the stream of its images."""
    data = PACS4.federation("paper", held, fraction=fraction, mean=MEAN, std=STD)
    stream = ac.shifts.UnseenDomain(batch=recipes.BATCH)
    return ac.Experiment(data, MODEL, method, streams=(stream,), rounds=rounds, seed=seed, eval_every=rounds)


def left_out(e: ac.Experiment) -> str:
    """The domain that an experiment leaves out, as the paper prints it."""
    return next(printed for printed, domain in PACS4.domains.items() if domain in e.data.held_out)


def about(fit: api.Fit, together: int) -> Record:
    """What records have here: what is left out, and how well the other domains' validation examples are known."""
    model, validation = repr(fit.experiment.model), fit.history[-1]["val_accuracy"]
    return {"held": left_out(fit.experiment), "model": model, "validation": validation, "trained_together": together}


def numbers(fit: api.Fit, last: list[Record]) -> Record:
    """Every client meets the whole domain, in an order of its own."""
    (line,) = last
    return {
        "accuracy": {left_out(fit.experiment): line["accuracy"]},
        **{k: line[k] for k in ("per_client", "loss", "ece")},
    }


SCRIPT = rows.Script(
    about, ROWS.__getitem__, numbers, lambda row: row["accuracy"], lambda e: f"without {left_out(e)}, seed {e.seed}"
)


def printed() -> dict[str, dict[str, float]]:
    """The paper's numbers by row and domain: Table 1, and Table 4 for FedSPL's two parts."""
    table1 = [n for n in published.table("fedspl/table1")["rows"] if n["dataset"] == "PACS"]
    table4 = [n for n in published.table("fedspl/table4")["rows"] if n["method"] in ("FMR", "MBSL")]
    out: dict[str, dict[str, float]] = {}
    for number in table1 + table4:
        out.setdefault(number["method"], {})[number["domain"]] = number["mean"]
    return out


def rendered(by_row: dict[str, Seeds]) -> str:
    """One Markdown table."""
    lines = by_domain.head(DOMAINS)
    for name in (n for n in ROWS if n in by_row):
        theirs = printed().get(name, {})
        lines.append(by_domain.line(name, by_row[name], DOMAINS, theirs, theirs.get("Avg")))
    return "\n".join(lines)


def show(body: dict[str, Any]) -> None:
    """Print a table for every length of training and share of the data that was run."""
    source = f"{published.table('fedspl/table1')['paper']}, Tables 1 and 4 (ResNet-18)"
    tables = by_domain.collected(body["records"], lambda r: (r["rounds"], r["fraction"]))
    for (rounds, fraction), by_row in sorted(tables.items()):
        part = "" if fraction == 1 else f", {fraction:g} of the data"
        print(f"PACS, {rounds} rounds{part}; in brackets: {source}\n\n{rendered(by_row)}\n")


def main() -> None:
    """Run what is asked for and not there yet, or show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = f"instead: {', '.join(ROWS)}"
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", default=list(ASKED), help=listed)
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS), help="to leave out")
    parser.add_argument("--rate", type=float, default=RATE, help="of local training")
    by_domain.add_options(parser, ROUNDS)
    args = parser.parse_args()
    body = rows.opened(args.out, SCHEMA)
    if args.show:
        show(body)
        return
    trainings: dict[Method, dict[str, Row]] = {}
    for name in args.rows:
        trainings.setdefault(trained_for(name, args.rounds, args.rate), {})[name] = ROWS[name]
    for method, asked in trainings.items():
        places = [(domain, seed) for seed in args.seeds for domain in args.domains]
        wanted = [experiment(method, *place, args.rounds, args.fraction) for place in places]
        todo = {e: rows.missing(body["records"], asked, e) for e in wanted}
        rows.add(body, args.out, type(method).__name__, todo, SCRIPT, args.keep)


if __name__ == "__main__":
    main()
