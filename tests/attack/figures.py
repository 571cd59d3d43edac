"""The figures of all attacks as docs/security.md has them: `python tests/attack/run.py figures` writes them there.

A test compares the page with results/attack, so that no figure stands there which nobody measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures of make attack -->", "<!-- end of the figures -->"


LIES = """Malicious clients among honest ones on digits, 10 rounds; `without` is the same training in which the liars
send nothing:

| clients | liars | attack | method | defence | accuracy | without | difference | faults of the liars |
|---|---|---|---|---|---|---|---|---|"""


def text(results: Path) -> str:
    """All figures, in Markdown."""
    names = ("messages", "sums", "settings", "folders", "liars-4", "liars-10")
    found = {name: json.loads((results / f"{name}.json").read_text()) for name in names}
    counts = [_messages(found["messages"]), _sums(found["sums"]), _settings(found["settings"])]
    counts.append(_folders(found["folders"]))
    rows = [_liar(row) for name in ("liars-4", "liars-10") for row in found[name]["rows"]]
    head = ["| attack | how many | what came of it |", "|---|---|---|"]
    return "\n".join([*head, *counts, "", _sources(found), "", LIES, *rows])


def _messages(m: dict[str, Any]) -> str:
    held = m["memory_mb"]
    came = f"{m['crashes']:,} errors that reached the loop, {m['ends']:,} ends of a run, "
    came += f"{m['moves']:,} moves beyond a bound, {m['not_finite']:,} states that were not finite; {m['counted']:,} "
    came += f"were in order after all, or became so by scaling; {m['left_out']:,} rounds were left out. A process held "
    came += (
        f"{held['least']:.0f} to {held['most']:.0f} MB, and after its last 1,000 at most {held['most_grown']:.0f} MB "
    )
    came += "more than after its first"
    return f"| malformed messages, at {m['targets']} methods, adapters and filters | {m['messages']:,} | {came} |"


def _sums(m: dict[str, Any]) -> str:
    came = (
        f"{m['crashes']:,} errors that reached the loop, {m['ends']:,} ends of a run, {m['moves']:,} models that are "
    )
    came += "neither that of all, nor that without the liars, nor that before, or strikes of honest clients; "
    came += f"{m['left_out']:,} rounds were left out"
    return f"| malformed answers in secure sums (`masked` with `threshold`) | {m['messages']:,} | {came} |"


def _settings(s: dict[str, Any]) -> str:
    came = f"{s['refused']:,} refused with a sentence, {s['made']:,} made and given back by config.json as they were, "
    came += f"{s['different']:,} silent differences, {s['traceback']:,} tracebacks, {s['hang']:,} hangs"
    return f"| lists of settings | {s['tried']:,} | {came} |"


def _folders(f: dict[str, Any]) -> str:
    came = f"{f['refused']:,} refused with a sentence, {f['same']:,} with the same result, "
    came += f"{f['different']:,} silent differences, {f['traceback']:,} tracebacks, {f['hang']:,} hangs"
    return f"| damaged run folders, `resume` and `report` | {f['tried']:,} | {came} |"


def _sources(found: dict[str, dict[str, Any]]) -> str:
    machines = sorted({m for f in found.values() for m in f["machine"]})
    seconds = sum(f["core_seconds"] for f in found.values())
    return f"{seconds:,.0f} core-seconds on {' and '.join(machines)}; code and commits are in the files."


def _liar(row: dict[str, Any]) -> str:
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(row["faults of liars"].items())) or "none"
    gap = 100 * (row["accuracy"] - row["without"])
    cells = (row["clients"], row["liars"], row["attack"], row["method"], row["defence"], f"{row['accuracy']:.3f}")
    return "| " + " | ".join(map(str, (*cells, f"{row['without']:.3f}", f"{gap:+.1f}", faults))) + " |"


def placed(page: str, figures: str) -> str:
    """The page with these figures between its marks."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{figures}\n{END}{rest.split(END)[1]}"
