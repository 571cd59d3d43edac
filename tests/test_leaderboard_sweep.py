"""Filling a track: what a full one has, what is left to run, and that one bad row does not stop the others."""

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from acclimate.experiment.catalogue import ADAPTERS, METHODS
from acclimate.leaderboard import __main__ as plain
from acclimate.leaderboard import folder, sweep
from acclimate.leaderboard.submission import digest, text
from acclimate.store import origin

BOARD = Path(__file__).parents[1] / "results" / "leaderboard" / "brfl-v1"


def test_a_full_track_has_every_method_and_every_adapter():
    found = {e.name: e for e in sweep.entries()}
    assert set(METHODS) < set(found)
    assert set(found["fedavg"].adapters) == set(found["fedthe"].adapters) == set(ADAPTERS)
    assert {"none", "tent", "t3a", "em", "lame", "ttt", "fedtta", "the"} <= set(found["fedprox"].adapters)
    assert "memo" not in found["fedprox"].adapters
    first, *rest = found["fedavg+fisher"].experiments("small")
    assert (first.label, [e.seed for e in (first, *rest)]) == ("fedavg+fisher", [0, 1, 2])
    assert (first.device, found["fedavg"].experiments("small", "auto")[2].device) == ("cpu", "auto")
    with pytest.raises(ValueError, match="--only=fedavrg is not possible; allowed: local, fedavg"):
        sweep.entries(["fedavrg"])


def test_a_row_is_done_when_every_adapter_has_rows_or_a_reason(tmp_path):
    fedavg = sweep.entries(["fedavg"])[0]
    body = json.loads((BOARD / "small" / "fedavg.v1.json").read_text())
    place = tmp_path / "small"
    place.mkdir()
    (place / "fedavg.v1.json").write_text(text(body))
    assert sweep.missing("small", tmp_path, ["fedavg"]) == [fedavg]
    more = copy.deepcopy(body) | {"version": 2, "supersedes": body["digest"]}
    more["refused"] |= dict.fromkeys(ADAPTERS, "it cannot")
    more["digest"] = digest(more)
    (place / "fedavg.v2.json").write_text(text(more))
    assert sweep.missing("small", tmp_path, ["fedavg"]) == []
    assert plain._missing("small", tmp_path, ["fedavg"]) == "track small lacks nothing"


def test_a_method_that_a_track_cannot_have_is_named_with_the_reason(tmp_path):
    said = plain._missing("small", tmp_path, ["fedmd", "fedprox"]).splitlines()
    assert said[0].startswith("fedmd: data=Digits has no public set")
    assert said[1] == "fedprox: not run yet, or with fewer adapters"


def test_a_row_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    def train(experiment, out, shared):
        if (experiment.label, experiment.seed) == ("fedbn", 1):
            raise ArithmeticError("round 3: client 1 sent a value that is not finite")
        return 12.0

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(sweep, "refusal", lambda e, t: "no public set" if e.name == "fedmd" else None)
    monkeypatch.setattr(folder, "submit", lambda run, track_name, chosen, to: to / track_name / f"{run.name}.v1.json")
    names = ["fedavg", "fedbn", "fedmd", "fedprox"]
    lines = list(sweep.fill("small", tmp_path / "runs", tmp_path, 2, names, workers=ThreadPoolExecutor))
    assert lines[:2] == ["fedmd cannot be on track small: no public set", "3 rows to run, 9 seeds, 2 at a time"]
    assert f"wrote {tmp_path / 'small' / 'fedprox.v1.json'} after 36 s of computing" in lines
    assert "fedbn failed: ArithmeticError: round 3: client 1 sent a value that is not finite" in lines
    assert lines[-1].startswith("9 of 9 seeds, about 0 s so far")


def test_rows_of_one_method_follow_on_its_training_before_another_method_trains(tmp_path, monkeypatch):
    done = []

    def train(experiment, out, shared):
        done.append((out.relative_to(tmp_path).as_posix(), shared.relative_to(tmp_path).as_posix()))
        return 1.0

    def train_ahead(experiments, outs):
        assert [e.seed for e in experiments] == [0, 1, 2] and [o.name for o in outs] == ["s0", "s1", "s2"]
        done.append(outs[0].parent.name)
        if outs[0].parent.name == "fedprox":
            raise MemoryError("each seed then tries alone")

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep, "train_ahead", train_ahead)
    monkeypatch.setattr(sweep, "refusal", lambda e, t: None)
    monkeypatch.setattr(folder, "submit", lambda run, track_name, chosen, to: run.name)
    names = ["fedavg", "fedprox", "fedavg+lp"]
    lines = list(sweep.fill("small", tmp_path, tmp_path, 1, names, "cuda", workers=ThreadPoolExecutor))
    fedavg = [(f"{name}/s{seed}", f"fedavg/s{seed}") for name in ("fedavg+lp", "fedavg") for seed in range(3)]
    assert done == ["fedavg", *fedavg, "fedprox", *[(f"fedprox/s{seed}",) * 2 for seed in range(3)]]
    assert [line.split()[1] for line in lines if line.startswith("wrote")] == ["fedavg+lp", "fedavg", "fedprox"]
    done.clear()
    list(sweep.fill("small", tmp_path, tmp_path, 1, names, "cpu", workers=ThreadPoolExecutor))
    fedavg = [(f"{name}/s{seed}", f"fedavg/s{seed}") for seed in range(3) for name in ("fedavg", "fedavg+lp")]
    assert done == [*fedavg, *[(f"fedprox/s{seed}",) * 2 for seed in range(3)]]
    done.clear()
    list(sweep.fill("small", tmp_path, tmp_path, 3, ["fedavg+lp"], workers=ThreadPoolExecutor))
    assert sorted(done) == [(f"fedavg+lp/s{seed}", f"fedavg/s{seed}") for seed in range(3)]


def test_what_is_tested_with_every_adapter_is_tested_at_the_last_round_alone():
    looks = {
        n: sweep.entries([n])[0].experiments("cifar10-cnn")[1].eval_every for n in ("fedavg+lp", "fedthe", "fedper")
    }
    assert looks == {"fedavg+lp": 100, "fedthe": 100, "fedper": 10}


def test_a_sweep_says_something_while_a_row_takes_long(tmp_path, monkeypatch):
    """The row takes until three lines have come, however slow the machine is."""
    assert sweep.EVERY < 15
    thrice, waiting = threading.Event(), 0
    monkeypatch.setattr(sweep, "EVERY", 0.02)
    monkeypatch.setattr(sweep, "refusal", lambda e, t: None)
    monkeypatch.setattr(sweep, "train", lambda e, out, shared: 0.2 * thrice.wait(250))
    monkeypatch.setattr(folder, "submit", lambda run, track_name, chosen, to: to)
    for line in sweep.fill("small", tmp_path, tmp_path, 1, ["fedavg"], workers=ThreadPoolExecutor):
        waiting += line.startswith("0 of 3 seeds")
        if waiting == 3:
            thrice.set()
    assert waiting >= 3 and line.startswith("3 of 3 seeds")


def test_all_and_settings_exclude_each_other(tmp_path):
    args = plain.parser().parse_args(["run", "small", "method=fedavg", "--all", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="or --all; one of the two"):
        plain.answer(args)
    with pytest.raises(ValueError, match="--jobs=0 must be at least 1"):
        list(sweep.fill("small", tmp_path, tmp_path, 0))


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_stopped(tmp_path):
    entry = sweep.SweepRow("fedavg", ("method=fedavg", "method.work.epochs=1"), ("none",))
    first = entry.experiments("small")[0]
    assert sweep.train(first, tmp_path) > 0
    kept = (tmp_path / "state.safetensors").stat().st_mtime_ns
    (tmp_path / "results.json").unlink()
    sweep.train(first, tmp_path)
    assert (tmp_path / "results.json").exists() and (tmp_path / "state.safetensors").stat().st_mtime_ns == kept
    sweep.train(replace(first, seed=1), tmp_path)
    assert (tmp_path / "state.safetensors").stat().st_mtime_ns > kept


@pytest.mark.slow
def test_a_row_takes_over_the_training_of_its_method_and_no_other(tmp_path):
    one, other = (("method=fedavg", f"method.work.epochs={n}") for n in (1, 2))
    plain_row, tuned, longer = (
        sweep.SweepRow(name, settings, ("none",)).experiments("small")[0]
        for name, settings in (("fedavg", one), ("fedavg+lp", (*one, "personal=lp")), ("fedavg+lp", other))
    )
    assert sweep.train(tuned, tmp_path / "alone", tmp_path / "not there") > 0
    sweep.train(plain_row, tmp_path / "fedavg", tmp_path / "fedavg")
    sweep.train(tuned, tmp_path / "tuned", tmp_path / "fedavg")
    sweep.train(longer, tmp_path / "longer", tmp_path / "fedavg")
    tables = {
        n: json.loads((tmp_path / n / "results.json").read_text()) for n in ("alone", "fedavg", "tuned", "longer")
    }
    seconds = {n: found["timings"]["train_seconds"] for n, found in tables.items()}
    assert seconds["tuned"] == seconds["fedavg"] and len(set(seconds.values())) == 3
    assert tables["tuned"]["table"] == tables["alone"]["table"] != tables["fedavg"]["table"]


def test_a_copy_without_history_says_its_commit_by_a_variable_and_a_clone_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc1234")
    monkeypatch.setattr(origin, "__file__", str(tmp_path / "src" / "acclimate" / "store" / "origin.py"))
    assert origin._commit() == "abc1234"
    (tmp_path / ".git").mkdir()
    assert origin._commit() is None  # git finds no commit there, and the variable does not count
    monkeypatch.undo()
    assert origin._commit() != "abc1234"
