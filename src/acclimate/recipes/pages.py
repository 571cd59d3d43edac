"""Results as text: ours beside the published number with the difference, in blocks that fit a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ..ops import layout

ACROSS = 5
"""Columns of a block."""
NEAR = 3
"""Points of accuracy."""


def number(value: float, percent: bool) -> str:
    """An accuracy with one digit after the point; a count or a time as it is."""
    if percent:
        return f"{value:.1f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def shown(cell: Mapping[str, Any]) -> str:
    """`68.0 ± 0.4 (64.3, +3.7)`: ours, the published number and the difference; `?` marks a doubtful one.

    There is no difference where rounds or data are not the recipe's own.
    """
    percent, theirs = cell["percent"], cell["published"]
    ours = number(cell["mean"], percent) + (f" ± {number(cell['std'], percent)}" if cell["std"] is not None else "")
    if theirs is None:
        return ours
    mark, gap = "?" if theirs["doubt"] else "", cell["difference"]
    beyond = "" if gap is None else f", {'+' if gap >= 0 else '-'}{number(abs(gap), percent)}"
    return f"{ours} ({number(theirs['mean'], percent)}{mark}{beyond})"


def blocks(cells: Iterable[Mapping[str, Any]]) -> list[tuple[list[str], list[list[str]]]]:
    """Tables of at most `ACROSS` columns: heads, and lines of row label and cells."""
    pivot: dict[str, dict[str, str]] = {}
    for cell in cells:
        pivot.setdefault(cell["row"], {})[cell["column"]] = shown(cell)
    columns = list(dict.fromkeys(column for row in pivot.values() for column in row))
    out = []
    for start in range(0, len(columns), ACROSS):
        some = columns[start : start + ACROSS]
        body = [[row, *(found.get(c, "") for c in some)] for row, found in pivot.items() if set(some) & set(found)]
        out.append((["", *some], body))
    return out


def summary(result: Mapping[str, Any]) -> str:
    """How far from the paper, in a sentence."""
    if result["scale"] == "smoke":
        return f"{len(result['cells'])} numbers; at smoke scale they are not to be compared with the paper's."
    cells = result["cells"]
    differences = [c["difference"] for c in cells if c["difference"] is not None and c["percent"]]
    if size(result) and not differences:
        return f"{len(cells)} numbers; {size(result)} they are not to be compared with the paper's."
    return apart(differences, len(cells))


def size(result: Mapping[str, Any]) -> str:
    """`after 20 rounds, with 0.1 of the data`: what is not as the recipe has it; empty: nothing."""
    rounds, fraction = result.get("rounds"), result.get("fraction")
    parts = [
        f"after {layout.counted(rounds, 'round')}" if rounds else "",
        f"with {fraction:g} of the data" if fraction else "",
    ]
    return ", ".join(part for part in parts if part)


def apart(differences: Sequence[float], total: int) -> str:
    """How far from the paper `total` numbers are, of which some have a published one."""
    if not differences:
        return f"{total} numbers; the paper prints none to compare them with."
    sizes = [abs(d) for d in differences]
    near = sum(d <= NEAR for d in sizes)
    return (
        f"{len(sizes)} of {total} numbers have a published one: {near} lie within {NEAR} points, the median "
        f"difference is {median(sizes):.1f}, the largest {max(sizes):.1f}."
    )


def remarks(result: Mapping[str, Any]) -> list[str]:
    """What a reader must know: what differs from the paper, what is missing, which published numbers are doubtful."""
    out = list(result["notes"])
    if result["scale"] == "smoke":
        out = [f"At paper scale: {note}" for note in out]  # its models, data and rounds are not those of this run
        out.append(
            "Smoke scale: tiny models on embedded digits. It shows that all of it runs, not what the paper found."
        )
    if size(result):
        out.append(f"Measured {size(result)}, which is not what the recipe has: there is no difference to the paper.")
    for gone in result["left_out"]:
        out.append(f"Missing: {gone['reason']} [{_some(gone['cells'])}]")
    out += [f"Fewer seeds: {who} {seeds} alone" for who, seeds in _seeds(result["cells"])]
    doubts: dict[str, list[str]] = {}
    for c in result["cells"]:
        if c["published"] and c["published"]["doubt"]:
            doubts.setdefault(c["published"]["doubt"], []).append(f"{c['row']}, {c['column']}")
    return out + [f"Doubtful in print ({_some(cells)}): {reason}" for reason, cells in doubts.items()]


def _seeds(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """`FedAvg has` and `seeds 0, 1`: what was not run with all seeds of the table, and with which it was.

    Rows whose columns are all alike are named alone; of others, the columns are.
    """
    rows: dict[str, dict[str, list[str]]] = {}
    for cell in cells:
        own = cell.get("seeds")
        said = f"seed{'s' * (len(own) != 1)} {', '.join(map(str, own))}" if own else ""
        rows.setdefault(cell["row"], {}).setdefault(said, []).append(cell["column"])
    return [
        (f"{row} has" if len(found) == 1 else f"{row} ({_some(columns)}) has", said)
        for row, found in rows.items()
        for said, columns in found.items()
        if said
    ]


def _some(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return "; ".join(cells[:3]) + more


def plain(result: Mapping[str, Any]) -> str:
    """The result as text for a terminal or a log."""
    lines = []
    for head, body in blocks(result["cells"]):
        for first, *rest in layout.cut(head, list(body), layout.room()):
            bars = ["-" * max(len(line[i]) for line in (first, *rest)) for i in range(len(first))]
            lines += [*layout.lined([first, bars, *rest]), ""]
    lines += ["ours ± std over seeds (published, difference); ? marks a doubtful published number", summary(result)]
    return "\n".join([*(line.rstrip() for line in lines), *(f"- {text}" for text in remarks(result))])


def markdown(result: Mapping[str, Any]) -> str:
    """The whole result as a Markdown page."""
    env = result["environment"]
    lines = [f"# {result['recipe']}: {result['title']}", "", summary(result), ""]
    lines += ["Ours, in brackets the published number and the difference; ± is the standard deviation over seeds.", ""]
    for head, body in blocks(result["cells"]):
        lines += [*layout.table(head, body), ""]
    lines += [f"- {text}" for text in remarks(result)]
    if "converted" in result:
        lines.append(f"- {result['converted']['note']}")
    seeds, device = ", ".join(map(str, result["seeds"])), env.get("device", "nowhere")
    where = f"{result['scale']} scale, seeds {seeds}, {device}, commit {env.get('commit') or 'unknown'}"
    lines.append(f"- {where}: `{result['command']}`")
    return "\n".join(lines) + "\n"
