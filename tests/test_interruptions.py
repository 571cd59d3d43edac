"""Runs that end in the middle of a write: what is there is found again, and nothing else is left."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace

import pytest

import acclimate as ac
from acclimate import store
from acclimate.experiment.settings import expand
from acclimate.running import run as api

QUICK = (
    *("data.clients=3", "data.fraction=0.1", "data.partition=iid", "model=mlp", "model.hidden=4", "rounds=2"),
    *("method.work.epochs=1", "method.work.batch=8", "adapters=none", "streams=original"),
)


class Killed(BaseException):
    """The process ends here."""


def quick(*settings):
    return expand([*QUICK, *settings])


def killed_after(monkeypatch, module, wanted, call, *arguments):
    """Make a call whose process ends when a function of this module has written this file."""
    write = module.write

    def writes(path, *rest):
        write(path, *rest)
        if path.match(wanted):
            raise Killed

    with monkeypatch.context() as m:
        m.setattr(module, "write", writes)
        with pytest.raises(Killed):
            call(*arguments)


def results_of(path):
    return json.loads((path / "results.json").read_text())


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_SECRETS", str(tmp_path / "keys"))


def test_a_shared_training_brings_its_key_before_its_state(keys, tmp_path, monkeypatch):
    private = ("filters=central-dp", "method.weights=uniform", "cohort=2")
    experiments = [quick(*private)[0], quick(*private, "personal=means")[0]]
    killed_after(monkeypatch, store, "*means-s0/state.safetensors", ac.run_all, experiments, tmp_path / "cut")
    first, second = store.IndexFolder(tmp_path / "cut").runs()
    assert (second / "state.safetensors").exists()
    ac.resume(tmp_path / "cut")
    assert store.secrets.read(second) == store.secrets.read(first) is not None
    assert results_of(second)["cost"] == results_of(first)["cost"]


def test_the_seconds_of_a_training_are_known_when_its_last_checkpoint_is(tmp_path, monkeypatch):
    killed_after(monkeypatch, store.folders, "state.safetensors", ac.run, quick()[0], tmp_path / "run")
    ac.resume(tmp_path / "run")
    timings = results_of(tmp_path / "run")["timings"]
    assert timings["train_seconds"] > 0 and timings["round_seconds_median"] is not None


@pytest.mark.parametrize("several", [False, True])
def test_a_finished_run_without_a_report_gets_one(tmp_path, several, monkeypatch):
    experiments = quick("rounds=1") + (quick("rounds=1", "seed=1") if several else [])
    killed_after(monkeypatch, store.folders, "results.json", ac.run_all, experiments, tmp_path / "run")
    first = store.IndexFolder(tmp_path / "run").runs()[0] if several else tmp_path / "run"
    assert (first / "results.json").exists() and not (first / "report.html").exists()
    ac.resume(tmp_path / "run")
    assert "<html" in (first / "report.html").read_text()


def test_half_written_checkpoints_of_killed_processes_are_removed_and_no_other_file(tmp_path):
    with pytest.raises(Killed):
        ac.run(quick("checkpoint_every=1")[0], tmp_path / "run", watch=Stop())
    for name in (".state.safetensors.0a1b2c3d", ".traces.safetensors.0a1b2c3d", ".notes.0a1b2c3d"):
        (tmp_path / "run" / name).write_bytes(b"half")
    ac.resume(tmp_path / "run")
    assert [p.name for p in (tmp_path / "run").glob(".*")] == [".notes.0a1b2c3d"]


class Stop(api.Watch):
    def round(self, state):
        if state.round == 2:
            raise Killed


def test_half_written_parts_do_not_keep_a_run_from_its_end(tmp_path):
    """The last checkpoint of a run, and `--overwrite`, remove the folder of parts."""
    mapped = replace(
        quick("method=fedper", "method.work.batch=8", "checkpoint_every=1")[0],
        backend=ac.backends.Vmap(private="mapped"),
    )
    with pytest.raises(Killed):
        ac.run(mapped, tmp_path / "run", watch=Stop())
    half = tmp_path / "run" / "parts" / ".000002-0001-0123456789abcdef.safetensors.0a1b2c3d"
    half.write_bytes(b"half")
    ac.resume(tmp_path / "run")
    assert not half.parent.exists() and (tmp_path / "run" / "results.json").exists()


def test_a_key_can_be_kept_where_a_process_of_the_same_number_ended_in_the_middle(tmp_path):
    """In a container, every process has the number that the one before it had."""
    (tmp_path / f".site.key.{os.getpid()}").write_bytes(b"half")
    key = store.secrets.kept(tmp_path / "site.key")
    assert len(key) == 32 and store.secrets.kept(tmp_path / "site.key") == key
    assert (tmp_path / "site.key").stat().st_mode & 0o077 == 0


def test_runs_that_another_process_finished_meanwhile_are_not_overwritten(tmp_path, monkeypatch):
    path, locked = tmp_path / "suite", store.locked

    @contextlib.contextmanager
    def after_the_other(folder, *rest):
        if not path.exists():
            monkeypatch.setattr(store, "locked", locked)
            ac.run_all(quick("rounds=1", "seed=0,1"), path)
        with locked(folder, *rest):
            yield

    monkeypatch.setattr(store, "locked", after_the_other)
    with pytest.raises(store.RunError, match=r"holds a run; continue it with `acclimate resume"):
        ac.run_all(quick("rounds=1", "seed=2,3"), path)
    assert [r["seed"] for r in ac.resume(path).rows if r["selection"] == "last"] == [0, 1]
