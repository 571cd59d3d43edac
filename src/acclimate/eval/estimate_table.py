"""The table of estimates: how far each is from the truth, per adapter and stream."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..ops.layout import markdown
from .frames import data_frame

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Estimates:
    """Errors of every estimate, alarms of every drift detector, and curves; `str` shows the errors in points."""

    rows: tuple[Row, ...] = ()
    """adapter, stream, estimator, clients, error (of a stream's accuracy, mean over clients), curve_error (along the
    smoothed curve), bias (estimate less truth) and draw (the error of who knows each client's expected accuracy, but
    not its samples)."""
    drift: tuple[Row, ...] = ()
    """adapter, stream, detector, whether the stream drifts, clients, how many of them had an alarm, alarms in all and
    the median number of samples before a client's first."""
    curves: tuple[Row, ...] = ()
    """adapter, stream, batch, and `curves`: the truth and each estimate, mean over clients."""
    window: int = 4

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        return asdict(self)

    def estimators(self) -> list[str]:
        """The estimates, in order of appearance."""
        return list(dict.fromkeys(r["estimator"] for r in self.rows))

    def error(self, field: str = "error", **wanted: str) -> float | None:
        """The mean of a field over the rows that match (adapter, stream, estimator), each counting one."""
        return _mean((r for r in self.rows if all(r[k] == v for k, v in wanted.items())), field)

    def best(self, field: str = "error", **wanted: str) -> str | None:
        """The estimate with the least mean error over the rows that match; of biases, the nearest to zero."""
        errors = {e: self.error(field, estimator=e, **wanted) for e in self.estimators()}
        known = {e: v for e, v in errors.items() if v is not None}
        return min(known, key=lambda e: abs(known[e])) if known else None

    def to_markdown(self, field: str = "error") -> str:
        """Mean absolute errors in points, the least of each line in bold; the last lines are means over streams.

        `draw` is what a stream's few samples alone are worth, `excess` what the best estimate has beyond that."""
        names, luck = self.estimators(), ["draw", "excess"] if field == "error" else []
        columns = [*names, *luck]
        lines = ["| adapter | stream | " + " | ".join(columns) + " |", "|---|---|" + "---:|" * len(columns)]
        adapters = list(dict.fromkeys(r["adapter"] for r in self.rows))
        pairs = dict.fromkeys((r["adapter"], r["stream"]) for r in self.rows)
        lines += [self._line(field, names, [a, s], adapter=a, stream=s) for a, s in pairs]
        lines += [self._line(field, names, [a, "mean"], adapter=a) for a in adapters]
        return "\n".join([*lines, self._line(field, names, ["all", "mean"])])

    def _line(self, field: str, names: Iterable[str], head: list[str], **wanted: str) -> str:
        best = self.best(field, **wanted)
        cells = []
        for name in names:
            text = _points(self.error(field, estimator=name, **wanted))
            cells.append(f"**{text}**" if name == best else text)
        if field == "error":
            luck, least = self.error("draw", **wanted), None if best is None else self.error(estimator=best, **wanted)
            cells += [_points(luck), "-" if luck is None or least is None else f"{100 * (least - luck):+.1f}"]
        return markdown([*head, *cells])

    def drift_markdown(self) -> str:
        """Alarms by detector, adapter and stream; on streams that do not drift they are false."""
        head = ["detector", "adapter", "stream", "drifts", "clients with an alarm", "samples before it", "per 1,000"]
        lines = ["| " + " | ".join(head) + " |", "|---|---|---|---|---:|---:|---:|"]
        for r in sorted(self.drift, key=lambda r: r["detector"]):
            first = "-" if r["first"] is None else f"{r['first']:.0f}"
            rate = 1000 * r["alarms"] / r["samples"] if r["samples"] else 0.0
            cells = [r["detector"], r["adapter"], r["stream"], "yes" if r["drifts"] else "no"]
            lines.append(markdown([*cells, f"{r['alarmed']} of {r['clients']}", first, f"{rate:.1f}"]))
        return "\n".join(lines)

    def to_csv(self) -> str:
        """The rows of errors as CSV."""
        out = io.StringIO()
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_dataframe(self) -> Any:
        """The rows of errors as a pandas data frame."""
        return data_frame(self.rows, FIELDS)

    def __str__(self) -> str:
        return self.to_markdown()


def pooled(measured: Iterable[Estimates]) -> Estimates:
    """The tables of several seeds as one: errors are means, alarms are sums, curves those of the first."""
    every = list(measured)
    rows, drift = _grouped(e.rows for e in every), _grouped(e.drift for e in every)
    curves = every[0].curves if every else ()
    means = [{**r[0], "clients": sum(x["clients"] for x in r), **{k: _mean(r, k) for k in ERRORS}} for r in rows]
    sums = [{**r[0], **{k: sum(x[k] for x in r) for k in COUNTS}, "first": _mean(r, "first")} for r in drift]
    return Estimates(tuple(means), tuple(sums), curves, every[0].window if every else 4)


ERRORS, COUNTS = ("error", "curve_error", "bias", "draw"), ("clients", "alarmed", "alarms", "samples")
FIELDS = ("adapter", "stream", "estimator", "clients", *ERRORS)
"""The columns of the rows of errors."""


def _grouped(tables: Iterable[Iterable[Row]]) -> list[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in (r for table in tables for r in table):
        groups.setdefault((row["adapter"], row["stream"], row.get("estimator", row.get("detector"))), []).append(row)
    return list(groups.values())


def _mean(rows: Iterable[Row], field: str) -> float | None:
    known = [value for r in rows if (value := r.get(field)) is not None]  # earlier runs have no draw
    return sum(known) / len(known) if known else None


def _points(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
