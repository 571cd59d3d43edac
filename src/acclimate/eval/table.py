"""The results table: one row per method, personaliser, adapter, stream, seed and selection."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypedDict

from ..ops.layout import lined, markdown
from .frames import data_frame


class Row(TypedDict):
    """One cell of a paper's table. Accuracy, std, loss and ece are over clients, each client counting one."""

    method: str
    personal: str
    adapter: str
    stream: str
    settings: list[str]
    """`key=value` of the experiment that differ from the defaults."""
    seed: int
    clients: int
    accuracy: float
    std: float
    loss: float
    ece: float
    selection: str
    round: int
    up_bytes: int
    """What one client uploads in one round."""
    exchanged_bytes: int
    """What one client sent and got while its stream was served, on average; 0 where the adapter exchanges nothing.
    Runs before this was measured do not have it."""
    per_client: list[float]


class Refused(TypedDict):
    """An adapter that cannot serve a model, and why."""

    method: str
    personal: str
    adapter: str
    reason: str


@dataclass(frozen=True)
class Table:
    """Rows and refusals; `str`, `repr` and a notebook show the last round, methods down and streams across."""

    rows: tuple[Row, ...] = ()
    refused: tuple[Refused, ...] = ()

    def __add__(self, other: Table) -> Table:
        return Table(self.rows + other.rows, self.refused + other.refused)

    def where(self, **fields: Any) -> Table:
        """The rows whose fields have these values."""
        if unknown := [k for k in fields if k not in Row.__annotations__]:
            raise KeyError(f"rows have no field '{unknown[0]}'; they have {', '.join(Row.__annotations__)}")
        return Table(tuple(r for r in self.rows if all(r[k] == v for k, v in fields.items())), self.refused)  # type: ignore[literal-required]

    def accuracy(self, selection: str = "last", **fields: Any) -> float:
        """The mean accuracy of the rows that match, at the last round unless told; an error where there are none."""
        rows = self.where(selection=selection, **fields).rows
        if not rows:
            asked = {"selection": selection, **fields}
            there = {f: ", ".join(dict.fromkeys(str(r.get(f)) for r in self.rows)) for f in asked}
            said = ", ".join(f"{f}={v!r}" for f, v in asked.items())
            raise KeyError(f"no row with {said}; rows have {' and '.join(f'{f} {v}' for f, v in there.items())}")
        return sum(r["accuracy"] for r in rows) / len(rows)

    def streams(self) -> list[str]:
        """The streams, in order of appearance."""
        return list(dict.fromkeys(r["stream"] for r in self.rows))

    def pivot(self, selection: str = "last") -> list[tuple[tuple[str, str], dict[str, tuple[float, float]]]]:
        """((row name, adapter), {stream: (accuracy, std)}): means over seeds."""
        groups: dict[tuple[str, str], dict[str, list[Row]]] = {}
        for name, r in zip(row_names(self.rows), self.rows, strict=True):
            if r["selection"] == selection:
                groups.setdefault((name, r["adapter"]), {}).setdefault(r["stream"], []).append(r)
        return [(key, {s: _mean(rows) for s, rows in cells.items()}) for key, cells in groups.items()]

    def uploads(self) -> dict[str, int]:
        """What one client uploads in one round, by row name."""
        return {name: r["up_bytes"] for name, r in zip(row_names(self.rows), self.rows, strict=True)}

    def to_csv(self) -> str:
        """All rows as CSV (without settings and per-client lists)."""
        out = io.StringIO()
        names = [k for k in Row.__annotations__ if k not in ("per_client", "settings")]
        writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def to_dataframe(self) -> Any:
        """All rows as a pandas data frame, a column per field; `settings` are one text, so that one can group by it."""
        rows = [{**r, "settings": " ".join(r["settings"])} for r in self.rows]
        return data_frame(rows, list(Row.__annotations__))

    def to_markdown(self, selection: str = "last") -> str:
        """The pivot as a Markdown table."""
        head, body = self._cells(selection)
        lines = [head, ["---"] * len(head), *body]
        return "\n".join(map(markdown, lines))

    def caption(self) -> str:
        """What a cell of the printed table is: `accuracy at the last round, % ± std over clients`."""
        named = zip(row_names(self.rows), self.rows, strict=True)
        counts = set(Counter((name, r["adapter"], r["stream"], r["selection"]) for name, r in named).values())
        low, high = min(counts, default=0), max(counts, default=0)
        seeds = f", means over {low if low == high else f'{low} to {high}'} seeds" if high > 1 else ""
        return f"accuracy at the last round, % ± std over clients{seeds}"

    def not_run(self) -> list[str]:
        """A line per reason: the adapters and why; where they ran with some methods, also those with which not."""
        reasons: dict[str, dict[str, dict[str, None]]] = {}
        for r in self.refused:
            who = reasons.setdefault(r["reason"], {"adapters": {}, "methods": {}})
            who["adapters"][r["adapter"]] = None
            who["methods"][_label(r)] = None
        ran, lines = {r["adapter"] for r in self.rows}, []
        for reason, who in reasons.items():
            some = f" with {', '.join(who['methods'])}" if ran & set(who["adapters"]) else ""
            lines.append(f"not run: {', '.join(who['adapters'])}{some}: {reason}")
        return lines

    def __str__(self) -> str:
        head, body = self._cells("last")
        return "\n".join([self.caption(), *lined([head, *body]), *self.not_run()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head, body = self._cells("last")
        lines = [f"<tr>{''.join(f'<th>{escape(c)}</th>' for c in head)}</tr>"]
        lines += [f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in line)}</tr>" for line in body]
        notes = "".join(f"<p>{escape(line)}</p>" for line in self.not_run())
        return f"<table><caption>{escape(self.caption())}</caption>{''.join(lines)}</table>{notes}"

    def _cells(self, selection: str) -> tuple[list[str], list[list[str]]]:
        streams, body, exchanged = self.streams(), [], self.exchanged(selection)
        for (method, adapter), cells in self.pivot(selection):
            body.append([method, adapter, *(percent(*cells[s]) if s in cells else "-" for s in streams)])
            if exchanged:
                body[-1].append(f"{exchanged[method, adapter]:,} B")
        return ["method", "adapter", *streams, *(["exchanged"] if exchanged else [])], body

    def exchanged(self, selection: str = "last") -> dict[tuple[str, str], int]:
        """(row name, adapter) to bytes that a client exchanged in a stream, on average; empty where none did any."""
        found: dict[tuple[str, str], list[int]] = {}
        for name, r in zip(row_names(self.rows), self.rows, strict=True):
            if r["selection"] == selection:
                found.setdefault((name, r["adapter"]), []).append(r.get("exchanged_bytes", 0))
        means = {key: round(sum(each) / len(each)) for key, each in found.items()}
        return means if any(means.values()) else {}


def row_names(rows: Sequence[Row]) -> list[str]:
    """`method` or `method+personal`, with the settings that are not common to all rows: `fedprox(method.mu=0.1)`.

    Settings of an adapter are said of its own rows alone.
    """
    common = set.intersection(*(set(r["settings"]) for r in rows)) if rows else set()
    out = []
    for r in rows:
        own = [s for s in r["settings"] if s not in common and concerns(s, r["adapter"])]
        out.append(f"{_label(r)}({', '.join(own)})" if own else _label(r))
    return out


def _label(row: Mapping[str, Any]) -> str:
    """`method` or `method+personal`."""
    personal = row.get("personal", "none")
    return str(row["method"]) if personal == "none" else f"{row['method']}+{personal}"


RAN_WHERE = ("device", "backend", "checkpoint_every")
"""Settings that say where and how a run is computed, and not what."""


def ran_where(setting: str) -> bool:
    """Whether a setting, such as `backend.chunk=8`, says where a run is computed, which changes its last bits alone."""
    return setting.partition("=")[0].partition(".")[0] in RAN_WHERE


def concerns(setting: str, adapter: str) -> bool:
    """Whether a setting bears on the rows of an adapter: all do but those of other adapters."""
    return not setting.startswith("adapters.") or setting.startswith((f"adapters.{adapter}.", f"adapters.{adapter}="))


def percent(accuracy: float, std: float) -> str:
    """`81.2 ±4`: a spread over ten clients has no more digits to give."""
    return f"{100 * accuracy:.1f} ±{100 * std:.0f}"


def _mean(rows: Sequence[Row]) -> tuple[float, float]:
    return sum(r["accuracy"] for r in rows) / len(rows), sum(r["std"] for r in rows) / len(rows)
