"""Run folders: complete, atomic, resumable to the bit, and careful with what is already there."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import acclimate as ac
from acclimate import store
from acclimate.core import fit as loop
from acclimate.core.nn import fastest, implicit
from acclimate.eval import Table
from acclimate.experiment import dumps
from acclimate.experiment.settings import expand
from acclimate.running import run as api
from acclimate.running import train as training
from acclimate.running.watch import Watch
from support import equal

QUICK = (
    "data.clients=4",
    "model=mlp",
    "model.hidden=16",
    "model.norm=batch",
    "rounds=4",
    "method.work.epochs=1",
    "eval_every=2",
    "checkpoint_every=2",
)
COMPARED = ("config.json", "metrics.jsonl", "state.safetensors")


def quick(*settings):
    return expand([*QUICK, *settings])


def results_of(path: Path) -> dict:
    return json.loads((path / "results.json").read_text())


def same_run(a: Path, b: Path) -> None:
    for name in COMPARED:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    ra, rb = results_of(a), results_of(b)
    for part in ("table", "refused", "cost", "data"):
        assert ra[part] == rb[part], part


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "one"
    table = ac.run(quick()[0], path)
    return path, table


def test_the_folder_is_complete_and_follows_its_schema(finished):
    path, table = finished
    assert {p.name for p in path.iterdir()} == {*COMPARED, "results.json", "env.json", "pace.json", "report.html"}
    results = results_of(path)
    assert results["schema"] == "acclimate.results/2"
    rows = results["table"]
    assert len(rows) == 3 * 4 * 2  # adapters x streams x selections
    for row in rows:
        assert set(row) == set(ac.eval.Row.__annotations__)
        assert 0 <= row["accuracy"] <= 1
        assert row["clients"] == len(row["per_client"]) == 4
        assert sum(row["per_client"]) / 4 == pytest.approx(row["accuracy"], abs=1e-5)
        assert row["selection"] in ("last", "validation")
    assert {r["round"] for r in rows if r["selection"] == "last"} == {4}
    assert [r["round"] for r in map(json.loads, (path / "metrics.jsonl").read_text().splitlines())] == [2, 4]
    assert results["cost"]["up_bytes_per_client"] == sum(m["bytes"] for m in results["cost"]["message"])
    assert results["data"]["streams"]["corrupted"]["severity"] == 5
    env = json.loads((path / "env.json").read_text())
    assert env["torch"] == torch.__version__
    assert table.rows == tuple(rows)


def test_adapted_mixture_without_memory_is_the_mean_of_its_parts(finished):
    _, table = finished
    picks = {s: table.accuracy(adapter="none", stream=s, selection="last") for s in table.streams()}
    mean = (picks["original"] + picks["corrupted"] + picks["out-of-client"]) / 3
    assert picks["mixture"] == pytest.approx(mean, abs=1e-6)


def test_load_gives_back_the_trained_models(finished):
    path, table = finished
    fit = ac.load(path)
    assert fit.state.round == 4
    again = ac.evaluate(fit)
    assert [r["accuracy"] for r in again.rows] == pytest.approx([r["accuracy"] for r in table.rows])
    assert fit.model(0)["vars"]["params"].keys() == fit.worker.task.init(ac.rng.key(0))["params"].keys()


# --- analysis -------------------------------------------------------------------------------------------------------

ANALYSED = ("analysis=true", "adapters=tent,none", "streams=original,corrupted", "checkpoint_every=1")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "analysed"
    return path, ac.run(quick(*ANALYSED)[0], path)


def test_analysis_changes_neither_training_nor_results(analysed, tmp_path):
    path, table = analysed
    plain = quick(*ANALYSED[1:])[0]
    assert plain.training_hash() == quick(*ANALYSED)[0].training_hash()
    assert ac.run(plain, tmp_path / "plain").rows == table.rows
    kept = [{k: v for k, v in r.items() if k not in ("streams", "adapter")} for r in ac.load(path).history]
    assert kept == list(ac.load(tmp_path / "plain").history)
    assert not (tmp_path / "plain" / "traces.safetensors").exists()


def test_the_curve_of_a_stream_ends_at_the_results(analysed):
    path, table = analysed
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rows] == [2, 4]
    assert [r["adapter"] for r in rows] == ["tent", "tent"]
    assert rows[-1]["streams"] == {s: table.accuracy(adapter="tent", stream=s) for s in ("original", "corrupted")}
    assert rows[0]["streams"] != rows[-1]["streams"]


def test_traces_load_back_as_measured(analysed):
    path, _ = analysed
    kept = api.traces(path)
    assert set(kept) == {"tent"}  # NoAdapt has nothing to tell
    fit = ac.load(path)
    tested = [len(rows) for rows in fit.world.test]
    for stream in ("original", "corrupted"):
        assert kept["tent"][stream]["client"].bincount().tolist() == tested
        assert len(kept["tent"][stream]["entropy"]) == sum(tested)
    again = api.traces(fit, streams=[ac.shifts.Original()])
    assert equal(again["tent"]["original"], kept["tent"]["original"])
    summary = json.loads((path / "analysis.json").read_text())
    assert summary["schema"] == "acclimate.analysis/2"
    drawn = summary["histograms"][0]["streams"]["original"]
    assert sum(drawn["counts"]) == drawn["samples"] == sum(tested)
    assert drawn["mean"] == pytest.approx(float(kept["tent"]["original"]["entropy"].double().mean()))


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_resumed_analysis_is_bit_identical(analysed, tmp_path, rounds):
    path = tmp_path / "cut"
    with pytest.raises(api.Interrupted):
        ac.run(quick(*ANALYSED)[0], path, watch=StopAfter(rounds))
    ac.resume(path)
    same_run(analysed[0], path)
    for name in ("traces.safetensors", "analysis.json"):
        assert (path / name).read_bytes() == (analysed[0] / name).read_bytes(), name


def test_training_is_shared_only_where_the_curves_would_be_the_same(tmp_path):
    class Spy(Watch):
        rounds = 0

        def round(self, state):
            self.rounds += 1

    pair = quick("method=fedavg,fedavg+finetune", "streams=original", "analysis=true", "rounds=2")
    ac.run_all(pair, tmp_path / "pair", watch=(spy := Spy()))
    assert spy.rounds == 4  # the curves are measured after personalisation
    for run in store.find_runs(tmp_path / "pair"):
        table = api.stored_table(run)
        assert run.rows()[-1]["streams"]["original"] == table.accuracy(adapter="none", stream="original")


def test_traces_that_are_absent_or_damaged_are_refused(analysed, finished, tmp_path):
    with pytest.raises(store.RunError, match="keeps traces with analysis=true"):
        api.traces(finished[0])
    with pytest.raises(ValueError, match="not for a run folder"):
        api.traces(analysed[0], adapters=[ac.adapters.Tent()])
    path = copy_of(analysed, tmp_path)
    raw = bytearray((path / "traces.safetensors").read_bytes())
    raw[-3] ^= 0x55
    (path / "traces.safetensors").write_bytes(raw)
    with pytest.raises(store.RunError, match="traces.safetensors is damaged"):
        api.traces(path)


def test_overwriting_removes_an_old_analysis(analysed, tmp_path):
    path = copy_of(analysed, tmp_path)
    ac.run(quick("adapters=none", "streams=original", "rounds=1")[0], path, overwrite=True)
    assert {p.name for p in path.iterdir()} == {*COMPARED, "results.json", "env.json", "pace.json", "report.html"}


class StopAfter(Watch):
    def __init__(self, rounds):
        self.left = rounds

    def round(self, state):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_ctrl_c_checkpoints_and_resume_ends_alike(finished, tmp_path, rounds):
    path = tmp_path / "cut"
    with pytest.raises(api.Interrupted, match=f"go on with: acclimate resume {path}") as stop:
        ac.run(quick()[0], path, watch=StopAfter(rounds))
    assert stop.value.round == rounds + 1
    assert not (path / "results.json").exists()
    ac.resume(path)
    same_run(finished[0], path)


def test_chosen_kernels_are_kept_with_checkpoints_and_used_again(tmp_path):
    path, chosen = tmp_path / "cut", {"some shape": {"way": "implicit", "tile": [128, 64, 32, 4, 3]}}
    timed = {"some product": {"way": "other", "times": {"plain": 2.0, "other": 1.0}}}
    before, timed_before = implicit.choices(), fastest.choices()
    try:
        implicit.forget()
        fastest.forget()
        implicit.use_choices(fastest.use_choices(chosen | timed))
        with pytest.raises(api.Interrupted):
            ac.run(quick()[0], path, watch=StopAfter(1))
        implicit.forget()
        fastest.forget()
        kept = (path / "kernels.json").read_text()
        for wrong in (
            "{}",
            '{"schema": "acclimate.kernels/1"}',
            kept.replace("128", '"x"'),
            kept.replace("other", "x", 1),
        ):
            (path / "kernels.json").write_text(wrong)
            with pytest.raises(store.RunError, match=r"kernels\.json"):
                ac.resume(path)
        (path / "kernels.json").write_text(kept)
        ac.resume(path)
        assert implicit.choices() == chosen and fastest.choices() == timed
    finally:
        implicit.forget()
        fastest.forget()
        implicit.use_choices(before)
        fastest.use_choices(timed_before)


COMMAND = "from acclimate.cli.main import main; main()"


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "each-round"
    ac.run(quick("checkpoint_every=1")[0], path)
    return path


@pytest.mark.parametrize("delay", [0.0, pytest.param(0.4, marks=pytest.mark.slow), 1.1])
def test_kill_at_any_moment_then_resume_is_bit_identical(checkpointed, tmp_path, delay):
    path = tmp_path / "killed"
    slow = ["method=fedavg", *QUICK, "checkpoint_every=1"]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, "run", "-q", "--out", str(path), *slow])
    while not (path / "config.json").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(path.glob("*.tmp"))
    ac.resume(path)  # in another process than the one that was killed
    same_run(checkpointed, path)


def test_several_runs_share_training_make_an_index_and_resume(tmp_path):
    path = tmp_path / "suite"
    experiments = quick("method=fedavg,fedavg+finetune", "adapters=none", "streams=original")
    with pytest.raises(api.Interrupted, match=f"go on with: acclimate resume {path}$"):
        ac.run_all(experiments, path, watch=StopAfter(2))
    trained = []

    class Spy(Watch):
        def round(self, state):
            trained.append(state.round)

    first = store.RunFolder(store.IndexFolder(path).runs()[0])
    before = first.pace_so_far()
    table = ac.resume(path, watch=Spy())
    assert trained == [4]  # the first run goes on from its checkpoint; the second reuses it
    timings = first.load()["results"]["timings"]  # of all rounds, not of the one since
    assert before["train_seconds"] > 0 and before["trained_together"] == timings["trained_together"] == 1
    last = timings["train_seconds"] - before["train_seconds"]
    assert last == pytest.approx(timings["round_seconds_median"], abs=2e-4)
    assert [r["personal"] for r in table.rows if r["selection"] == "last"] == ["none", "finetune"]
    index = json.loads((path / "index.json").read_text())
    assert [r["label"] for r in index["runs"]] == ["fedavg", "fedavg+finetune"]
    a, b = (path / r["path"] for r in index["runs"])
    assert (a / "state.safetensors").read_bytes() == (b / "state.safetensors").read_bytes()
    assert (path / "report.html").exists()
    assert ac.resume(path).rows == table.rows


@pytest.fixture
def joined(monkeypatch):
    """Seeds are trained together, as on a GPU."""
    monkeypatch.setattr(training, "can_join", lambda experiments: len(experiments) > 1)


def test_no_seed_runs_twice():
    swept = api.with_seeds(quick("method=fedavg,fedprox", "seed=0,1"), 2)
    assert [(e.label, e.seed) for e in swept] == [(m, s) for m in ("fedavg", "fedprox") for s in (0, 1, 2)]


def test_seeds_together_are_checkpointed_by_ctrl_c_and_end_alike(joined, tmp_path):
    experiments = api.with_seeds(quick("checkpoint_every=100", "streams=original"), 2)
    api.run_all(experiments, tmp_path / "whole")
    with pytest.raises(api.Interrupted, match=f"go on with: acclimate resume {tmp_path / 'cut'}") as stop:
        api.run_all(experiments, tmp_path / "cut", watch=StopAfter(2))
    assert stop.value.round == 3 and len(list((tmp_path / "cut").glob("*/state.safetensors"))) == 2
    assert ac.resume(tmp_path / "cut").rows == ac.resume(tmp_path / "whole").rows


def test_seeds_train_together_once_for_all_runs_that_share_their_training(joined, tmp_path, monkeypatch):
    together, lanes = [], training.train_lanes

    def spy(experiments, *rest):
        together.append([(e.label, e.seed) for e in experiments])
        return lanes(experiments, *rest)

    monkeypatch.setattr(training, "train_lanes", spy)
    experiments = api.with_seeds(quick("rounds=1", "personal=none,finetune", "streams=original"), 2)
    api.run_all(experiments, tmp_path)
    assert together == [[("fedavg", 0), ("fedavg", 1)]]
    for plain, tuned in zip(experiments[:2], experiments[2:], strict=True):
        (a, b) = (p for p in store.IndexFolder(tmp_path).runs() if store.RunFolder(p).experiment() in (plain, tuned))
        assert (a / "state.safetensors").read_bytes() == (b / "state.safetensors").read_bytes()
        one, two = (json.loads((path / "results.json").read_text()) for path in (a, b))
        assert one["table"] != two["table"]
        same = ("train_seconds", "round_seconds_median", "trained_together")
        assert [one["timings"][k] for k in same] == [two["timings"][k] for k in same]
        assert one["timings"]["trained_together"] == 2 and one["timings"]["train_seconds"] > 0


def test_results_whose_weights_were_deleted_are_kept(joined, tmp_path):
    experiments = api.with_seeds(quick("rounds=1", "streams=original"), 2)
    table = api.run_all(experiments, tmp_path / "runs")
    found = sorted((tmp_path / "runs").glob("*/results.json"))
    before = [f.read_bytes() for f in found]
    for state in (tmp_path / "runs").glob("*/state.safetensors"):
        state.unlink()
    assert ac.resume(tmp_path / "runs").rows == table.rows
    assert [f.read_bytes() for f in found] == before and len(before) == 2


def test_a_stream_without_examples_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"stream 'out-of-client' cannot be made from .*: no client has an example"):
        ac.run(quick("data.clients=1", "streams=out-of-client")[0], tmp_path / "run")


def test_a_finished_run_is_not_overwritten_unless_told(finished):
    path, _ = finished
    before = (path / "results.json").read_bytes()
    with pytest.raises(store.RunError, match=r"holds a finished run; pass --overwrite \(overwrite=True\)"):
        ac.run(quick()[0], path)
    with pytest.raises(store.RunError, match="holds a finished run"):
        ac.run_all(quick("seed=0,1"), path)
    assert (path / "results.json").read_bytes() == before


SMALL = ("adapters=none", "streams=original", "rounds=1", "backend=serial")


def test_a_run_that_replaces_several_is_the_one_that_is_found(tmp_path):
    ac.run_all(quick(*SMALL, "seed=0,1"), tmp_path)
    table = ac.run(quick(*SMALL, "method=fedprox")[0], tmp_path, overwrite=True)
    assert [f.path for f in store.find_runs(tmp_path)] == [tmp_path]
    assert ac.resume(tmp_path).rows == table.rows


def test_several_runs_that_replace_one_leave_nothing_of_it(tmp_path):
    ac.run(quick(*SMALL, "method=fedprox")[0], tmp_path)
    ac.run_all(quick(*SMALL, "seed=0,1"), tmp_path, overwrite=True)
    assert not (tmp_path / "results.json").exists() and not (tmp_path / "config.json").exists()
    assert [f.finished for f in store.find_runs(tmp_path)] == [True, True]


@pytest.mark.parametrize("several", [False, True])
def test_what_cannot_be_built_costs_no_earlier_results(finished, tmp_path, several):
    path = copy_of(finished, tmp_path)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    gone = [replace(e, data=ac.data.Arrays(file=str(tmp_path / "gone.npz"))) for e in quick("seed=0,1")]
    with pytest.raises(FileNotFoundError):
        ac.run_all(gone if several else gone[:1], path, overwrite=True)
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method=fedavg,fedbn", "model.norm=none"], r"^fedbn-s0: 'norm' selects nothing"),
        (["method.work.batch=8,4000"], r"^fedavg-method.work.batch=4000-s0: client 0 has \d+ training examples"),
    ],
)
def test_one_of_several_that_cannot_be_built_is_named_before_any_is_trained(tmp_path, settings, says):
    with pytest.raises(ValueError, match=says):
        ac.run_all(quick(*SMALL, *settings), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_error_while_one_of_several_runs_says_which(tmp_path):
    with pytest.raises(ValueError, match=r"^fedavg-s0: stream 'out-of-client' cannot be made"):
        ac.run_all(quick(*SMALL, "data.clients=1", "streams=out-of-client", "seed=0,1"), tmp_path)


def test_an_index_is_written_after_earlier_runs_are_removed(tmp_path, monkeypatch):
    ac.run_all(quick(*SMALL, "seed=0,1"), tmp_path)

    def stop(self, experiments):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.IndexFolder, "plan", stop)
    with pytest.raises(KeyboardInterrupt):
        ac.run_all(quick(*SMALL, "seed=0,1", "method=fedprox"), tmp_path, overwrite=True)
    assert not (tmp_path / "index.json").exists()


def copy_of(finished, tmp_path) -> Path:
    path = tmp_path / "copy"
    path.mkdir()
    for f in finished[0].iterdir():
        (path / f.name).write_bytes(f.read_bytes())
    return path


def test_an_unfinished_run_points_to_resume(finished, tmp_path):
    path = copy_of(finished, tmp_path)
    (path / "results.json").unlink()
    with pytest.raises(store.RunError, match=f"acclimate resume {path}"):
        ac.run(quick()[0], path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("results.json", "[]", r"results.json is damaged: it holds '\[\]', not a JSON object"),
        ("results.json", "{", "results.json is damaged: Expecting"),
        ("metrics.jsonl", '{"round": 1}\n{"rou', "metrics.jsonl, line 2, is damaged: "),
        ("metrics.jsonl", "3\n", "metrics.jsonl, line 1, is damaged: it holds '3'"),
        ("config.json", "null", "config.json is damaged: it holds 'null'"),
    ],
)
def test_a_report_names_the_file_that_is_damaged(finished, tmp_path, name, content, says):
    path = copy_of(finished, tmp_path)
    (path / name).write_text(content)
    with pytest.raises(store.RunError, match=says):
        ac.report(path, out=tmp_path / "report.html")


@pytest.mark.parametrize("damage", ["truncate", "flip", "garbage", "empty"])
def test_damaged_checkpoints_are_refused(finished, tmp_path, damage):
    path = copy_of(finished, tmp_path)
    state = path / "state.safetensors"
    raw = bytearray(state.read_bytes())
    if damage == "truncate":
        raw = raw[: len(raw) // 2]
    elif damage == "flip":
        raw[-3] ^= 0x55
    else:
        raw = bytearray(b"not a tensor" if damage == "garbage" else b"")
    state.write_bytes(raw)
    (path / "results.json").unlink()
    with pytest.raises(store.RunError, match="is damaged"):
        ac.resume(path)
    assert state.read_bytes() == bytes(raw)  # left for the user to look at


def test_a_checkpoint_of_another_config_or_version_is_refused(finished, tmp_path):
    path = copy_of(finished, tmp_path)
    (path / "results.json").unlink()
    other = replace(store.RunFolder(path).experiment(), rounds=5)
    (path / "config.json").write_text(dumps(other))
    with pytest.raises(store.RunError, match="was trained with another configuration"):
        ac.resume(path)
    state = path / "state.safetensors"
    state.write_bytes(state.read_bytes().replace(b"acclimate.state/2", b"acclimate.state/0"))
    with pytest.raises(store.RunError, match="schema='acclimate.state/0' must be 'acclimate.state/2'"):
        ac.resume(path)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    def arrays(seed):
        x = np.random.default_rng(seed).normal(size=(300, 8)).astype(np.float32)
        np.savez(tmp_path / "site.npz", x=x, y=np.arange(300) % 3)

    arrays(0)
    (e,) = expand(["model=mlp", "rounds=4", "checkpoint_every=1", "adapters=none", "streams=original"])
    e = replace(e, data=ac.data.Arrays(file=str(tmp_path / "site.npz"), clients=2))
    with pytest.raises(api.Interrupted):
        ac.run(e, tmp_path / "run", watch=StopAfter(2))
    arrays(1)
    with pytest.raises(store.RunError, match="was trained on other data: examples or splits have changed"):
        ac.resume(tmp_path / "run")
    state = tmp_path / "run" / "state.safetensors"
    kept = state.read_bytes()
    arrays(0)
    ac.resume(tmp_path / "run")
    arrays(1)
    (tmp_path / "run" / "results.json").unlink()
    state.write_bytes(kept)
    rewritten(state, world=None, seal=None, schema="acclimate.state/1")  # as earlier versions wrote it
    ac.resume(tmp_path / "run")


def test_numbers_that_are_not_finite_are_null_in_the_files(tmp_path, monkeypatch):
    real, judge = api.evaluated, loop.judge

    def evaluated(*args):
        table, cards = real(*args)
        return Table(tuple({**row, "loss": math.inf} for row in table.rows), table.refused), cards

    def judged(state, metrics):
        return judge(state, {**metrics, "loss": metrics["loss"] * math.nan})

    monkeypatch.setattr(api, "evaluated", evaluated)
    monkeypatch.setattr(loop, "judge", judged)
    ac.run(quick(*SMALL)[0], tmp_path)

    def refuse(word):
        raise AssertionError(word)

    lines = [(tmp_path / "results.json").read_text(), *(tmp_path / "metrics.jsonl").read_text().splitlines()]
    results, row = (json.loads(line, parse_constant=refuse) for line in lines)
    assert results["table"][0]["loss"] is None and row["val_loss"] is None
    assert ac.resume(tmp_path).rows[0]["loss"] is None  # and the report was written


def rewritten(state: Path, **changes) -> None:
    """The checkpoint with other metadata; None removes an entry."""
    with safe_open(state, framework="pt") as f:
        meta = {**json.loads(f.metadata()["acclimate"]), **changes}
        tensors = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118
    kept = {k: v for k, v in meta.items() if v is not None}
    state.write_bytes(save(tensors, {"acclimate": json.dumps(kept, sort_keys=True)}))


@pytest.mark.parametrize("changes", [{"round": 1}, {"best": {"round": 2, "score": 2.0}}, {"digest": None}])
def test_checkpoints_with_other_metadata_are_refused(finished, tmp_path, changes):
    path = copy_of(finished, tmp_path)
    rewritten(path / "state.safetensors", **changes)
    with pytest.raises(store.RunError, match="is damaged"):
        ac.load(path)


def test_checkpoints_of_earlier_versions_are_read(finished, tmp_path):
    path = copy_of(finished, tmp_path)
    rewritten(path / "state.safetensors", seal=None, schema="acclimate.state/1")
    (path / "results.json").unlink()
    assert equal(ac.load(path).state.server, ac.load(finished[0]).state.server)


def test_the_next_free_number_goes_beyond_a_thousand(tmp_path):
    for n in (*range(1, 1000), 1001):
        (tmp_path / f"{n:03d}-x").mkdir()
    assert store.next_free(tmp_path, "a") == tmp_path / "1000-a"
    (tmp_path / "1000-a").mkdir()
    assert store.next_free(tmp_path, "a") == tmp_path / "1002-a"


def test_a_full_disk_loses_nothing(finished, tmp_path, monkeypatch):
    path = tmp_path / "full"
    real, budget = os.fsync, [3]  # environment, settings and pace: the first checkpoint finds it full

    def full(handle):
        budget[0] -= 1
        if budget[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(store.RunError, match="No space left on device; what was there before is unchanged"):
        ac.run(quick()[0], path)
    monkeypatch.setattr(os, "fsync", real)
    assert not [p for p in path.iterdir() if p.name.startswith(".")]  # no temporary files stay behind
    ac.resume(path)
    same_run(finished[0], path)


def test_ctrl_c_leaves_no_temporary_file(tmp_path, monkeypatch):
    (tmp_path / "kept").write_text("before")

    def stop(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        store.write(tmp_path / "kept", "after")
    assert [p.name for p in tmp_path.iterdir()] == ["kept"] and (tmp_path / "kept").read_text() == "before"


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_are_as_open_as_the_umask_lets_them(tmp_path, umask, expected):
    old = os.umask(umask)
    try:
        store.write(tmp_path / "open", "x")
        store.write(tmp_path / "mine", "x", mode=0o600)
    finally:
        os.umask(old)
    assert (tmp_path / "open").stat().st_mode & 0o777 == expected
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600


def test_fit_save_and_load(tmp_path):
    fit = ac.train(quick()[0])
    fit.save(tmp_path / "saved")
    assert equal(ac.load(tmp_path / "saved").state.server, fit.state.server)
    with pytest.raises(store.RunError, match="does not exist; is"):
        ac.load(tmp_path / "nothing")


def test_report_over_folders(finished, tmp_path):
    out = ac.report(finished[0], out=tmp_path / "r.html")
    assert out.read_text().lstrip().lower().startswith("<!doctype html>")
    with pytest.raises(store.RunError, match="holds no run"):
        ac.report(tmp_path / "empty", out=tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()
