"""How large a report is and how long it takes to open: 12 methods x 5 adapters x 6 streams x 3 seeds, made up.

    python benchmarks/report.py [--out report.html]

Run folders with random numbers are written to a temporary folder and made into one report, which Chromium opens several
times. What counts is the later of the page's load event and its first paint, from the start of the navigation, as the
browser's own clock has it, on a machine that does nothing else; on a busy one, look at the time that the page's own
thread worked. `scripts/install-chromium.sh` installs the browser.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import environment, parser_of

import acclimate as ac
from acclimate import store

METHODS = ("fedavg", "fedprox", "scaffold", "fedbn", "fedrep", "ditto", "fedrod", "apfl", "fedthe", "fedtta", "fedicon")
METHODS += ("fedpcl",)
ADAPTERS = ("none", "bn", "tent", "t3a", "memo")
STREAMS = ("original", "corrupted", "natural", "out-of-client", "mixture", "label-shift")

OPENED = """() => new Promise(done => {
  const paint = () => performance.getEntriesByName('first-contentful-paint')[0];
  const look = () => paint() && document.readyState === 'complete'
    ? done(Math.max(performance.getEntriesByType('navigation')[0].loadEventEnd, paint().startTime))
    : requestAnimationFrame(look);
  look();
})"""


def table(method: str, seed: int, clients: int) -> list[dict[str, Any]]:
    """Results of one run: random, but not the same for every method, adapter and stream."""
    rows = []
    for a, adapter in enumerate(ADAPTERS):
        for s, stream in enumerate(STREAMS):
            for selection in ("last", "validation"):
                rng = random.Random(f"{method} {adapter} {stream} {seed} {selection}")
                base = 0.7 + 0.01 * (METHODS.index(method) - 5) + 0.01 * a - 0.04 * s
                values = [round(min(max(rng.gauss(base, 0.09), 0.0), 1.0), 6) for _ in range(clients)]
                accuracy = statistics.fmean(values)
                names = {"method": method, "personal": "none", "adapter": adapter, "stream": stream, "settings": []}
                numbers = {"accuracy": accuracy, "std": statistics.pstdev(values), "loss": rng.uniform(0.5, 1.5)}
                numbers |= {"ece": rng.uniform(0.03, 0.2), "round": 100, "seed": seed, "up_bytes": 98_000}
                rows.append({**names, **numbers, "clients": clients, "selection": selection, "per_client": values})
    return rows


def write_run(path: Path, method: str, seed: int, clients: int) -> None:
    """One finished run folder, as `acclimate run` leaves it, with made-up numbers."""
    rng = random.Random(f"{method} {seed}")
    upload = 98_000 * (1 + (method == "scaffold"))
    layers = {"conv1": (32, 3, 5, 5), "conv2": (64, 32, 5, 5), "fc1": (512, 1600), "fc2": (512, 512), "head": (10, 512)}
    shapes = {f"{name}.{part}": shape for name, shape in layers.items() for part in ("weight", "bias")}
    message = [
        {"group": "delta", "name": f"params/{n}", "shape": list(s), "dtype": "float32", "bytes": 4 * math.prod(s)}
        for n, s in shapes.items()
    ]
    counts = [[int(rng.expovariate(1 / 40)) for _ in range(10)] for _ in range(clients)]
    sizes = [sum(c) for c in counts]
    experiment = ac.Experiment(seed=seed)  # its settings do not matter, their length does
    results = {
        "label": method,
        "seed": seed,
        "command": f"acclimate run method={method} seed={seed}",
        "table": table(method, seed, clients),
        "refused": [],
        "cost": {
            "rounds": 100,
            "cohort": clients,
            "up_bytes_per_client": upload,
            "down_bytes_per_client": upload,
            "up_bytes_total": upload * clients * 100,
            "down_bytes_total": upload * clients * 100,
            "message": message,
        },
        "data": {
            "name": "made up",
            "seed": seed,
            "shape": [3, 32, 32],
            "classes": [f"class {i}" for i in range(10)],
            "domains": ["plain"],
            "examples": sum(sizes),
            "clients": clients,
            "hash": "0" * 16,
            "splits": {split: {"hash": "0" * 16, "sizes": sizes} for split in ("train", "val", "test")},
            "histograms": {"train": counts},
            "streams": {s: {"severity": 5, "hash": "0" * 16} for s in STREAMS},
        },
        "timings": {"train_seconds": 1.0},
    }
    top = 0.6 + 0.02 * METHODS.index(method)
    curve = [top - 0.5 * math.exp(-r / 20) + rng.gauss(0, 0.01) for r in range(100)]
    rows = [{"round": r + 1, "val_accuracy": v, "val_std": 0.1, "val_loss": 1.0} for r, v in enumerate(curve)]
    folder = store.RunFolder.create(path, experiment, torch.device("cpu"), overwrite=True)
    store.write(folder.metrics, "".join(json.dumps(row) + "\n" for row in rows))
    folder.keep_results(results)


def chromium() -> str | None:
    """Where the browser is: $CHROMIUM, or one of its usual names."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return os.environ.get("CHROMIUM") or next((path for path in found if path), None)


@dataclass(frozen=True)
class Opening:
    """One opening of a page: seconds by the clock, and seconds in which the page's own thread was at work."""

    clock: float
    thread: float


def openings(path: Path, times: int) -> list[Opening]:
    """Open a page several times, each time in a fresh browser context."""
    from playwright.sync_api import sync_playwright

    out = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium())
        for _ in range(times + 1):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            session = context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.goto(path.resolve().as_uri(), wait_until="commit")
            clock = page.evaluate(OPENED) / 1000
            found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
            out.append(Opening(clock, found["TaskDuration"]))
            context.close()
        browser.close()
    return out[1:]  # the first one also starts the browser's processes


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {
        "median": round(statistics.median(seconds), 3),
        "least": round(min(seconds), 3),
        "most": round(max(seconds), 3),
    }


def main() -> None:
    """Print the two figures, and say whether they hold."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, help="where to keep the report")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--times", type=int, default=7, help="how often the page is opened")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for method in METHODS:
            for seed in range(args.seeds):
                write_run(runs / f"{method}-s{seed}", method, seed, args.clients)
        began = time.perf_counter()
        page = ac.report(runs, out=args.out or Path(folder) / "report.html")
        written = time.perf_counter() - began
        found: dict[str, Any] = {"bytes": page.stat().st_size, "write_seconds": round(written, 3)}
        if chromium():
            opened = openings(page, args.times)
            found["open_seconds"] = summary([o.clock for o in opened])
            found["thread_seconds"] = summary([o.thread for o in opened])
    if args.json:
        print(json.dumps({**found, "environment": environment(torch.device("cpu"))}, indent=1))
        return
    size = f"{len(METHODS)} methods x {len(ADAPTERS)} adapters x {len(STREAMS)} streams x {args.seeds} seeds"
    print(f"{size}, {args.clients} clients: {found['bytes'] / 1e6:.2f} MB, written in {written:.1f} s")
    if "open_seconds" in found:
        for name, key in (("opened in", "open_seconds"), ("the page's own thread worked", "thread_seconds")):
            t = found[key]
            print(f"{name} {t['median']:.2f} s (median of {args.times}; {t['least']:.2f} to {t['most']:.2f})")
    else:
        print("not opened: there is no Chromium; try scripts/install-chromium.sh")


if __name__ == "__main__":
    main()
