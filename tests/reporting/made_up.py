"""Run folders' content with made-up numbers, and a reader of the page that is made of them."""

from __future__ import annotations

import math
import random
import re
from html.parser import HTMLParser
from typing import Any

STREAMS = ("original", "corrupted", "natural", "mixture")
EVIL = "<script>alert('&\"x')</script>"
VOID = {"meta", "link", "br", "hr", "img", "input"}


def row(
    method: str, personal: str, adapter: str, stream: str, seed: int, selection: str, clients: int
) -> dict[str, Any]:
    rng = random.Random(f"{method}{personal}{adapter}{stream}{seed}{selection}")
    base = 0.6 + 0.02 * (personal != "none") + 0.02 * (adapter == "tent") - 0.1 * (stream != "original")
    values = [min(max(rng.gauss(base, 0.09), 0), 1) for _ in range(clients)]
    accuracy = sum(values) / clients
    std = math.sqrt(sum((v - accuracy) ** 2 for v in values) / clients)
    names = {"method": method, "personal": personal, "adapter": adapter, "stream": stream, "seed": seed}
    numbers = {"accuracy": accuracy, "std": std, "loss": 0.7, "ece": 0.05, "round": 20 if selection == "last" else 17}
    return {**names, **numbers, "clients": clients, "selection": selection, "per_client": values}


def message(upload: int) -> list[dict[str, Any]]:
    shapes = {"conv1.weight": [32, 3, 5, 5], "conv1.bias": [32], "fc.weight": [10, 512], "fc.bias": [10]}
    entry = {"group": "delta", "dtype": "float32"}
    return [{**entry, "name": f"params/{k}", "shape": v, "bytes": 4 * math.prod(v)} for k, v in shapes.items()] * (
        upload > 0
    )


def card(seed: int, clients: int) -> dict[str, Any]:
    rng = random.Random(seed)
    counts = [[int(rng.expovariate(1 / 30)) * (rng.random() < 0.6) for _ in range(10)] for _ in range(clients)]
    sizes = [sum(c) for c in counts]
    names = {"name": "digits", "classes": [f"digit {i}" for i in range(10)], "domains": ["plain", "inverted"]}
    numbers = {"seed": seed, "shape": [3, 32, 32], "examples": sum(sizes), "clients": clients, "hash": f"{seed:016x}"}
    return {
        **names,
        **numbers,
        "splits": {name: {"hash": f"{seed}{name}", "sizes": sizes} for name in ("train", "val", "test")},
        "histograms": {"train": counts},
        "streams": {"corrupted": {"severity": 5, "kinds": {"fog": 120, "motion_blur": 118}}},
    }


def fake(
    method: str = "fedavg",
    personal: str = "none",
    seed: int = 0,
    clients: int = 10,
    upload: int = 98_000,
    rounds: int = 20,
) -> dict[str, Any]:
    """A run folder's content, as the store reads it."""
    adapters, selections = ("none", "tent", "t3a"), ("last", "validation")
    table = [row(method, personal, a, s, seed, c, clients) for a in adapters for s in STREAMS for c in selections]
    rng = random.Random(f"{method}{seed}")
    top = 0.6 + 0.05 * (len(method) % 6)
    curve = [top - 0.5 * math.exp(-r / 6) + rng.gauss(0, 0.01) for r in range(1, rounds + 1)]
    kept = {"val_std": 0.1, "val_loss": 1.2, "up_bytes": 1, "down_bytes": 1}
    label = method if personal == "none" else f"{method}+{personal}"
    per_client = {"up_bytes_per_client": upload, "down_bytes_per_client": upload, "message": message(upload)}
    cost = {"rounds": rounds, "cohort": 10, "up_bytes_total": upload * rounds * 10, "down_bytes_total": 1, **per_client}
    refused = [{"method": method, "personal": personal, "adapter": "bn", "reason": "the model has no batch norm"}]
    experiment = {"type": "config:Experiment", "method": {"type": f"methods:{method}"}, "rounds": rounds, "seed": seed}
    env = {"acclimate": "0.1", "torch": "2.6", "python": "3.11", "device": "cpu", "threads": 2, "commit": None}
    results = {"schema": "acclimate.results/1", "label": label, "seed": seed, "table": table, "refused": refused}
    timings = {"train_seconds": 12.5, "evaluate_seconds": 3.1, "round_seconds_median": 0.6}
    return {
        "path": f"/home/someone/runs/{label}-s{seed}",
        "config": {"schema": "acclimate.config/1", "experiment": experiment},
        "results": {**results, "cost": cost, "data": card(seed, clients), "timings": timings},
        "metrics": [{"round": i + 1, "val_accuracy": v, **kept} for i, v in enumerate(curve)],
        "env": env,
    }


def suite(seeds: tuple[int, ...] = (0, 1)) -> list[dict[str, Any]]:
    kinds = [
        ("fedavg", "none", 98_000),
        ("fedavg", "finetune", 98_000),
        ("scaffold", "none", 196_000),
        ("local", "none", 0),
    ]
    return [fake(m, p, s, upload=u) for m, p, u in kinds for s in seeds]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
"""A PNG file of one pixel."""


def pictured(run: dict[str, Any], streams: tuple[str, ...] = ("training", *STREAMS)) -> dict[str, Any]:
    """The same run, with pictures of its streams."""
    one = {"png": f"data:image/png;base64,{PIXEL}", "width": 96, "height": 16, "client": 0}
    pictures = {s: {**one, "classes": [f"digit {i}" for i in range(6)]} for s in streams}
    return {**run, "results": {**run["results"], "pictures": pictures}}


def analysed(run: dict[str, Any], streams: tuple[str, ...] = ("original", "mixture")) -> dict[str, Any]:
    """The same run with analysis=true."""
    weight = {"samples": 40, "mean": 0.75, "counts": [10, 0, 0, 30]}
    rng = random.Random(0)
    points = {s: [[rng.uniform(-1, 1), rng.uniform(-1, 1)] for _ in range(50)] for s in streams}
    names = {"adapter": "the", "trace": "personal_weight", "meaning": "weight of the personal head, 1 - e"}
    histogram = {**names, "low": 0.0, "high": 1.0, "streams": dict.fromkeys(streams, weight)}
    maps = [{"adapter": "the", "trace": t, "meaning": f"{t} of h'", "streams": points} for t in ("plain", "smooth")]
    curve = [{**m, "adapter": "the", "streams": dict.fromkeys(streams, m["val_accuracy"] / 2)} for m in run["metrics"]]
    errors = {"doc": 0.061, "atc": 0.043}
    fixed = {"adapter": "the", "clients": 10, "curve_error": 0.1, "bias": 0.0}
    rows = [{**fixed, "stream": s, "estimator": e, "error": v} for s in streams for e, v in errors.items()]
    lines = {"truth": [0.5, 0.75, None, 0.25], "doc": [0.5] * 4, "atc": [0.25, 0.5, 0.5, 1.0]}
    drawn = [{"adapter": "the", "stream": s, "batch": 8, "curves": lines} for s in streams]
    estimates = {"rows": rows, "drift": [], "curves": drawn, "window": 4}
    return {**run, "metrics": curve, "analysis": {"histograms": [histogram], "maps": maps, "estimates": estimates}}


def written(page: str) -> str:
    """A page without its style sheet and script, which are the same in all."""
    return re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL)


class Page(HTMLParser):
    """Checks that tags balance, and keeps the headline tables by selection: cells as (classes, text, data-v)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.view, self.boards, self.inside = "", {}, False  # type: ignore[var-annotated]
        self.cell: list[str] | None = None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {k: v or "" for k, v in attrs}
        if tag not in VOID:
            self.open.append(tag)
        self.view = given.get("data-view", self.view)
        if tag == "table":
            self.inside = "headline" in given.get("class", "")
        if tag == "tr" and self.inside:
            self.boards.setdefault(self.view, []).append([])
        if tag in ("td", "th") and self.inside:
            self.cell = [given.get("class", ""), "", given.get("data-v", "")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag
        if tag in ("td", "th") and self.cell is not None:
            self.boards[self.view][-1].append(tuple(self.cell))
            self.cell = None
        self.inside = self.inside and tag != "table"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_data(self, data: str) -> None:
        if self.cell is not None:
            self.cell[1] += data
