"""Who did what, and when: a file of JSON lines that is only ever appended to, at the server and at every site."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

AUDIT = "audit.jsonl"
_LONGEST = 2000
"""Characters of one field: what a stranger sends must not fill the disk with one line."""


def note(path: Path, who: str, what: str, **more: Any) -> None:
    """Append one line. Its owner alone can read the file."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    fields = {"when": now, "who": who, "what": what, **more}
    line = json.dumps({k: v[:_LONGEST] if isinstance(v, str) else v for k, v in fields.items()}) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w") as f:
        f.write(line)  # one write, so that lines of two processes do not mix


def lines(path: Path) -> list[dict[str, Any]]:
    """All that was noted; a line that a crash cut short is left out."""
    out = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            out.append(json.loads(line))
        except ValueError:
            continue
    return out
