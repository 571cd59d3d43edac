"""How scripts/convert_results.py reads the results of earlier versions: one function for each old schema.

Earlier versions had a benchmark for each paper, whose records had schemas of their own. A reader says where a file's
records are, and which numbers of which recipe each of them holds.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from acclimate.recipes import brfl, fedicon, fedpcl, fedtta, fedtta_tables
from acclimate.recipes.federations import DIGIT5, OFFICE10
from acclimate.recipes.fedpcl_tables import FAIRNESS

Record = dict[str, Any]
Numbers = Iterator[tuple[str, str, str, float]]
"""Recipe, row, column and our number, of one record. The recipe that comes first keeps the record."""


@dataclass
class Source:
    """An old file: where its records are, and how their numbers are read."""

    records: list[Record]
    read: Callable[[Record], Numbers]
    rounds: int | None = None
    fraction: float | None = None
    """Of all its records; None where they are the recipe's own."""
    notes: tuple[str, ...] = ()
    more: Record = field(default_factory=dict)
    """What the file says besides its records."""


# --- FedTHE -----------------------------------------------------------------------------------------------------------

NO_NATURAL = "Without CIFAR-10.1: there is no natural stream, and the mixture is of the other three."
THE_ROWS = {row: name for name, row in (brfl.PRINTED | brfl.BESIDE).items()}
FIRST_ROWS = {
    ("fedthe", "none", "the"): "fedthe",
    ("fedthe", "none", "tsa"): "tsa",
    ("fedthe", "none", "theplus"): "fedthe+",
    ("fedavg", "none", "none"): "fedavg",
    ("fedavg", "none", "memo"): "memo-g",
    ("fedavg", "finetune", "none"): "fedavg+ft",
    ("fedavg", "finetune", "memo"): "memo-p",
    ("fedavg", "finetune", "t3a"): "t3a",
    ("fedavg", "memory", "knn"): "knn-per",
    ("fedrod", "none", "none"): "fedrod",
    ("ditto", "none", "none"): "ditto",
}
"""Method, personaliser and adapter of the first file, which had no names of rows."""


def fedthe(body: Record, stem: str) -> Source:
    """Means over clients on every stream."""

    def read(record: Record) -> Numbers:
        for row in record["rows"]:
            for stream, found in row["streams"].items():
                column = f"{brfl.where_of(record['alpha'])} {stream}"
                yield "fedthe/table1", THE_ROWS[row["row"]], column, 100 * found["accuracy"]

    return Source(body["records"], read, notes=(NO_NATURAL,))


def fedthe_first(body: Record, stem: str) -> Source:
    """The first file, which had no schema: a table of results for every training."""

    def read(record: Record) -> Numbers:
        for line in record["table"]:
            row = FIRST_ROWS.get((line["method"], line["personal"], line["adapter"]))
            if row is not None and line["selection"] == "last":
                column = f"{brfl.where_of(record['alpha'])} {line['stream']}"
                yield "fedthe/table1", THE_ROWS[row], column, 100 * line["accuracy"]

    shared = {"command": body["command"]}
    records = [{**shared, **r, "environment": _at(body["environment"], r.get("commit"))} for r in body["rows"]]
    notes = (NO_NATURAL, "kNN-Per had its weight fixed at 0.5.", body["note"])
    return Source(records, read, notes=notes, more={"environment": body["environment"]})


def _at(environment: Record, commit: str | None) -> Record:
    return {**environment, "commit": commit or environment["commit"]}


# --- FedICON ----------------------------------------------------------------------------------------------------------

ICON_TABLES = {("digit5", "covariate"): "1", ("office10", "domain"): "2"}
ICON_TABLES |= {("office10", "covariate"): "5", ("digit5", "domain"): "7"}
ICON_KITS = {"digit5": ("Digit-5", DIGIT5), "office10": ("Office-10", OFFICE10)}
ICON_ROWS = {row: name for name, row in (fedicon.PRINTED | fedicon.BESIDE).items()}
ICON_PARTS = {"local": "nothing", "fedavg": "share", "extract+share": "extract+share", "fedicon": "extract+share+adapt"}
"""Rows that are also rows of Table 8."""
TABLE9 = ("local", "fedavg", "fedavg+ft", "fedicon", "fedicon-us")
FOUR_DOMAINS = "Digit-5 without SynthDigits, which was not at hand: four clients, or three and a domain left out."


def fedicon_(body: Record, stem: str) -> Source:
    """Accuracy by domain; the means of Tables 8 and 9 too."""
    slow = stem.endswith("tuned-at-1e-3")

    def read(record: Record) -> Numbers:
        title, kit = ICON_KITS[record["set"]]
        names = {own: printed for printed, own in kit.domains.items()}
        for row in record["rows"]:
            name = row["row"]
            shown = "FedICON, tuned at 1e-3" if slow and name == "fedicon" else ICON_ROWS[name]
            for domain, accuracy in row["accuracy"].items():
                table = ICON_TABLES[record["set"], record["shift"]]
                yield f"fedicon/table{table}", shown, names[domain], 100 * accuracy
            if slow or record["shift"] == "domain":
                continue
            mean = 100 * fmean(row["accuracy"].values())
            if name in ICON_PARTS and record["set"] == "digit5":
                yield "fedicon/table8", ICON_PARTS[name], "mean", mean
            if name in TABLE9:
                yield "fedicon/table9", shown, title, mean

    share = body["records"][0]["fraction"]
    notes = (FOUR_DOMAINS,) if body["records"][0]["set"] == "digit5" else ()
    notes += ("FedICON tunes at 1e-3 at test time; the recipe has 1e-4.",) if slow else ()
    return Source(body["records"], read, fraction=None if share == 1 else share, notes=notes)


def icon_rate(body: Record, stem: str) -> Source:
    """Rates of ICON on corrupted validation examples."""
    tests = body.pop("validation, corrupted")

    def read(record: Record) -> Numbers:
        printed = {own: name for name, own in DIGIT5.domains.items()}
        for name, found in record["rows"].items():
            row = name if name == "none" else f"rate {name}"
            yield "fedicon/rate", row, "mean", 100 * found["accuracy"]
            for own, accuracy in zip(("mnist", "mnistm", "svhn", "usps"), found["per_client"], strict=True):
                yield "fedicon/rate", row, printed[own], 100 * accuracy

    record = {k: v for k, v in body.items() if k != "schema"} | {"rows": tests}
    return Source([record], read, fraction=body["fraction"], notes=(FOUR_DOMAINS,))


# --- FedPCL -----------------------------------------------------------------------------------------------------------

PCL_ROWS = {named.name: row for row, named in fedpcl.ROWS.items()} | {"fedpcl-released": fedpcl.RELEASED}
PCL_DATA = {"digit5": "Digit-5", "office": "Office-10"}
PCL_KINDS = {"s": "single", "m": "multi"}
PCL_LOSSES = {"ce": "Cross Entropy", "ce+distance": "Cross Entropy + ProtoDist", "supcon": "Supervised Contrastive"}
PCL_MEASURES = {"accuracy": "mean"} | {m: m for m in ("worst10", "worst20", "worst40", "best10", "std")}
PCL_NOTES = (
    "Digit-5 without SynthDigits, which was not at hand. Clients had at most 120 training examples.",
    "Label shift among many clients dealt all four domains of Digit-5; the recipe has MNIST-M alone.",
)


def fedpcl_(body: Record, stem: str) -> Source:
    """All tables had one schema, and told them apart by the name of the setting."""
    reads = {"accuracy": _accuracy, "released": _released, "fairness": _fairness, "heterogeneity": _alphas}
    reads |= {"ablations": _ablations, "noise": _noise, "similarity": _similarity, "tuning": _tuning}
    command = shlex.join(["python", *body["command"]])
    shared = {"command": command, "environment": body["environment"]}
    rounds = None if stem == "tuning" else body["records"][0]["rounds"]
    records = [{**shared, **r} for r in body["records"]]
    return Source(records, reads[stem], rounds, notes=PCL_NOTES, more={"took": body["took"]})


def _accuracy(r: Record) -> Numbers:
    row, kind, data = PCL_ROWS[r["row"]], PCL_KINDS[r["backbones"]], PCL_DATA[r["data"]]
    if r["setting"] != "feature":
        yield "fedpcl/table11", row, f"{r['setting']} shift {kind} {data}", 100 * r["accuracy"]
    elif data == "Office-10":
        yield "fedpcl/table2", row, f"{kind} Office-10", 100 * r["accuracy"]
    else:
        for domain, accuracy in zip(("MNIST", "MNIST-M", "SVHN", "USPS"), r["per_client"], strict=True):
            yield "fedpcl/table2", row, f"{kind} {domain}", 100 * accuracy
        yield "fedpcl/table2", row, f"{kind} Avg", 100 * r["accuracy"]
        if row != "Solo":
            yield "fedpcl/table2", row, f"{kind} sent", r["parameters_sent"]


def _released(r: Record) -> Numbers:
    column = f"{r['setting']} shift {PCL_DATA[r['data']]}"
    yield "fedpcl/released", PCL_ROWS[r["row"]], column, 100 * r["accuracy"]


def _fairness(r: Record) -> Numbers:
    clients, row = int(r["setting"].removeprefix("fair")), PCL_ROWS[r["row"]]
    for quantity, measure in FAIRNESS.items():
        value = 100 * r["fairness"][PCL_MEASURES[measure]]
        if clients in (40, 80):
            yield f"fedpcl/table{12 if clients == 40 else 13}", row, quantity, value
    for quantity, measure in FAIRNESS.items():
        yield "fedpcl/figure2", row, f"{clients} clients, {quantity}", 100 * r["fairness"][PCL_MEASURES[measure]]


def _alphas(r: Record) -> Numbers:
    yield "fedpcl/figure2", PCL_ROWS[r["row"]], f"alpha {r['setting'].removeprefix('alpha')}", 100 * r["accuracy"]


def _ablations(r: Record) -> Numbers:
    value, several = 100 * r["accuracy"], r["backbones"] == "m"
    if r["row"] in PCL_LOSSES:
        yield "fedpcl/table5", PCL_LOSSES[r["row"]], "accuracy", value
    elif several:
        yield "fedpcl/table6", "both" if r["row"] == "fedpcl" else r["row"], f"{r['setting']} shift", value
    if r["row"] == "fedpcl" and r["setting"] == "both":
        row = f"{ {'s': 1, '2': 2, 'm': 3}[r['backbones']] } backbones"
        yield "fedpcl/table14", row, "test accuracy", value
        yield "fedpcl/table14", row, "training parameters", r["parameters_trained"]
        if several:
            yield "fedpcl/table5", "FedPCL", "accuracy", value


def _noise(r: Record) -> Numbers:
    row = re.sub(r", (\w)(\w+), s [\d.]+, p ", lambda m: f", {m[1].upper()}{m[2]}, p = ", r["row"])
    yield "fedpcl/table15", PCL_ROWS.get(row, row), "accuracy", 100 * r["accuracy"]


def _similarity(r: Record) -> Numbers:
    kit = fedpcl.KITS[PCL_DATA[r["data"]]]
    printed = {own: name for name, own in kit.domains.items()}
    for backbone, values in r["similarity"].items():
        for domain, value in zip(r["clients"], values, strict=True):
            yield "fedpcl/figure3", backbone, f"{PCL_DATA[r['data']]} {printed[domain]}", value


def _tuning(r: Record) -> Numbers:
    name, _, rate = r["row"].partition(", ")
    for point, value in r["validation"].items():
        yield "fedpcl/tuning", f"{PCL_ROWS[name]}, {rate}", f"round {point}", 100 * value


# --- FedSPL and FedTTA ------------------------------------------------------------------------------------------------

VALIDATED = ("FedAvg", "FMR", "GA", "ATP, not adapted", "FedSPL, released")
"""Rows that tell of their training's validation accuracy, which does not depend on the adapter."""


def fedspl(body: Record, stem: str) -> Source:
    """Accuracy on the domain left out, and validation accuracy on the others; or rates of local training."""
    rates = stem == "rates"

    def read(record: Record) -> Numbers:
        for row in record["rows"]:
            rate = re.search(r"SGD\(lr=([\d.]+)", record["method"])
            assert rate is not None, record["method"]
            recipe, name = ("fedspl/rates", f"rate {rate[1]}") if rates else ("fedspl/pacs", row["row"])
            yield recipe, name, record["held"], 100 * row["accuracy"][record["held"]]
            if rates or name in VALIDATED:
                yield recipe, name, f"{record['held']} validation", 100 * record["validation"]

    return Source(body["records"], read)


TTA_ROWS = {row.lower(): row for row in fedtta.lines(fedtta.SMOKE_RATES)} | {"fedtta-base": fedtta_tables.NOT_ADAPTED}
TTA_ROWS |= {"fedmd": "FedMD", "hetero-tent": "TENT", "hetero-0": "lambda 0", "hetero-0.8": "lambda 0.8"}
IN_ORDER = "Classes were dealt in order (`data.partition.shards=in-order`); the recipe deals any two to a client."


def fedtta_(body: Record, stem: str) -> Source:
    """Training clients and newcomers at the best round and at the last, or along the rounds."""
    hetero = stem.endswith("hetero")

    def read(record: Record) -> Numbers:
        column = {"mnist": "MNIST", "cifar10": "CIFAR-10"}[record["data"]]
        for row in record["rows"]:
            name = TTA_ROWS[row["row"]]
            for point, validation, new in row["curve"] if hetero else ():
                yield "fedtta/hetero-mnist", name, f"round {point:g} validation", 100 * validation
                yield "fedtta/hetero-mnist", name, f"round {point:g} test", 100 * new
            if not hetero:
                yield "fedtta/table1", name, f"{column} validation", 100 * row["best"]["validation"]
                yield "fedtta/table1", name, f"{column} test", 100 * row["best"]["new"]
                yield "fedtta/table1", name, f"{column} last round", 100 * row["last"]["new"]

    in_order = any("--shards in-order" in r["command"] for r in body["records"])
    return Source(body["records"], read, notes=(IN_ORDER,) if in_order else ())


SCHEMAS: dict[str, Callable[[Record, str], Source]] = {
    "acclimate.fedthe/1": fedthe,
    "acclimate.fedicon/1": fedicon_,
    "acclimate.icon-rate/1": icon_rate,
    "acclimate.fedpcl/2": fedpcl_,
    "acclimate.fedspl/1": fedspl,
    "acclimate.fedspl-rates/1": fedspl,
    "acclimate.fedtta/1": fedtta_,
}


def source_of(body: Any, stem: str) -> Source | None:
    """How an old file is read; None where it is none."""
    if not isinstance(body, dict):
        return None
    if "schema" not in body and "selection" in str(body.get("rows", [])[:1]):
        return fedthe_first(body, stem)
    schema = SCHEMAS.get(body.get("schema", ""))
    return schema(body, stem) if schema else None
