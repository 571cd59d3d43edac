"""The report page: what it says, that it is safe, and that it needs nothing from outside."""

from __future__ import annotations

import math
import random
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from acclimate.reporting.html import collect, render
from acclimate.reporting.style import size
from acclimate.reporting.svg import nice

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


class Page(HTMLParser):
    """Checks that tags balance, and keeps the results tables by selection: cells as (classes, text, data-v)."""

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
            self.inside = "sortable" in given.get("class", "")
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


def test_a_page_is_balanced_small_and_fetches_nothing() -> None:
    text = render(suite((0,)))
    Page(text)
    assert len(text.encode()) < 300_000
    assert not re.search(r"http|@import|url\(", text)
    assert set(re.findall(r'(?:href|src)="([^"]*)"', text)) <= {"data:,", *(f"#s{i}" for i in range(7))}


def test_both_selections_have_a_table_with_every_row() -> None:
    text = render(suite())
    boards = Page(text).boards
    assert list(boards) == ["last", "validation"]
    for lines in boards.values():
        assert [c[1] for c in lines[0]] == [
            *("Method", "Adapter"),
            *STREAMS,
            *("Mean over streams", "Upload per client and round"),
        ]
        assert [line[0][1] for line in lines[1:]] == [
            m for m in ("fedavg", "fedavg+finetune", "scaffold", "local") for _ in "abc"
        ]
        assert lines[-1][-1][1] == "0 B"
    assert "<b>scaffold with bn</b>: the model has no batch norm" in text


def test_the_best_of_every_column_is_its_maximum_and_nothing_else_is_marked() -> None:
    for lines in Page(render(suite())).boards.values():
        for k in range(2, len(lines[0]) - 1):
            shown = [round(float(line[k][2]), 3) for line in lines[1:]]
            marked = ["best" in line[k][0].split() for line in lines[1:]]
            assert marked == [v == max(shown) for v in shown]
            assert marked == [" best" in line[k][1] for line in lines[1:]]
        assert not any("best" in line[-1][0] for line in lines[1:])


def test_cells_are_means_over_seeds_and_say_what_their_spread_is() -> None:
    runs = suite()
    text = render(runs)
    rows = [t for r in runs for t in r["results"]["table"]]
    key = {"method": "fedavg", "personal": "finetune", "adapter": "tent", "stream": "original", "selection": "last"}
    mine = [t for t in rows if all(t[k] == v for k, v in key.items())]
    accuracy, std = (sum(t[k] for t in mine) / 2 for k in ("accuracy", "std"))
    between = abs(mine[0]["accuracy"] - mine[1]["accuracy"]) / math.sqrt(2)
    line = next(x for x in Page(text).boards["last"] if (x[0][1], x[1][1]) == ("fedavg+finetune", "tent"))
    assert float(line[2][2]) == pytest.approx(accuracy)
    assert line[2][1].replace(" best", "") == f"{accuracy * 100:.1f} ± {std * 100:.1f}seeds ± {between * 100:.1f}"
    assert float(line[6][2]) == pytest.approx(sum(float(c[2]) for c in line[2:6]) / 4)
    assert "sample standard deviation of the accuracy over seeds" in text
    assert "8 runs of 4 methods on digits: 10 clients, 20 rounds, seeds 0 and 1." in text


def test_the_summary_names_the_best_row_of_every_stream() -> None:
    runs = suite((0,))
    text = render(runs)
    for stream in STREAMS:
        rows = [t for r in runs for t in r["results"]["table"] if (t["stream"], t["selection"]) == (stream, "last")]
        best = max(rows, key=lambda t: t["accuracy"])
        name = best["method"] + ("" if best["personal"] == "none" else "+" + best["personal"])
        said = "without adaptation" if best["adapter"] == "none" else f"with {best['adapter']}"
        assert f"On <b>{stream}</b>, <b>{name} {said}</b> is best" in text


def test_every_string_is_escaped() -> None:
    run = fake()
    results = run["results"]
    results["label"] = run["path"] = run["env"]["device"] = EVIL
    results["data"] |= {
        "name": EVIL,
        "classes": [EVIL] * 10,
        "hash": EVIL,
        "domains": [EVIL],
        "streams": {EVIL: {EVIL: EVIL}},
    }
    results["data"]["splits"] = {EVIL: {"hash": EVIL, "sizes": [1]}}
    results["cost"]["message"] = [{"group": EVIL, "name": EVIL, "shape": [1], "dtype": EVIL, "bytes": 4}]
    results["refused"] = [dict.fromkeys(("method", "personal", "adapter", "reason"), EVIL)]
    for t in results["table"]:
        t |= {"method": EVIL, "personal": EVIL, "adapter": EVIL, "stream": EVIL + t["stream"]}
    run["config"]["experiment"][EVIL] = EVIL
    text = render([run], title=EVIL)
    Page(text)
    assert text.count("<script>") == 1
    assert "alert('" not in text
    assert 'x")' not in text


def test_one_run_without_metrics_reads_well() -> None:
    run = fake()
    run["metrics"] = []
    for t in run["results"]["table"]:
        t |= {"accuracy": 1.0, "std": 0.0, "per_client": [1.0] * 10}
    text = render([run])
    assert all(" best" in line[2][1] for line in Page(text).boards["last"][1:])
    assert "1 run of 1 method on digits" in text
    assert "someone" not in text
    assert "No validation accuracy was recorded" in text
    assert "over seeds" not in text


def test_what_is_not_a_number_is_a_dash_and_is_never_best() -> None:
    run = fake()
    for t in run["results"]["table"]:
        if t["adapter"] == "tent":
            t |= {"accuracy": math.nan, "std": math.nan, "per_client": [math.nan] * 10}
    run["metrics"][3]["val_accuracy"] = None
    run["metrics"][4]["val_accuracy"] = math.nan
    run["results"]["timings"]["round_seconds_median"] = math.nan
    text = render([run])
    line = next(x for x in Page(text).boards["last"] if x[1][1] == "tent")
    assert [c[1] for c in line[2:7]] == ["\u2013"] * 5
    assert [c[2] for c in line[2:7]] == [""] * 5
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)


def test_runs_of_one_label_with_other_settings_are_not_averaged() -> None:
    rows = collect([fake(rounds=20), fake(rounds=5), fake(rounds=5, seed=1)]).rows
    assert list(dict.fromkeys(r.name for r in rows)) == ["fedavg [rounds=20]", "fedavg [rounds=5]"]
    assert [len(c) for c in rows[3].cells.values()] == [2] * 8


def test_repeats_and_other_data_are_pointed_out() -> None:
    again = fake()
    again["results"]["data"]["hash"] = "other"
    text = render([fake(), again])
    assert "repeats fedavg with seed 0; only the first is counted" in text
    assert "do not share the same data" in text
    assert "over seeds" not in text


@pytest.mark.parametrize(
    "runs", [[], [{"path": "x", "config": {}, "results": {"label": "x"}, "metrics": [], "env": {}}]]
)
def test_empty_runs_still_make_a_page(runs: list[dict[str, Any]]) -> None:
    text = render(runs)
    Page(text)
    assert "<h1" in text
    assert "</html>" in text


def test_large_federations_stay_small() -> None:
    text = render([fake(clients=300)])
    Page(text)
    assert len(text.encode()) < 400_000
    assert "The first 200 of 300 clients." in text


def test_trainings_that_are_equal_share_a_curve() -> None:
    text = render([fake(), fake(personal="finetune")])
    assert "fedavg = fedavg+finetune" in text


def test_numbers_for_people() -> None:
    assert [size(v) for v in (0, 999, 1000, 123_456, 9_990_000, math.nan)] == [
        "0 B",
        "999 B",
        "1 kB",
        "123 kB",
        "9.99 MB",
        "&ndash;",
    ]
    assert nice(0.13, 0.88) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice(1, 20, 6, whole=True) == [0, 5, 10, 15, 20]
    assert nice(1, 15, 6, whole=True) == [0, 5, 10, 15]


# --- what the adapters did ------------------------------------------------------------------------------------------


def told(run: dict[str, Any], streams: tuple[str, ...] = ("original", "mixture")) -> dict[str, Any]:
    """The same run, made with analysis=true."""
    weight = {"samples": 40, "mean": 0.75, "counts": [10, 0, 0, 30]}
    rng = random.Random(0)
    points = {s: [[rng.uniform(-1, 1), rng.uniform(-1, 1)] for _ in range(50)] for s in streams}
    names = {"adapter": "the", "trace": "personal_weight", "meaning": "weight of the personal head, 1 - e"}
    histogram = {**names, "low": 0.0, "high": 1.0, "streams": dict.fromkeys(streams, weight)}
    maps = [{"adapter": "the", "trace": t, "meaning": f"{t} of h'", "streams": points} for t in ("plain", "smooth")]
    curve = [{**m, "adapter": "the", "streams": dict.fromkeys(streams, m["val_accuracy"] / 2)} for m in run["metrics"]]
    return {**run, "metrics": curve, "analysis": {"histograms": [histogram], "maps": maps}}


def test_the_analysis_is_drawn_where_a_run_has_one_and_only_there() -> None:
    assert "What the adapter did" not in render(suite())
    assert "On the test streams" not in render(suite())
    text = render([told(fake("fedthe")), fake("fedavg")])
    Page(text)
    assert "What the adapter did</h2>" in text
    assert text.count("fedthe, seed 0 <span>per sample, by stream</span>") == 1
    assert "fedavg, seed 0 <span>per sample" not in text
    assert not re.search(r"http|@import|url\(", text)


def test_histograms_say_their_numbers_and_maps_hold_every_point() -> None:
    text = render([told(fake("fedthe"))])
    for stream in ("original", "mixture"):
        said = f"Histogram of weight of the personal head, 1 - e on {stream}: 40 samples, mean 0.75"
        assert f'aria-label="{said}"' in text
    assert "the highest bar is 75 %" in text
    bars = re.findall(r'<path class="bars c\d" d="([^"]*)"', text)
    assert [b.count("M") for b in bars] == [2, 2]  # the two bins that hold something
    assert text.count("100 samples of 2 streams") == 4  # two maps, label and title
    glyphs = re.findall(r'<path class="glyphs g(\d) c(\d)" d="(M[^"]{99,})"', text)
    assert [(g, c) for g, c, _ in glyphs] == [("0", "0"), ("3", "3")] * 2  # as the streams stand in the results table
    dots = re.findall(r"M[\d.]+ [\d.]+h0", glyphs[0][2])
    assert len(dots) == 50
    assert all(0 <= float(v) <= 360 for d in dots for v in re.findall(r"[\d.]+", d)[:2])


def test_stream_curves_of_one_method_share_a_chart_and_of_several_have_one_each() -> None:
    one = render([told(fake("fedthe", seed=s)) for s in (0, 1)])
    assert one.count("Line chart of test accuracy per round for 2 streams") == 2  # label and title
    assert "fedthe with the, mean over clients." in one
    several = render([told(fake("fedthe")), told(fake("fedavg"))])
    assert several.count('aria-label="Line chart of test accuracy per round for 2 methods"') == 2
    assert several.index("On original, mean over clients.") < several.index("On mixture, mean over clients.")


def test_an_analysis_is_escaped_and_bears_gaps() -> None:
    run = told(fake("fedthe"), (EVIL,))
    for entry in (*run["analysis"]["histograms"], *run["analysis"]["maps"]):
        entry |= {"adapter": EVIL, "meaning": EVIL}
    run["metrics"][0] |= {"adapter": EVIL, "streams": {EVIL: None}}
    run["analysis"]["histograms"][0]["streams"]["empty"] = {"samples": 0, "mean": None, "counts": [0, 0]}
    text = render([run])
    Page(text)
    assert text.count("<script>") == 1
    assert "alert('" not in text
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
