"""FedICON's Tables 1, 2, 5, 7, 8 and 9: Digit-5 and Office-10 under covariate and domain shift, 100 rounds of 5 epochs.

    export ACCLIMATE_DATA=...
    python benchmarks/fedicon.py --seeds 0 1 2 --out fedicon.json
    python benchmarks/fedicon.py --sets digit5 --shifts covariate --table ablation --out ablation.json
    python benchmarks/fedicon.py --show --out fedicon.json

Covariate: a client per domain, tested on its own examples, corrupted at severity 5. Domain: every domain is left out in
turn, and all clients are tested on it. Domains that are not under ACCLIMATE_DATA are left out altogether. A row is one
training and one way to test it; what --out already holds is not run again, and it is written after every row. --show
prints the tables beside the published numbers; --fraction and --rounds make it small enough to try out. Where there is
no git, ACCLIMATE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import by_domain
import rows
from by_domain import Seeds
from rows import Record, Row

import acclimate as ac
from acclimate.adapters.icon import ICON
from acclimate.core import Method
from acclimate.methods.fedicon import FedICON
from acclimate.ops.augment import Views
from acclimate.recipes import fedicon as recipes
from acclimate.recipes import published
from acclimate.recipes.federations import DIGIT5, OFFICE10
from acclimate.recipes.record import Named
from acclimate.running import run as api

SCHEMA = "acclimate.fedicon/1"
MIRRORED = {"digit5": False, "office10": True}
"""Whether views may be mirrored: a mirrored digit is no digit."""
SETS: dict[str, Any] = {"digit5": ac.data.Digit5, "office10": ac.data.OfficeCaltech10}
KITS = {"digit5": DIGIT5, "office10": OFFICE10}
SHIFTS = ("covariate", "domain")


class Training(NamedTuple):
    """What is trained; `norm` is the model's, which the paper adds where a row needs it."""

    method: Method
    norm: Any = "none"


TRAININGS = {
    name: Training(named.record, "batch" if name in recipes.BATCH_NORM else "none")
    for name, named in recipes.TRAININGS.items()
}


def _rows(defined: Mapping[str, tuple[str, Named, Named]]) -> dict[str, Row]:
    """Rows as `acclimate reproduce` has them."""
    return {name: Row(trained, p.record, a.record) for name, (trained, p, a) in defined.items()}


TABLES = {"tables": _rows(recipes.ROWS), "ablation": _rows(recipes.ABLATION)}
ROWS = {name: row for table in TABLES.values() for name, row in table.items()}
PLACES = {
    "digit5 covariate": "fedicon/table1",
    "office10 domain": "fedicon/table2",
    "office10 covariate": "fedicon/table5",
    "digit5 domain": "fedicon/table7",
}
"""Where the numbers of the main tables are published."""


def layout(table: str) -> dict[str, Any]:
    """The rows of a table with their published numbers, by data set and shift and by domain."""
    lines: dict[str, dict[str, Any]] = {row: {"row": row, "name": row, "published": {}} for row in TABLES[table]}
    if table == "ablation":
        for number in published.table("fedicon/table8")["rows"]:
            row = "+".join(part for field, part in recipes.PARTS.items() if number[field]) or "nothing"
            lines[row]["published"]["digit5 covariate"] = {"mean": [number["mean"], number["std"]]}
        return {"source": _source("8"), "rows": list(lines.values())}
    for place, name in PLACES.items():
        domains = KITS[place.split()[0]].domains
        for number in published.table(name)["rows"]:
            line = lines[recipes.PRINTED[number["method"]]]
            line["name"] = number["method"]
            cells = line["published"].setdefault(place, {})
            cells[domains[number["domain"]]] = [number["mean"], number["std"]]
    for number in published.table("fedicon/table9")["rows"]:
        if number["method"] == "FedICON-us":
            place = f"{number['dataset'].lower().replace('-', '')} covariate"
            lines["fedicon-us"]["published"][place] = {"mean": [number["mean"], number["std"]]}
    return {"source": _source("1, 2, 5, 7 and 9"), "rows": list(lines.values())}


def _source(tables: str) -> str:
    return f"{published.table('fedicon/table1')['paper']}, Tables {tables}"


class Place(NamedTuple):
    """A data set, a shift, and for the domain shift the domain that is left out."""

    set: str
    shift: str
    held: str | None

    def __str__(self) -> str:
        return f"{self.set} {self.shift}" + (f" without {self.held}" if self.held else "")


def domains_of(set: str) -> tuple[str, ...]:
    """The domains whose files are there."""
    there = []
    for domain in SETS[set].every:
        try:
            SETS[set](domains=(domain,)).sources()
        except FileNotFoundError:
            continue
        there.append(domain)
    if not there:
        raise SystemExit(f"{set}: no domain is under ACCLIMATE_DATA; `acclimate data` says what is needed")
    return tuple(there)


def places(sets: list[str], shifts: list[str], held: list[str] | None = None) -> list[Place]:
    """Everything to train on; `held` leaves out no other domains than these."""
    out = []
    for set, shift in itertools.product(sets, shifts):
        left_out = [d for d in domains_of(set) if held is None or d in held]
        out += [Place(set, shift, d) for d in left_out] if shift == "domain" else [Place(set, shift, None)]
    return out


def with_views(record: Any, set: str) -> Any:
    """A method or adapter whose views fit the data set."""
    if isinstance(record, FedICON | ICON):
        return replace(record, views=Views(flip=MIRRORED[set]))
    return record


def experiment(training: str, place: Place, seed: int, rounds: int, fraction: float = 1.0) -> ac.Experiment:
    """The training that rows share."""
    domains, held = domains_of(place.set), (place.held,) if place.held else ()
    clients = len(domains) - len(held)
    data = SETS[place.set](
        domains=domains, size=32, partition=ac.data.ByDomain(), clients=clients, held_out=held, fraction=fraction
    )
    method, norm = TRAININGS[training]
    stream = ac.shifts.UnseenDomain() if held else ac.shifts.Corrupted()
    return ac.Experiment(
        data,
        ac.models.CNN(norm=norm),
        with_views(method, place.set),
        streams=(stream,),
        rounds=rounds,
        seed=seed,
        eval_every=rounds,
    )


def defined(name: str, place: Place) -> Row:
    """A row as this data set takes it."""
    row = ROWS[name]
    return row._replace(adapter=with_views(row.adapter, place.set))


Asked = dict[ac.Experiment, Place]
"""Every place and seed of one training."""


def script(training: str, asked: Asked) -> rows.Script:
    """How the records of this training look, and how they are told of."""

    def about(fit: api.Fit, together: int) -> Record:
        place, e = asked[fit.experiment], fit.experiment
        told = {"training": training, **place._asdict(), "model": repr(e.model)}
        return {**told, "validation": fit.history[-1]["val_accuracy"], "trained_together": together}

    def row(name: str) -> Row:
        return defined(name, next(iter(asked.values())))  # all are of one data set

    def numbers(fit: api.Fit, last: list[Record]) -> Record:
        (line,), held = last, asked[fit.experiment].held
        own = [d for d in fit.world.examples.domains if d != held]  # client c holds the c-th of these
        by_domain = {held: line["accuracy"]} if held else dict(zip(own, line["per_client"], strict=True))
        return {"accuracy": by_domain, "loss": line["loss"], "ece": line["ece"]}

    return rows.Script(about, row, numbers, lambda row: row["accuracy"], lambda e: f"{asked[e]}, seed {e.seed}")


def lacking(records: list[Record], names: list[str], e: ac.Experiment, place: Place) -> list[str]:
    """The rows that no record of this place holds as they are defined now."""
    here = [r for r in records if r["held"] == place.held]
    return rows.missing(here, {n: defined(n, place) for n in names}, e)


def table_of(record: Record) -> tuple[str, int, float]:
    """Data set and shift, rounds and fraction: the table that a record belongs to."""
    return f"{record['set']} {record['shift']}", record["rounds"], record["fraction"]


def rendered(layout: dict[str, Any], place: str, by_row: dict[str, Seeds]) -> str:
    """One Markdown table: the rows of the layout that were run.

    A published mean is over the columns, or over all of the paper's domains where it has no others (Tables 8 and 9).
    """
    columns = sorted({d for seeds in by_row.values() for cells in seeds.values() for d in cells})
    lines = by_domain.head(columns)
    for row in (r for r in layout["rows"] if r["row"] in by_row):
        theirs = {domain: number[0] for domain, number in row["published"].get(place, {}).items()}
        mean = theirs.pop("mean", None)
        if mean is None and all(d in theirs for d in columns):
            mean = statistics.fmean(theirs[d] for d in columns)
        lines.append(by_domain.line(row["name"], by_row[row["row"]], columns, theirs, mean))
    return "\n".join(lines)


def show(body: dict[str, Any], table: str) -> None:
    """Print a table for every data set, shift and size that was run."""
    lines = layout(table)
    for (place, rounds, fraction), by_row in sorted(by_domain.collected(body["records"], table_of).items()):
        part = "" if fraction == 1 else f", {fraction:g} of the data"
        print(f"{place}, {rounds} rounds{part}; in brackets: {lines['source']}\n\n{rendered(lines, place, by_row)}\n")


def main() -> None:
    """Run what is asked for and not there yet, or show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=list(TABLES), default="tables")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", help=f"instead: {', '.join(ROWS)}")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--shifts", nargs="+", choices=SHIFTS, default=list(SHIFTS))
    parser.add_argument("--held", nargs="+", metavar="DOMAIN", help="under domain shift: to leave out; default: each")
    by_domain.add_options(parser, rounds=100)
    args = parser.parse_args()
    body = rows.opened(args.out, SCHEMA)
    if args.show:
        show(body, args.table)
        return
    known = {d for set in args.sets for d in domains_of(set)}
    if odd := [d for d in args.held or () if d not in known]:
        parser.error(f"--held {' '.join(odd)}: must be among {', '.join(sorted(known))}")
    asked = args.rows or list(TABLES[args.table])
    for set, shift, training in itertools.product(args.sets, args.shifts, TRAININGS):
        if names := [n for n in asked if ROWS[n].training == training]:
            each = itertools.product(places([set], [shift], args.held), args.seeds)
            wanted = {experiment(training, p, seed, args.rounds, args.fraction): p for p, seed in each}
            todo = {e: lacking(body["records"], names, e, place) for e, place in wanted.items()}
            rows.add(body, args.out, f"{training}, {set} {shift}", todo, script(training, wanted), args.keep)


if __name__ == "__main__":
    main()
