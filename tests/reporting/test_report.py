"""The report page: what it says, that it is safe, and that it needs nothing from outside."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from made_up import EVIL, STREAMS, Page, analysed, fake, suite, written

from acclimate.adapters import NoAdapt, Tent
from acclimate.core import Adam
from acclimate.experiment import encode, labels
from acclimate.reporting.board import collect
from acclimate.reporting.report import render
from acclimate.reporting.style import size
from acclimate.reporting.svg import nice


def test_a_page_is_balanced_small_and_fetches_nothing() -> None:
    text = render(suite((0,)))
    Page(text)
    assert len(text.encode()) < 300_000
    assert not re.search(r"http|@import|url\(|fetch\(|XMLHttp|import\(", text)
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:href|src)="([^"]*)"', text)) <= {"data:,", *(f"#{i}" for i in ids)}


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


def test_what_adaptation_costs_has_columns_of_its_own() -> None:
    runs = suite()
    for run in runs:
        seed = run["results"]["seed"]
        cost = {"none": (0.5, 0), "tent": (2.0 + seed, 2048), "t3a": (1.0, 512)}
        run["results"]["serving"] = {a: {"ms_per_sample": t, "state_bytes": b} for a, (t, b) in cost.items()}
    for lines in Page(render(runs)).boards.values():
        assert [c[1] for c in lines[0]][-2:] == ["Adaptation, ms per sample", "Adapter's state per client"]
        shown = {line[1][1]: [c[1].removesuffix(" best") for c in line[-2:]] for line in lines[1:]}
        assert shown == {"none": ["0.50", "0 B"], "tent": ["2.50", "2.05 kB"], "t3a": ["1.00", "512 B"]}


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
        wording = "without adaptation" if best["adapter"] == "none" else f"with {best['adapter']}"
        assert f"On <b>{stream}</b>, <b>{name} {wording}</b> is best" in text


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


def test_headings_are_text_and_their_sections_have_ids_of_their_own() -> None:
    name = "Search <b onmouseover=alert(1)>x"
    text = render([fake()], more={name: "<p>one</p>", name.upper(): "<p>two</p>", "?": "<p>three</p>"})
    Page(text)
    assert "<b onmouseover" not in text and "Search &lt;b onmouseover=alert(1)&gt;x</h2><p>one</p>" in text
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    assert {"results", "search-b-onmouseover-alert-1-x", "search-b-onmouseover-alert-1-x-2", "section"} <= set(ids)
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)


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
    assert not re.search(r"\bnan\b", written(text), re.IGNORECASE)


def test_runs_of_one_label_with_other_settings_are_not_averaged() -> None:
    rows = collect([fake(rounds=20), fake(rounds=5), fake(rounds=5, seed=1)]).rows
    assert list(dict.fromkeys(r.name for r in rows)) == ["fedavg [rounds=20]", "fedavg [rounds=5]"]
    assert [len(c) for c in rows[3].cells.values()] == [2] * 8


def adapted(*adapters: Any, **how: Any) -> dict[str, Any]:
    """A run with these adapters, of those that `fake` has in its table."""
    run, names = fake(**how), labels.distinct(adapters)
    run["config"]["experiment"]["adapters"] = encode(adapters)
    run["results"]["table"] = [t for t in run["results"]["table"] if t["adapter"] in names]
    return run


def test_runs_with_other_fields_of_an_adapter_are_not_averaged() -> None:
    runs = [adapted(NoAdapt(), Tent(steps=n), seed=s) for n in (1, 3) for s in (0, 1)]
    board = collect([*runs, adapted(NoAdapt(), seed=2)])
    names = [r.name for r in board.rows if r.adapter == "tent"]
    assert names == ["fedavg [adapters.tent.steps=1]", "fedavg [adapters.tent.steps=3]"]
    assert [len(c) for r in board.rows if r.adapter == "tent" for c in r.cells.values()] == [2] * 16
    [plain] = [r for r in board.rows if r.adapter == "none"]  # settings of other adapters do not concern it
    assert plain.name == "fedavg" and all(len(c) == 3 for c in plain.cells.values())
    text = render(runs)
    assert "only the first is counted" not in text and "4 runs of 2 methods" in text


def test_which_adapters_a_run_has_does_not_matter() -> None:
    own = {"type": "mine:Own", "rate": 1}
    runs = [adapted(NoAdapt(), Tent()), adapted(Tent(params="all"), seed=1), adapted(Tent(), Tent(steps=3), seed=2)]
    runs[0]["config"]["experiment"]["adapters"] += [own]  # a module that is not there is not looked for
    assert {r.name for r in collect(runs).rows} == {"fedavg"}


def test_an_adapter_beside_another_of_its_name_is_known_by_its_fields() -> None:
    rows = collect([adapted(Tent(), Tent(steps=3)), adapted(Tent(steps=5), seed=1)]).rows
    assert [r.name for r in rows] == ["fedavg [adapters.tent.steps=1]", "fedavg [adapters.tent.steps=5]"]


def test_names_have_room_for_three_settings_and_number_the_rest() -> None:
    odd = Tent(steps=3, opt=Adam(lr=0.5, b1=0.1, b2=0.2))
    rows = collect([adapted(Tent()), adapted(odd), adapted(NoAdapt(), odd, seed=1)]).rows
    first, second = (r.name for r in rows if r.adapter == "tent")
    assert first.count("=") == second.count("=") == 3 and first != second
    assert first.endswith(", variant 1]") and second.endswith(", variant 2]")


def test_the_best_of_a_column_is_the_best_number_that_is_shown() -> None:
    """0.8135 and 0.8136 are both 0.814, and 81.3 and 81.4 on the page: the second is best, and what reads like it."""
    runs = [fake(m) for m in ("fedavg", "scaffold", "fedbn")]
    for run, value in zip(runs, (0.8135, 0.8136, 0.81361), strict=True):
        run["results"]["table"] = [t for t in run["results"]["table"] if (t["adapter"], t["selection"]) in MARKED]
        for t in run["results"]["table"]:
            t["accuracy"] = value if t["adapter"] == "none" else 0.5
    text = render(runs)
    table = text[text.index('<table class="board sortable headline">') :].partition("</table>")[0]
    cells = re.findall(r'<td class="num( best)?" data-v="0.813[0-9]*"[^>]*><b>(.*?)</b>', table)
    assert cells == [("", "81.3")] * 5 + [(" best", "81.4")] * 10  # four streams and their mean, of three methods
    framed = text[text.index('class="plot heat"') :].partition("</svg>")[0]
    assert framed.count('class="frame"') == 2


MARKED = (("none", "last"), ("tent", "last"))


def test_runs_on_other_examples_under_one_name_are_rows_of_their_own() -> None:
    """As of site1/train.csv and site2/train.csv, of which a configuration keeps the last part alone."""
    runs = [fake(seed=s) for s in (0, 1, 0, 1, 0)]
    for run, name in zip(runs, ("aaaaaaaa1", "aaaaaaaa1", "bbbbbbbb2", "bbbbbbbb2", "aaaaaaaa1"), strict=True):
        run["results"]["data"]["hash"] = name
    board = collect(runs)
    assert board.methods == ["fedavg [data.hash=aaaaaaaa]", "fedavg [data.hash=bbbbbbbb]"]
    assert all(len(cell) == 2 for row in board.rows for cell in row.cells.values())
    assert render(runs).count("only the first is counted") == 1  # the fifth repeats the first


def test_runs_that_share_out_adapters_are_no_repeats() -> None:
    one, two = fake(), fake()
    for run, adapters in ((one, ("none", "tent")), (two, ("t3a",))):
        run["results"]["table"] = [t for t in run["results"]["table"] if t["adapter"] in adapters]
    assert len(collect([one, two]).rows) == 3 and "repeats" not in render([one, two])
    two["results"]["table"] += one["results"]["table"][:1]
    assert "repeats fedavg with seed 0; of what is there twice, only the first is counted." in render([one, two])


def test_runs_that_differ_in_a_seed_of_their_data_alone_are_rows_of_their_own() -> None:
    """`data.seed` deals the examples anew: it is a setting, and not the seed that rows are averaged over."""
    runs = [fake(), fake()]
    for run, seed in zip(runs, (1, 2), strict=True):
        run["config"]["experiment"] |= {"data": {"type": "data:Digits", "seed": seed}, "device": f"cuda:{seed}"}
    board = collect(runs)
    assert board.methods == ["fedavg [data.seed=1]", "fedavg [data.seed=2]"]
    assert all(len(cell) == 1 for row in board.rows for cell in row.cells.values())
    assert "repeats" not in render(runs)


def test_seeds_of_two_devices_are_one_row_and_one_seed_on_two_devices_is_two() -> None:
    """As `acclimate compare` has it."""
    runs = [fake(), fake(), fake()]
    for run, device, seed in zip(runs, ("cpu", "cuda", "cuda"), (0, 1, 0), strict=True):
        run["config"]["experiment"] |= {"device": device}
        run["results"]["seed"] = seed
        run["results"]["table"] = [{**t, "seed": seed} for t in run["results"]["table"]]
    assert collect(runs[:2]).methods == ["fedavg"]
    assert all(set(cell) == {0, 1} for row in collect(runs[:2]).rows for cell in row.cells.values())
    assert collect(runs[::2]).methods == ["fedavg [device=cpu]", "fedavg [device=cuda]"]
    assert "repeats" not in render(runs[::2])


def test_repeats_and_other_data_are_pointed_out() -> None:
    text = render([fake(), fake()])
    assert "repeats fedavg with seed 0; only the first is counted" in text
    assert "do not share the same data" not in text and "over seeds" not in text
    other = fake()
    other["results"]["data"]["hash"] = "other"
    text = render([fake(), other])
    assert "do not share the same data" in text and "repeats" not in text
    assert "fedavg [data.hash=other]" in text and "over seeds" not in text


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


def test_the_analysis_is_drawn_where_a_run_has_one_and_only_there() -> None:
    assert "What the adapter did" not in render(suite())
    assert "On the test streams" not in render(suite())
    text = render([analysed(fake("fedthe")), fake("fedavg")])
    Page(text)
    assert "What the adapter did</h2>" in text
    assert text.count("fedthe, seed 0 <span>per sample, by stream</span>") == 1
    assert "fedavg, seed 0 <span>per sample" not in text
    assert not re.search(r"http|@import|url\(", text)


def test_histograms_say_their_numbers_and_maps_hold_every_point() -> None:
    text = render([analysed(fake("fedthe"))])
    for stream in ("original", "mixture"):
        wording = f"Histogram of weight of the personal head, 1 - e on {stream}: 40 samples, mean 0.75"
        assert f'aria-label="{wording}"' in text
    assert "the highest bar is 75 %" in text
    bars = re.findall(r'<path class="bars c\d" d="([^"]*)"', text)
    assert [b.count("M") for b in bars] == [2, 2]  # the two bins that hold something
    assert text.count("100 samples of 2 streams") == 4  # two maps, label and title
    glyphs = re.findall(r'<path class="glyphs g(\d) c(\d)" d="(M[^"]{99,})"', text)
    assert [(g, c) for g, c, _ in glyphs] == [("0", "0"), ("3", "3")] * 2  # as the streams stand in the results table
    dots = re.findall(r"M[\d.]+ [\d.]+h0", glyphs[0][2])
    assert len(dots) == 50
    assert all(0 <= float(v) <= 360 for d in dots for v in re.findall(r"[\d.]+", d)[:2])


def test_estimates_of_accuracy_have_a_table_and_their_curves_where_a_run_has_them() -> None:
    assert "Accuracy without labels" not in render(suite())
    text = render([analysed(fake("fedthe")), fake("fedavg")])
    assert "Accuracy without labels</h2>" in text
    assert "<b>atc</b> is nearest: 4.3 points off" in text
    cells = re.findall(r"<td>(original|mixture)</td><td class=\"n\">([^/]*)</td><td class=\"n\">(.*?)</td>", text)
    assert cells == [("original", "6.1", "<b>4.3</b>"), ("mixture", "6.1", "<b>4.3</b>")]
    assert "The draw of samples alone" not in text  # of an earlier run nobody knows it
    run = analysed(fake("fedthe"))
    for row in run["analysis"]["estimates"]["rows"]:
        row["draw"] = 0.031 if row["stream"] == "original" else 0.043
    new = render([run])
    assert "is nearest: 4.3 points off. The draw of samples alone is worth 3.7.</p>" in new
    assert re.findall(r"<b>4.3</b></td><td class=\"n\">(.*?)</td>", new) == ["3.1", "4.3"]
    label = 'aria-label="the on mixture: true accuracy and the estimate atc">'
    panel = text.split(label)[1].split("</svg>")[0]
    truth, estimate = re.findall(r'<path class="line c\d" d="M([^"]*)"', panel)
    # three points of four: what is not known is left out; 0.5 lies in the middle between 0 (112) and 1 (8)
    assert truth.split("L")[0] == "30.0 60.0" and len(truth.split("L")) == 3
    assert estimate.split("L")[-1] == "216.0 8.0"


def test_stream_curves_of_one_method_share_a_chart_and_of_several_have_one_each() -> None:
    one = render([analysed(fake("fedthe", seed=s)) for s in (0, 1)])
    assert one.count("Line chart of test accuracy per round for 2 streams") == 2  # label and title
    assert "fedthe with the, mean over clients." in one
    several = render([analysed(fake("fedthe")), analysed(fake("fedavg"))])
    assert several.count('aria-label="Line chart of test accuracy per round for 2 methods"') == 2
    assert several.index("On original, mean over clients.") < several.index("On mixture, mean over clients.")


def test_an_analysis_is_escaped_and_bears_gaps() -> None:
    run = analysed(fake("fedthe"), (EVIL,))
    for entry in (*run["analysis"]["histograms"], *run["analysis"]["maps"]):
        entry |= {"adapter": EVIL, "meaning": EVIL}
    estimates = run["analysis"]["estimates"]
    for entry in (*estimates["rows"], *estimates["curves"]):
        entry |= {"adapter": EVIL}
    estimates["rows"] += [{**estimates["rows"][0], "estimator": EVIL}, {**estimates["rows"][0], "error": None}]
    run["metrics"][0] |= {"adapter": EVIL, "streams": {EVIL: None}}
    run["analysis"]["histograms"][0]["streams"]["empty"] = {"samples": 0, "mean": None, "counts": [0, 0]}
    text = render([run])
    Page(text)
    assert text.count("<script>") == 1
    assert "alert('" not in text
    assert not re.search(r"\bnan\b", written(text), re.IGNORECASE)
