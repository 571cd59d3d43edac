"""Results as text: ours beside the published number with the difference, in blocks that fit a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

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
    """`68.0 ± 0.4 (64.3, +3.7)`: ours, the published number and the difference; `?` marks a doubtful one."""
    percent, theirs = cell["percent"], cell["published"]
    ours = number(cell["mean"], percent) + (f" ± {number(cell['std'], percent)}" if cell["std"] is not None else "")
    if theirs is None:
        return ours
    sign = "+" if cell["difference"] >= 0 else "-"
    mark = "?" if theirs["doubt"] else ""
    return f"{ours} ({number(theirs['mean'], percent)}{mark}, {sign}{number(abs(cell['difference']), percent)})"


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
    return apart([c["difference"] for c in result["cells"] if _compared(c)], len(result["cells"]))


def _compared(cell: Mapping[str, Any]) -> bool:
    return cell["difference"] is not None and bool(cell["percent"])


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
    for gone in result["left_out"]:
        out.append(f"Missing: {gone['reason']} [{_some(gone['cells'])}]")
    out += [f"Fewer seeds: {row} has seeds {seeds} alone" for row, seeds in _seeds(result["cells"]).items()]
    doubts: dict[str, list[str]] = {}
    for c in result["cells"]:
        if c["published"] and c["published"]["doubt"]:
            doubts.setdefault(c["published"]["doubt"], []).append(f"{c['row']}, {c['column']}")
    return out + [f"Doubtful in print ({_some(cells)}): {reason}" for reason, cells in doubts.items()]


def _seeds(cells: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Rows that were not run with all seeds of the table, and with which they were."""
    return {c["row"]: ", ".join(map(str, c["seeds"])) for c in cells if "seeds" in c}


def _some(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return "; ".join(cells[:3]) + more


def markdown(result: Mapping[str, Any]) -> str:
    """The whole result as a Markdown page."""
    env = result["environment"]
    lines = [f"# {result['recipe']}: {result['title']}", "", summary(result), ""]
    lines += ["Ours, in brackets the published number and the difference; ± is the standard deviation over seeds.", ""]
    for head, body in blocks(result["cells"]):
        lines += [*grid(head, body), ""]
    lines += [f"- {text}" for text in remarks(result)]
    lines += [
        f"- {result['scale']} scale, seeds {', '.join(map(str, result['seeds']))}, {env.get('device', 'nowhere')},"
    ]
    lines[-1] += f" commit {env.get('commit') or 'unknown'}: `{result['command']}`"
    return "\n".join(lines) + "\n"


def grid(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]
