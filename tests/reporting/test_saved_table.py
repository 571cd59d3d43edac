"""The table of a report as a file of its own: by value, and as the page's buttons save it."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from made_up import fake

import acclimate as ac
from acclimate.reporting.board import collect
from acclimate.reporting.saved_table import saved


def levels(run: dict[str, Any], **by_stream: float) -> dict[str, Any]:
    """The run with these accuracies alone, without adaptation."""
    table = [t for t in run["results"]["table"] if t["stream"] in by_stream and t["adapter"] == "none"]
    run["results"]["table"] = [{**t, "accuracy": by_stream[t["stream"]], "std": 0.05} for t in table]
    return run


def three() -> list[dict[str, Any]]:
    return [
        *(levels(fake("fedavg", seed=s), original=0.8 + 0.02 * s, corrupted=0.5) for s in (0, 1)),
        *(levels(fake("fedprox", seed=s), original=0.7, corrupted=0.6 + 0.04 * s) for s in (0, 1)),
        *(levels(fake("scaffold", seed=s), original=0.6) for s in (0, 1)),
    ]


def test_latex_has_means_and_the_deviation_over_seeds_the_best_in_bold_and_the_second_underlined():
    assert saved(collect(three()), ".tex").splitlines() == [
        "% needs \\usepackage{booktabs}",
        "\\begin{table}[t]",
        "\\centering",
        "\\caption{Test accuracy in \\%, last round: mean over clients, with the standard deviation over 2 seeds. "
        "Best in bold, second best underlined.}",
        "\\begin{tabular}{lccc}",
        "\\toprule",
        "Method & original & corrupted & Average \\\\",
        "\\midrule",
        "fedavg & $\\mathbf{81.00}_{\\pm 1.41}$ & $\\underline{50.00}_{\\pm 0.00}$ & "
        "$\\underline{65.50}_{\\pm 0.71}$ \\\\",
        "fedprox & $\\underline{70.00}_{\\pm 0.00}$ & $\\mathbf{62.00}_{\\pm 2.83}$ & "
        "$\\mathbf{66.00}_{\\pm 1.41}$ \\\\",
        "scaffold & $60.00_{\\pm 0.00}$ & -- & -- \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]


def test_markdown_has_the_best_in_bold_and_bars_in_names_do_not_end_cells():
    made = three()[2:4]
    for t in (t for run in made for t in run["results"]["table"]):
        t["method"] = "a|b"
    assert saved(collect(made), ".md").splitlines() == [
        "| Method | original | corrupted | Average |",
        "| --- | ---: | ---: | ---: |",
        "| a\\|b | **70.00 ± 0.00** | **62.00 ± 2.83** | **66.00 ± 1.41** |",
        "",
        "Test accuracy in %, last round: mean over clients, with the standard deviation over 2 seeds. Best in bold.",
    ]


def test_one_seed_has_the_deviation_over_clients_and_adapters_their_column():
    one = fake("fedavg", seed=0)
    text = saved(collect([one]), ".tex", "validation")
    assert "validation-selected round: mean over clients, with the standard deviation over clients." in text
    assert "Method & Adapter & original" in text and "\\begin{tabular}{ll" in text
    t = next(t for t in one["results"]["table"] if (t["stream"], t["selection"]) == ("original", "validation"))
    assert f"{100 * t['accuracy']:.2f}" in text and f"\\pm {100 * t['std']:.2f}}}" in text


def test_csv_has_a_line_per_seed():
    lines = list(csv.DictReader(io.StringIO(saved(collect(three()), ".csv"))))
    assert [(r["method"], r["stream"], r["seed"], float(r["accuracy"])) for r in lines[:4]] == [
        ("fedavg", "original", "0", 0.8),
        ("fedavg", "original", "1", 0.8 + 0.02),
        ("fedavg", "corrupted", "0", 0.5),
        ("fedavg", "corrupted", "1", 0.5),
    ]
    assert len(lines) == 10 and {r["round"] for r in lines} == {"20"}


def test_a_selection_and_an_ending_that_there_are_not_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="selection='best' must be one of last, validation"):
        saved(collect(three()), ".tex", "best")
    with pytest.raises(ValueError, match="selection='best' must be one of last, validation"):
        ac.report(tmp_path, out="report.html", selection="best")
    with pytest.raises(ValueError, match=r"out='t.pdf' must end in .html, .csv, .md or .tex"):
        ac.report(tmp_path, out="t.pdf")


def test_a_run_folder_gives_its_table_to_a_paper(tmp_path: Path):
    quick = ac.Experiment(
        data=ac.data.Digits(clients=2, fraction=0.1),
        model=ac.models.MLP(hidden=(4,)),
        rounds=1,
        adapters=(ac.adapters.NoAdapt(),),
        streams=(ac.shifts.Original(),),
    )
    table = ac.run(quick, tmp_path / "run")
    path = ac.report(tmp_path / "run", out=tmp_path / "t.TEX")
    shown = f"\\mathbf{{{100 * table.accuracy():.2f}}}"
    assert f"fedavg & ${shown}" in path.read_text() and "<html" not in path.read_text()
