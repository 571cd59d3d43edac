"""Tracking: what TensorBoard and MLflow hold is what the run folders hold, and a run does not notice."""

import sys

import pytest
from typer.testing import CliRunner

import acclimate as ac
from acclimate import store
from acclimate.cli.main import app
from acclimate.running import run as api
from acclimate.running import track
from acclimate.running.track import Both, Tracker, tracked

SMALL = ["model=mlp", "data.clients=3", "rounds=3", "method.work.epochs=1", "checkpoint_every=1", "streams=original"]


def experiment(**changes):
    given = {
        "data": ac.data.Digits(clients=3),
        "model": ac.models.MLP(hidden=(8,)),
        "method": ac.methods.FedAvg(work=ac.Work(epochs=1)),
        "adapters": (ac.adapters.NoAdapt(), ac.adapters.T3A()),
        "streams": (ac.shifts.Original(),),
        "rounds": 2,
        "checkpoint_every": 1,
    }
    return ac.Experiment(**{**given, **changes})


class Notebook:
    """A sink in memory."""

    def __init__(self):
        self.points, self.said, self.closed = {}, {}, False

    def begin(self, run):
        self.points[run], self.said[run] = {}, {}

    def holds(self, run):
        return run in self.points

    def scalars(self, run, step, values):
        for tag, value in values.items():
            assert (tag, step) not in self.points[run], "logged twice"
            self.points[run][tag, step] = value

    def facts(self, run, values):
        self.said[run] |= values

    def close(self):
        self.closed = True


def expected(path):
    """What a run folder says."""
    run = store.RunFolder(path).load()
    points = {}
    for row in run["metrics"]:
        points |= {
            ("validation/accuracy", row["round"]): row["val_accuracy"],
            ("bytes/up", row["round"]): row["up_bytes"],
            ("faults", row["round"]): 0.0,
        }
    for row in run["results"]["table"]:
        points[f"test/{row['stream']}/{row['adapter']}/{row['selection']}", row["round"]] = row["accuracy"]
    return points


def agrees(points, path):
    wanted = expected(path)
    assert {k: points.get(k) for k in wanted} == pytest.approx(wanted)


def scalars(folder):
    """What TensorBoard itself reads from an event file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {(tag, e.step): e.value for tag in seen.Tags()["scalars"] for e in seen.Scalars(tag)}, seen


def test_every_round_and_the_table_are_logged_while_it_runs(tmp_path):
    book, seen = Notebook(), []

    class Look(ac.Watch):
        def round(self, state):
            seen.append(len(book.points["run"]))

    tracker = Tracker(tmp_path / "run", [book])
    ac.run(experiment(), tmp_path / "run", watch=Both(tracker, Look()))
    assert seen == [6, 12]  # six numbers a round, at once
    tracker.finish()
    agrees(book.points["run"], tmp_path / "run")
    assert book.closed and book.said["run"]["label"] == "fedavg"


def test_runs_of_a_sweep_with_one_label_are_told_apart(tmp_path):
    book = Notebook()
    runs = [experiment(method=ac.methods.FedProx(mu=mu, work=ac.Work(epochs=1))) for mu in (0.01, 5.0)]
    runs.append(experiment(personal=ac.personal.FineTune()))
    runs.append(experiment())  # takes over the training of the one before
    tracker = Tracker(tmp_path, [book])
    api.run_all(runs, tmp_path, watch=tracker)
    tracker.finish()
    paths = store.IndexFolder(tmp_path).runs()
    assert set(book.points) == {p.name for p in paths} and len(paths) == 4
    for path in paths:
        agrees(book.points[path.name], path)
    assert "method.mu=5.0" in book.said[paths[1].name]["settings"]


def test_a_resumed_run_is_logged_from_its_first_round(tmp_path):
    class Stop(ac.Watch):
        def round(self, state):
            raise KeyboardInterrupt

    with pytest.raises(ac.Interrupted):
        ac.run(experiment(), tmp_path / "run", watch=Stop())
    book = Notebook()
    tracker = Tracker(tmp_path / "run", [book])
    ac.resume(tmp_path / "run", tracker)
    tracker.finish()
    agrees(book.points["run"], tmp_path / "run")
    again = Tracker(tmp_path / "run", [book])
    ac.resume(tmp_path / "run", again)
    again.finish()  # finished and held: a second log of a point would fail


def test_faults_are_counted_up_to_the_round(tmp_path):
    row = {"round": 2, "val_accuracy": 0.5, "val_std": 0.1, "val_loss": 1.0, "up_bytes": 8, "down_bytes": 8}
    faults = [{"round": r, "client": 0, "kind": "late", "reason": ""} for r in (0, 1, 2)]
    assert track._point(row, faults)["faults"] == 2  # rounds of faults count from 0, those of rows from 1
    assert track._point(row | {"streams": {"corrupted": 0.4}}, ())["stream/corrupted"] == 0.4


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    args = ["run", *SMALL, "method=fedavg,fedprox", "adapters=none,t3a", "-q", "--out", str(tmp_path / "r")]
    done = CliRunner().invoke(app, [*args, "--track", "tensorboard"])
    assert done.exit_code == 0, done.output
    for path in store.IndexFolder(tmp_path / "r").runs():
        folder = tmp_path / "r" / "tensorboard" / path.name
        points, seen = scalars(folder)
        agrees(points, path)
        assert {"label", "settings", "command"} <= {tag.partition("/")[0] for tag in seen.Tags()["tensors"]}
        assert [p.name for p in folder.iterdir()] == ["events.out.tfevents.acclimate"]  # without the machine's name
    plain = CliRunner().invoke(app, [*args[:-1], str(tmp_path / "plain")])
    assert plain.exit_code == 0, plain.output
    for path in store.IndexFolder(tmp_path / "r").runs():
        twin = tmp_path / "plain" / path.name
        for name in ("config.json", "state.safetensors", "metrics.jsonl"):
            assert (path / name).read_bytes() == (twin / name).read_bytes()


@pytest.mark.slow  # MLflow takes many seconds to make its tables
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_what_was_written(tmp_path):
    pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    root = tmp_path / "run"
    for overwrite in (False, True):
        with tracked(root, "mlflow") as watch:
            ac.run(experiment(adapters=(ac.adapters.T3A(keep=3),)), root, overwrite, watch)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root / 'mlflow.db'}")
    home = client.get_experiment_by_name("acclimate").experiment_id
    (run,) = client.search_runs([home])  # the overwritten one is gone
    wanted = expected(root)
    assert {tag for tag, _ in wanted} <= set(run.data.metrics)
    for tag in {tag for tag, _ in wanted}:
        held = {(tag, m.step): m.value for m in client.get_metric_history(run.info.run_id, tag)}
        assert held == pytest.approx({k: v for k, v in wanted.items() if k[0] == tag})
    assert run.info.status == "FINISHED" and run.data.tags["label"] == "fedavg"
    assert not {"mlflow.user", "mlflow.source.name"} & set(run.data.tags)


def test_what_mlflow_would_refuse_is_renamed():
    assert track._word("test/original/tent(steps=2)/last") == "test/original/tent_steps_2_/last"


@pytest.mark.parametrize("name", track.SINKS)
def test_a_missing_package_is_named_before_anything_is_trained(tmp_path, monkeypatch, name):
    for module in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"--track {name} needs .*acclimate\[track\]"), tracked(tmp_path, name):
        pytest.fail("went on")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_and_none_changes_nothing(tmp_path):
    with (
        pytest.raises(ValueError, match="'wandb' is not possible; allowed: tensorboard, mlflow"),
        tracked(tmp_path, "tensorboard,wandb"),
    ):
        pytest.fail("went on")
    watch = ac.Watch()
    with tracked(tmp_path, None, watch) as told:
        assert told is watch


def test_a_run_that_fails_keeps_its_own_error(tmp_path, monkeypatch):
    book, many = Notebook(), ac.methods.FedAvg(work=ac.Work(batch=100_000))
    monkeypatch.setitem(track.SINKS, "tensorboard", lambda root: book)
    with pytest.raises(ValueError, match="fewer than a batch"), tracked(tmp_path / "r", "tensorboard") as watch:
        ac.run(experiment(method=many), tmp_path / "r", watch=watch)
    with pytest.raises(ZeroDivisionError), tracked(tmp_path / "nowhere", "tensorboard"):
        _ = 1 / 0
    assert book.closed and book.points == {}


def test_both_tell_everything():
    calls = []

    class Note(ac.Watch):
        def __getattribute__(self, name):
            calls.append(name)
            return super().__getattribute__(name)

    both = Both(Note())
    both.suite(1), both.slow("memo", 90.0), both.training("a", 0, 0, 1), both.round(None)
    both.testing("a", 0, 1), both.deploying("a", 0, 3), both.tested(), both.done()
    assert calls == [n for n in vars(ac.Watch) if not n.startswith("_")]


def test_what_is_not_finite_is_left_out_of_a_point():
    row = {"round": 1, "val_accuracy": 0.5, "val_std": 0.1, "val_loss": None, "up_bytes": 3, "down_bytes": 4}
    assert track._point(row, []).keys() == {
        "validation/accuracy",
        "validation/std",
        "bytes/up",
        "bytes/down",
        "faults",
    }
