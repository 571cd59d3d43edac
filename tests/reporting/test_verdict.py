"""The verdict on top of the report: what a check of every pair by itself says, and nothing more."""

from __future__ import annotations

import html
import re
from typing import Any

import numpy as np
import pytest
from made_up import Page, fake, row, suite

from acclimate.eval.paired import interval
from acclimate.reporting.board import collect
from acclimate.reporting.report import render
from acclimate.reporting.sections.verdict import rankings

METHODS = [f"method{i}" for i in range(12)]
ADAPTERS = ("none", "bn", "tent", "t3a", "memo")
STREAMS = ("original", "corrupted", "natural", "out-of-client", "mixture", "label-shift")


def large() -> list[dict[str, Any]]:
    """12 methods x 5 adapters x 6 streams x 3 seeds; some rows are near each other, one is dear."""
    out = []
    for m, method in enumerate(METHODS):
        for seed in range(3):
            run = fake(method, seed=seed)
            table = [row(method, "none", a, s, seed, "last", 10) for a in ADAPTERS for s in STREAMS]
            for t in table:
                lift = 0.004 * m + 0.01 * ADAPTERS.index(t["adapter"])
                t["per_client"] = [round(0.8 * v + lift, 6) for v in t["per_client"]]
                t["accuracy"] = float(np.mean(t["per_client"]))
            run["results"] |= {"table": table, "refused": []}
            run["results"]["serving"] = {
                a: {"ms_per_sample": 1.5 + i, "state_bytes": 0} for i, a in enumerate(ADAPTERS)
            }
            out.append(run)
    return out


@pytest.fixture(scope="module")
def page() -> tuple[list[dict[str, Any]], str]:
    runs = large()
    return runs, render(runs)


def test_the_verdict_of_a_large_report_is_that_of_every_pair_by_itself(page: Any) -> None:
    runs, text = page
    cells: dict[str, dict[str, dict[int, Any]]] = {}
    for t in (t for r in runs for t in r["results"]["table"]):
        title = f"{t['method']} " + ("without adaptation" if t["adapter"] == "none" else f"with {t['adapter']}")
        cells.setdefault(title, {}).setdefault(t["stream"], {})[t["seed"]] = np.array(t["per_client"])
    means = {k: np.mean([v.mean() for own in c.values() for v in own.values()]) for k, c in cells.items()}
    best = max(means, key=means.__getitem__)

    def level(first: str, other: str, streams: tuple[str, ...]) -> bool:
        own = [np.mean([cells[first][s][n] - cells[other][s][n] for s in streams], axis=0) for n in range(3)]
        low, high = interval([d.tolist() for d in own])
        return low <= 0 <= high

    tied = sum(level(best, other, STREAMS) for other in cells if other != best)
    assert 4 < tied < 59
    said = re.sub("<.*?>", "", re.search(r'<p class="verdict">.*?</p>', text)[0])
    assert " with " in best  # an adapter may be called `the`: that it is one must be said
    named = best.replace(" with ", " with adapter ")
    assert said.startswith(f"Deploy {named}: best mean over 6 streams, {100 * means[best]:.1f} %; within chance of ")
    assert f"and {tied - 1} other rows." in said
    assert f"It costs {1.5 + ADAPTERS.index(best.split()[-1]):.2f} ms per sample." in said
    for stream in STREAMS:
        top = max(cells, key=lambda k: np.mean([v.mean() for v in cells[k][stream].values()]))
        where = (
            "first on" if top == best else "within chance of the best on" if level(top, best, (stream,)) else "below"
        )
        part = next(p for p in said.split("It is ") if stream in p)
        assert part.startswith(where), (stream, part)


def by_hand(differences: list[Any]) -> tuple[float, float]:
    """The interval by another bootstrap, with other random numbers: seeds, and for each seed drawn its clients."""
    draw, own = np.random.default_rng(11), np.array(differences)  # seeds x clients
    seeds = draw.integers(0, len(own), (4000, len(own)))
    clients = draw.integers(0, own.shape[1], (4000, *own.shape))
    low, high = np.quantile(own[seeds[..., None], clients].mean((1, 2)), [0.025, 0.975])
    return float(low), float(high)


def test_ranks_and_ties_are_those_of_a_bootstrap_by_hand(page: Any) -> None:
    """Every pair of the 60 rows with the first, by code that shares nothing with the report's."""
    runs, _ = page
    found = rankings(collect(runs))["last"]
    values: dict[str, Any] = {}
    for t in (t for r in runs for t in r["results"]["table"]):
        title = f"{t['method']} " + ("without adaptation" if t["adapter"] == "none" else f"with {t['adapter']}")
        values.setdefault(title, np.zeros((3, 10)))[t["seed"]] += np.array(t["per_client"]) / len(STREAMS)
    order = sorted(values, key=lambda k: -values[k].mean())
    assert [p.title for p in found.places] == order and len(order) == 60
    near = 0
    for place in found.places[1:]:
        low, high = by_hand(list(values[order[0]] - values[place.title]))
        assert (place.low, place.high) == (pytest.approx(low, abs=0.003), pytest.approx(high, abs=0.003))
        near += abs(low) < 0.003  # there random numbers decide
        assert abs(low) < 0.003 or place.level == (low < 0)
    assert near < 12


def test_a_large_report_is_small_and_has_its_ranks(page: Any) -> None:
    _, text = page
    Page(text)
    assert 300_000 < len(text) < 3_000_000
    assert text.count('class="tie"') >= 1 and "The first 24 of 60 rows." in text
    assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text


def test_what_is_missing_is_said() -> None:
    runs = suite((0, 1))
    text = html.unescape(render(runs[1:], unfinished=["fedavg-s2"]))
    assert "fedavg has 1 of seeds 0 and 1" in text
    assert "fedavg without adaptation is not ranked: it lacks seed 0." in text
    assert "1 run not finished, and not in this page: fedavg-s2." in text


def test_a_verdict_on_some_seeds_says_on_which() -> None:
    """Each method has a seed of its own: the verdict is of the two that both have, while the table has three each."""
    runs = [fake(m, seed=s) for m, own in (("fedavg", (0, 1, 2)), ("scaffold", (0, 1, 3))) for s in own]
    text = html.unescape(render(runs))
    assert '<p class="note">Ranked on seeds 0 and 1 alone: not every row has seeds 2 and 3.</p>' in text
    assert "No two rows were tested" not in text and "is not ranked" not in text
    shared = [r for r in runs if r["results"]["seed"] < 2]
    said = [re.search(r'<p class="verdict">.*?</p>', part)[0] for part in (text, html.unescape(render(shared)))]
    assert said[0] == said[1]


def test_a_verdict_that_not_every_row_took_part_in_says_so() -> None:
    runs = [fake(method, seed=seed) for method in ("fedavg", "scaffold") for seed in (0, 1)]
    for run in runs:
        for t in run["results"]["table"]:
            level = 0.9 if (t["method"], t["adapter"]) == ("scaffold", "tent") else 0.5
            t["per_client"], t["accuracy"] = [level] * len(t["per_client"]), level
    said = "Deploy scaffold with adapter tent</b>: best mean over 4 streams, 90.0 %, more than chance above "
    assert f"{said}every other row. " in render(runs)
    assert f"{said}every other row that is ranked. " in render([*runs, fake("fedbn")])


def test_rows_on_other_data_are_not_ranked_together() -> None:
    one, other = fake("fedavg"), fake("scaffold")
    other["results"]["data"]["hash"] = "another"
    text = render([one, other])
    assert "scaffold" not in re.search(r'<p class="verdict">.*?</p>', text)[0]
    assert "is not ranked: it was tested on other examples." in text


def test_rows_of_two_machines_are_ranked_together() -> None:
    """Corrupted pixels of another processor are off by one here and there: other bytes, the same stream."""
    one, two, far = fake("fedavg"), fake("scaffold"), fake("fedbn")
    for i, (run, off) in enumerate(((one, 0.0), (two, 0.5), (far, 9.0))):
        card = {"hash": str(i), "examples": "e", "sketch": [off, *[1.0] * 63]}
        run["results"]["data"]["streams"]["corrupted"] = card
    said = re.search(r'<p class="verdict">.*?</ul>', render([one, two]))[0]
    assert "fedavg" in said and "scaffold" in said
    assert "fedbn without adaptation is not ranked: it was tested on other examples." in render([one, two, far])
