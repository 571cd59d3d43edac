"""A run of a sweep whose training diverges: the others end, it is named, and nobody trains it again unasked."""

from __future__ import annotations

import json

import pytest

import acclimate as ac
from acclimate import store
from acclimate.core import NonFinite
from acclimate.experiment.settings import expand
from acclimate.running import failures, train
from acclimate.running.failures import RunsFailed
from acclimate.running.watch import Watch

QUICK = (
    *("data.clients=3", "data.fraction=0.1", "data.partition=iid", "model=mlp", "model.hidden=4", "rounds=2"),
    *("method.work.epochs=1", "method.work.batch=8", "adapters=none", "streams=original", "checkpoint_every=1"),
)
BAD = "fedavg-method.opt.lr=1e+30-s0"
WHY = "round 0: client(s) 0"


class Trained(Watch):
    """Notes after how many rounds a training goes on."""

    def __init__(self):
        self.seen = []

    def training(self, label, seed, done, rounds):
        self.seen.append(done)


def sweep(*rates):
    return expand([*QUICK, "method=fedavg", f"method.opt.lr={','.join(rates)}"])


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A sweep of two whose first diverges, and the error that it ended with."""
    path = tmp_path_factory.mktemp("failed") / "sweep"
    with pytest.raises(RunsFailed) as error:
        ac.run_all(sweep("1e30", "0.05"), path)
    return path, error.value


def test_the_others_end_and_the_one_that_diverged_is_named(failed):
    path, error = failed
    runs = store.IndexFolder(path).runs()
    assert [(r / "results.json").exists() for r in runs] == [False, True] and runs[0].name == BAD
    assert list(error.failed) == [BAD] and error.failed[BAD].startswith(WHY)
    assert "produced values that are not finite; lower the learning rate, set method.work.clip" in error.failed[BAD]
    assert str(error).startswith(f"1 run failed:\n  {BAD}: {WHY}")
    assert str(error).endswith(f"\nto train them once more: acclimate resume {path} --again")
    assert {(r["method"], r["adapter"]) for r in error.table.rows} == {("fedavg", "none")}
    kept = json.loads((runs[0] / "failed.json").read_text())
    assert kept == {"schema": "acclimate.failed/1", "reason": error.failed[BAD]}
    assert BAD in (path / "report.html").read_text()  # as one that is not finished


def test_it_is_not_trained_again_unless_that_is_asked_for(failed):
    path, error = failed
    for again, trainings in ((False, []), (True, [0])):
        watch = Trained()
        with pytest.raises(RunsFailed) as once_more:
            ac.resume(path, watch, again=again)
        assert once_more.value.failed == error.failed and watch.seen == trainings
        assert once_more.value.table.rows == error.table.rows


def test_a_sweep_whose_runs_all_diverge_has_no_report(tmp_path):
    with pytest.raises(RunsFailed, match="^2 runs failed:\n"):
        ac.run_all(sweep("1e30", "1e31"), tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "report.html").exists()


def test_a_run_that_failed_and_ends_after_all_is_not_failed_any_more(tmp_path):
    first, second = sweep("0.05", "0.01")
    ac.run_all([first, second], tmp_path / "sweep")
    path = store.IndexFolder(tmp_path / "sweep").runs()[1]
    rows = ac.resume(path).rows
    (path / "results.json").unlink()
    (path / "failed.json").write_text('{"schema": "acclimate.failed/1", "reason": "so"}')
    with pytest.raises(RunsFailed, match="so"):
        ac.resume(tmp_path / "sweep")
    watch = Trained()
    assert ac.resume(path, watch, again=True).rows == rows and watch.seen == [0]
    assert not (path / "failed.json").exists()
    (path / "results.json").unlink()
    (path / "failed.json").write_text('{"schema": "acclimate.failed/1", "reason": "so"}')
    watch = Trained()
    assert ac.resume(path, watch).rows == rows and watch.seen == [2]  # by its own name: from its last checkpoint
    assert not (path / "failed.json").exists()
    (path / "failed.json").write_text("{}")
    with pytest.raises(store.RunError, match=r"failed.json is damaged; remove it"):
        failures.reason_of(path)


def test_errors_that_need_not_come_again_are_not_kept(tmp_path):
    found = {}
    with failures.noted(tmp_path, found):
        raise ArithmeticError("2 clients opened their shares; 3 are needed to read the sum")
    assert found == {tmp_path.name: "2 clients opened their shares; 3 are needed to read the sum"}
    assert failures.reason_of(tmp_path) is None
    with pytest.raises(ValueError, match="other"), failures.noted(tmp_path, found):
        raise ValueError("other")


def test_seeds_that_train_together_leave_the_other_groups_alone(tmp_path, monkeypatch):
    """As on a GPU: the second group trains although the first breaks down, and then every run ends by itself."""
    lanes = []

    def broken(same, parts, folders, watch):
        lanes.append([e.seed for e in same])
        raise NonFinite([0], 0, (1,))

    monkeypatch.setattr(train, "can_join", lambda experiments, numbers=False: len(experiments) > 1)
    monkeypatch.setattr(train, "vectorised", lambda parts: bool(parts))
    monkeypatch.setattr(train, "train_lanes", broken)
    experiments = [e for s in (0, 1) for e in expand([*QUICK, "method=fedavg,fedprox", f"seed={s}"])]
    table = ac.run_all(experiments, tmp_path / "sweep")
    assert lanes == [[0, 1], [0, 1]] and len({(r["method"], r["seed"]) for r in table.rows}) == 4


def test_the_command_shows_the_others_and_ends_with_one(here):
    typed = ["method=fedavg", "method.opt.lr=1e30,0.05", "-q", "-o", "sweep"]
    done = here("run", *QUICK, *typed)
    assert done.returncode == 1 and "accuracy at the last round" in done.stdout and "Traceback" not in done.stderr
    assert f"acclimate: 1 run failed:\n  {BAD}: round 0" in done.stderr
    again = here("resume", "sweep", "-q", "--json")
    body = json.loads(again.stdout)
    assert again.returncode == 1 and list(body["failed"]) == [BAD]
    assert {r["method"] for r in body["rows"]} == {"fedavg"}
