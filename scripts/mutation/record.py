"""What `scripts/mutate.py --summary` stores: the score of a sample, by package, and who survived."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .operators import Mutant

SCHEMA = "acclimate.mutation/1"
Results = Mapping[str, Mapping[str, Any]]


def outcome(mutant: Mutant, results: Results, equivalent: Mapping[str, str]) -> str:
    """`killed`, `timeout` or `survived`; `equivalent`; or `not run`."""
    if mutant.identity in equivalent:
        return "equivalent"
    return str(results.get(mutant.identity, {}).get("outcome", "not run"))


def counts(sample: Sequence[Mutant], results: Results, equivalent: Mapping[str, str]) -> dict[str, Counter[str]]:
    """How many mutants of each package, and of `all`, had which outcome."""
    out: dict[str, Counter[str]] = {}
    for mutant in sample:
        for package in (mutant.file.split("/")[0], "all"):
            out.setdefault(package, Counter())[outcome(mutant, results, equivalent)] += 1
    return out


def score(count: Mapping[str, int]) -> float | None:
    """Killed mutants in percent of those that were run; one that took too long is killed. None where none was run."""
    killed = count["killed"] + count["timeout"]
    run = killed + count["survived"]
    return 100 * killed / run if run else None


def record(
    sample: Sequence[Mutant], results: Results, equivalent: Mapping[str, str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The JSON of a sample: `about` says how it was drawn and judged."""
    by_package = counts(sample, results, equivalent)
    whole = by_package.pop("all", Counter[str]())
    ran = [results[m.identity] for m in sample if outcome(m, results, equivalent) in ("killed", "timeout", "survived")]
    return {
        "schema": SCHEMA,
        "command": command(sys.argv),
        "commits": sorted({str(r.get("commit")) for r in ran}),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **about,
        "count": len(sample),
        **figures(whole),
        "packages": {name: {"count": n.total(), **figures(n)} for name, n in sorted(by_package.items())},
        "survivors": [_told(m, results[m.identity]) for m in _left(sample, results, equivalent)],
    }


def figures(count: Mapping[str, int]) -> dict[str, Any]:
    """The counts of a package and its score, rounded to a tenth of a percent."""
    percent = score(count)
    return {
        "killed": count["killed"] + count["timeout"],
        "killed_by_time": count["timeout"],
        "survived": count["survived"],
        "equivalent": count["equivalent"],
        "not_run": count["not run"],
        "score": None if percent is None else round(percent, 1),
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """A record as a table of Markdown, package by package."""
    columns = ("count", "killed", "survived", "equivalent", "score")
    rows = [("package", "drawn", *columns[1:]), ("---", *["---:"] * len(columns))]
    rows += [(name, *(str(n[c]) for c in columns)) for name, n in found["packages"].items()]
    rows.append(("all", *(str(found[c]) for c in columns)))
    return [f"| {' | '.join(row)} |" for row in rows]


def command(argv: Sequence[str]) -> str:
    """The command line, with no folders of this machine."""
    words = (re.sub(r"(^|=)/.*/", r"\1", word) for word in argv[1:])
    return shlex.join(["python", f"scripts/{Path(argv[0]).name}", *words])


def _left(sample: Sequence[Mutant], results: Results, equivalent: Mapping[str, str]) -> list[Mutant]:
    left = [m for m in sample if outcome(m, results, equivalent) == "survived"]
    return sorted(left, key=lambda m: (m.file, m.line, m.identity))


def _told(mutant: Mutant, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"mutant": mutant.identity, "change": mutant.new, **({"why": result["by"]} if result.get("by") else {})}
