"""Folders of finished runs as one file of results/: accuracies at the last round by method, adapter, stream and seed.

python scripts/runs_to_results.py results/tables/cells.json "10 rounds=runs/cells" "50 rounds=runs/cells50"
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from acclimate import store


def gathered(folder: Path) -> dict[str, Any]:
    """One command's runs: how they were made, and a row per method, adapter and stream."""
    folders = [f.path for f in store.find_runs(folder)]
    runs = [json.loads((f / "results.json").read_text()) for f in folders]
    env = json.loads((folders[0] / "env.json").read_text())
    cells: dict[tuple[str, str, str], dict[int, float]] = {}
    for run in runs:
        for row in run["table"]:
            if row["selection"] == "last":
                key = (run["label"], row["adapter"], row["stream"])
                cells.setdefault(key, {})[run["seed"]] = round(100 * row["accuracy"], 2)
    rows = [
        {
            "method": m,
            "adapter": a,
            "stream": s,
            "accuracy": round(fmean(each.values()), 2),
            "seeds": list(each.values()),
        }
        for (m, a, s), each in ((key, dict(sorted(found.items()))) for key, found in cells.items())
    ]
    refused = sorted({r["reason"] for run in runs for r in run["refused"]})
    data = {"hash": runs[0]["data"]["hash"], "clients": runs[0]["data"]["clients"]}
    return {"command": runs[0]["command"], "environment": env, "data": data, "refused": refused, "rows": rows}


def main() -> None:
    """Write the file."""
    out, *parts = sys.argv[1:]
    found = {name: gathered(Path(folder)) for name, _, folder in (p.partition("=") for p in parts)}
    store.write(Path(out), json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
