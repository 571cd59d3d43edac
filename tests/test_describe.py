"""Tables on windows of any width, and where there is none; and what the doctor looks for."""

import io
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from acclimate import tuning
from acclimate.cli.describe import EXTRAS, doctor, listing, print_pivot, results_table
from acclimate.cli.main import app
from acclimate.eval import Table
from acclimate.experiment import catalogue

STREAMS = ("original", "corrupted", "label_shift", "feature_shift", "mixture", "drifting", "newcomers")
METHODS = ("fedavg", "fedavg+finetune", "a-method-with-a-name-of-forty-characters")


def table(methods=METHODS, adapters=("none", "batch_adaptation")):
    return Table(
        tuple(
            {"method": m, "personal": "none", "adapter": a, "stream": s, "settings": [], "seed": 0, "clients": 3}
            | {"accuracy": 0.812, "std": 0.04, "selection": "last", "round": 1, "up_bytes": 4600, "per_client": []}
            for m in methods
            for a in adapters
            for s in STREAMS
        )
    )


def test_a_file_gets_every_row_whole(tmp_path, capsys):
    results_table(table(), tmp_path)
    printed = [line.strip() for line in capsys.readouterr().out.splitlines()]
    head = next(line for line in printed if line.startswith("method"))
    assert head.split() == ["method", "adapter", *STREAMS, "upload"]
    for name in METHODS:
        line = next(line for line in printed if line.startswith(f"{name} "))
        assert line.split()[:2] == [name, "none"] and line.count("81.2") == len(STREAMS)
    assert max(map(len, printed)) < 250  # as wide as needed, and no wider


@pytest.mark.parametrize("width", [80, 100])
def test_a_window_gets_as_many_streams_at_once_as_fit(width):
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_pivot(out, table(METHODS[:2]), "last", "accuracy")
    assert max(map(len, out.file.getvalue().splitlines())) <= width
    printed = [line.strip() for line in out.file.getvalue().splitlines()]
    assert printed.count("accuracy") == 1
    heads = [line.split() for line in printed if line.startswith("method")]
    assert len(heads) > 1 and [s for h in heads for s in h[2:-1]] == list(STREAMS)
    for name in METHODS[:2]:
        lines = [line.split() for line in printed if line.startswith(f"{name} ") and "batch_adaptation" in line]
        assert len(lines) == len(heads) and "…" not in out.file.getvalue()


def test_names_longer_than_half_of_a_window_go_on_in_the_next_line():
    out = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    print_pivot(out, table(METHODS[2:]), "last", "accuracy")
    printed = out.file.getvalue()
    parts = [line.split()[0] for line in printed.splitlines() if line.startswith("a-method")]
    assert len(parts) == 2 * len(STREAMS)
    assert all(METHODS[2].startswith(part) for part in parts) and "…" not in printed
    assert METHODS[2][len(parts[0]) :] in printed


def test_square_brackets_in_results_are_printed_as_they_are(tmp_path, capsys):
    rows = table(("fedavg[a]",), ("none[b]",)).rows
    refused = {"method": "fedavg[a]", "adapter": "tent", "reason": "it needs more: pip install 'acclimate[backbones]'"}
    results_table(Table(tuple({**r, "stream": f"{r['stream']}[c]"} for r in rows), (refused,)), tmp_path / "run[1]")
    printed = capsys.readouterr().out
    assert "fedavg[a]" in printed and "none[b]" in printed and "original[c]" in printed
    assert "not run: tent: it needs more: pip install 'acclimate[backbones]'\n" in printed
    assert f"run folder: {tmp_path / 'run[1]'}\n" in printed and f"{tmp_path / 'run[1]' / 'report.html'}\n" in printed


def test_adapters_that_did_not_run_for_one_reason_share_a_line(tmp_path, capsys):
    refused = [
        {"method": m, "adapter": a, "reason": "no norm" if a != "the" else f"{m} has one head"}
        for m in ("fedavg", "fedprox")
        for a in ("tent", "guarded-tent", "the")
    ]
    results_table(Table(table(("fedavg",)).rows, tuple(refused)), tmp_path)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("not run")]
    assert said == [
        "not run: tent, guarded-tent: no norm",
        "not run: the: fedavg has one head",
        "not run: the: fedprox has one head",
    ]


def test_the_title_of_a_narrow_table_is_one_line(tmp_path, capsys):
    narrow = Table(tuple(r for r in table(("fedavg",), ("none",)).rows if r["stream"] == STREAMS[0]))
    results_table(narrow, tmp_path)
    first = capsys.readouterr().out.splitlines()[0].rstrip()
    assert first == "accuracy at the last round, % ± std over clients; upload per client and round"


def test_an_adapter_that_ran_with_some_methods_is_named_with_the_others(tmp_path, capsys):
    refused = [
        {"method": "fedavg", "personal": p, "adapter": "the", "reason": "one head"} for p in ("none", "finetune")
    ]
    results_table(Table(table(("fedavg", "fedthe"), ("the",)).rows, tuple(refused)), tmp_path)
    assert "not run: the with fedavg, fedavg+finetune: one head\n" in capsys.readouterr().out


def test_the_best_of_a_stream_stands_out():
    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    rows = table(("fedavg", "better"), ("none",)).rows
    print_pivot(out, Table(tuple({**r, "accuracy": 0.9} if r["method"] == "better" else r for r in rows)), "last", "a")
    lines = {name: next(s for s in out.file.getvalue().splitlines() if name in s) for name in ("fedavg", "better")}
    assert lines["better"].count("\x1b[1;32m") == len(STREAMS) and "\x1b[1;32m" not in lines["fedavg"]


def test_square_brackets_in_a_trial_are_printed_as_they_are(tmp_path, monkeypatch):
    failed = "pip install 'acclimate[backbones]'"
    trial = SimpleNamespace(number=0, score=None, failed=failed, values={"model.hidden": "[bold]"})

    def searched(pairs, root, *given):
        search = SimpleNamespace(trials=[trial], best=None, path=root)
        given[-1](search, 2)
        return search

    monkeypatch.setattr(tuning, "tune", searched)
    printed = CliRunner().invoke(app, ["tune", "method.mu=0.1,1", "--out", str(tmp_path / "t")]).output
    assert f"trial 0 (1 of 2 done): failed ({failed}) with model.hidden=[bold]; " in printed


def test_the_doctor_looks_for_every_extra_there_is():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])
    assert all(f"extra       {name}: " in doctor() for name in EXTRAS)


def test_presets_are_listed_under_their_own_papers():
    for name in catalogue.SUMMARIES:
        assert sum(name in kind.entries for kind in catalogue.KINDS) == 1
    lines = {line.split()[0]: line for line in listing("methods").splitlines()[1:]}
    assert "Li et al., ICLR 2021" in lines["fedbn"] and "private=('norm',)" in lines["fedbn"]
    shared = [n for n, line in lines.items() if "Average of locally trained models" in line]
    assert shared == ["fedavg"]


def test_means_are_over_as_many_seeds_as_every_cell_has(tmp_path, capsys):
    """An adapter that diverged with one seed has no number there: its mean is over the others."""
    rows = [{**r, "seed": s} for s in (0, 1, 2) for r in table(("fedavg",)).rows]
    results_table(Table(tuple(rows)), tmp_path)
    assert "% ± std over clients, means over 3 seeds; upload" in capsys.readouterr().out
    results_table(Table(tuple(rows[:-1])), tmp_path)
    assert "% ± std over clients, means over 2 to 3 seeds; upload" in capsys.readouterr().out
    results_table(table(("fedavg", "fedthe")), tmp_path)
    assert "% ± std over clients; upload" in capsys.readouterr().out
