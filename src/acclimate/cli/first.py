"""What `acclimate run` compares where no method is named, and what such a table shows, in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..eval.table import Row, Table
    from ..experiment import Experiment

ROWS = {
    "fedavg": "none",
    "fedavg+finetune": "none",
    "fedthe": "none,the,guarded-the",
    "fedtta": "none,fedtta",
}
"""The methods of the first table, and the adapters of each."""
SETTINGS = {
    "model": "mlp",
    "method.opt.lr": "0.2",
    "data.new_clients": "5",
    "streams": "original,corrupted,out-of-client,mixture,new-clients",
}
"""What makes it quick and fair: scripts/choose_rate.py chose the rate, by validation data."""
OWN = {"fedtta": {"method.inner_lr": "0.05"}}
"""What a method has of its own: the same script chose FedTTA's inner rate, a tenth of the paper's."""
SAME = 2.0
"""Points by which two rows must differ to be told apart in the sentence: one seed shows no less."""
HOME, ABROAD, NEW = "original", "out-of-client", "new-clients"

Pair = str | tuple[str, Any]


def experiments(pairs: Sequence[Pair], given: set[str]) -> list[Experiment]:
    """The experiments of the first table, with these settings; they win. Other data has none of the first table's."""
    from ..experiment.settings import expand

    world = {} if "data" in given else SETTINGS
    out: list[Experiment] = []
    for method, adapters in ROWS.items():
        if "personal" in given and "+" in method:
            continue  # a personaliser that is given goes with every method, so none of them brings its own
        named = [f"method={method}"] + ([] if "adapters" in given else [f"adapters={adapters}"])
        own = {**world, **(OWN.get(method, {}) if world else {})}
        out += expand([*named, *(f"{k}={v}" for k, v in own.items() if k not in given), *pairs])
    return list(dict.fromkeys(out))


def shown(table: Table) -> tuple[Table, str]:
    """The table with short names, and what they leave out: a method's own settings of the first run, in a sentence."""
    hidden: dict[str, list[str]] = {}
    for method, own in OWN.items():
        pairs = [f"{k}={v}" for k, v in own.items()]
        given = [r["settings"] for r in table.rows if r["method"] == method]
        if given and all(pair in settings for pair in pairs for settings in given):
            hidden[method] = pairs
    rows: list[Row] = []
    for r in table.rows:
        gone = hidden.get(r["method"], ())
        rows.append({**r, "settings": [s for s in r["settings"] if s not in gone]})
    said = "; ".join(f"{method} has {' '.join(pairs)}" for method, pairs in hidden.items())
    return replace(table, rows=tuple(rows)), said


def story(table: Table) -> str:
    """What the table shows of the price of personalisation: each row against `fedavg`, at home and abroad.

    Empty where a row or stream that it needs is not there.
    """
    rows = {key: {s: 100 * c[0] for s, c in cells.items()} for key, cells in table.pivot()}
    plain = rows.pop(("fedavg", "none"), {})
    both = {k: c for k, c in rows.items() if HOME in c and ABROAD in c}
    if not both or HOME not in plain or ABROAD not in plain:
        return ""
    told = [f"{_row(k)} {_changes(c, plain)}" for k, c in both.items() if k not in _without(both)]
    means = {_row(k): (c[HOME] + c[ABROAD]) / 2 for k, c in {("fedavg", "none"): plain, **both}.items()}
    best = max(means, key=lambda row: means[row])
    end = f"the mean of the two is highest for {best}, {means[best]:.1f} %{_near(means, best)}"
    return f"Against fedavg, {'; '.join(told)}; {end}.{_newcomers(rows)}"


def _near(means: dict[str, float], best: str) -> str:
    """Which rows are as good as the best one, as far as one seed can say."""
    near = [row for row, mean in means.items() if row != best and means[best] - mean < SAME]
    return f", less than {SAME:.0f} points above {_listed(near)}" if near else ""


def _without(rows: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The rows without adapter of methods that have one with."""
    adapted = {method for method, adapter in rows if adapter != "none"}
    return {(method, "none") for method in adapted}


def _row(key: tuple[str, str]) -> str:
    method, adapter = key
    return method if adapter == "none" else f"{method}/{adapter}"


def _changes(cells: dict[str, float], plain: dict[str, float]) -> str:
    """`gains 22 points at home but loses 20 abroad`; `and` and `but` by what the numbers are."""
    home, abroad = (cells[s] - plain[s] for s in (HOME, ABROAD))
    if _verb(home) == _verb(abroad):
        return f"{_said(home)} at home and {'' if _verb(home) == 'keeps' else f'{abs(abroad):.0f} '}abroad"
    link = "and" if "keeps" in (_verb(home), _verb(abroad)) else "but"
    return f"{_said(home)} at home {link} {_said(abroad)} abroad"


def _verb(points: float) -> str:
    return "keeps" if abs(points) < SAME else "gains" if points > 0 else "loses"


def _said(points: float) -> str:
    return f"{_verb(points)} {'the level' if _verb(points) == 'keeps' else f'{abs(points):.0f} points'}"


def _newcomers(rows: dict[tuple[str, str], dict[str, float]]) -> str:
    """What adapters change for clients that joined after training, where a method has rows with and without one."""
    told: dict[str, list[str]] = {}
    for (method, adapter), cells in rows.items():
        plain = rows.get((method, "none"), {})
        if adapter != "none" and NEW in cells and NEW in plain:
            told.setdefault(_said(cells[NEW] - plain[NEW]), []).append(_row((method, adapter)))
    changes = [f"{_listed(names)} {said if len(names) == 1 else _plural(said)}" for said, names in told.items()]
    return f" On clients that joined later, against no adapter, {'; '.join(changes)}." if changes else ""


def _listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _plural(said: str) -> str:
    verb, rest = said.split(" ", 1)
    return f"{verb.removesuffix('s')} {rest}"


def unequal(runs: Sequence[Experiment]) -> str:
    """In which of rate, local work and rounds the rows of a table differ; empty where in none."""
    from ..ops.layout import counted

    seen: dict[str, dict[str, list[str]]] = {"learning rate": {}, "local work": {}, "rounds": {}}
    for e in runs:
        opt, work = getattr(e.method, "opt", None), getattr(e.method, "work", None)
        said = {"rounds": str(e.rounds)}
        if opt is not None:
            said["learning rate"] = f"{type(opt).__name__} {opt.lr:g}"
        if work is not None:
            amount = counted(work.iterations, "step") if work.iterations else counted(work.epochs, "epoch")
            said["local work"] = f"{amount}, batch {work.batch}"
        for what, value in said.items():
            labels = seen[what].setdefault(value, [])
            if e.label not in labels:
                labels.append(e.label)
    differ = [
        f"{what} ({'; '.join(f'{value}: ' + ', '.join(labels) for value, labels in values.items())})"
        for what, values in seen.items()
        if len(values) > 1
    ]
    return f"rows differ in {' and '.join(differ)}" if differ else ""
