"""Following a run that another process conducts: every way it can end."""

import json
import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, experiment

import acclimate as ac
from acclimate import store
from acclimate.backends import Serial
from acclimate.fleet import launch, local_processes, loopback, server_app
from acclimate.running import run as api
from acclimate.running.progress import Progress
from acclimate.running.watch import Watch

ME = {"event": "started", "pid": os.getpid(), "started": local_processes.started(os.getpid())}
GONE = {"event": "started", "pid": os.getpid(), "started": 1}


class Seen(Watch):
    def __init__(self):
        self.rounds, self.rest = [], []

    def training(self, label, seed, done, rounds):
        self.rest.append((label, rounds))

    def round(self, state):
        self.rounds.append((state.round, [r["val_accuracy"] for r in state.history]))

    def tested(self):
        self.rest.append("tested")


@pytest.fixture
def fleet(tmp_path):
    return loopback.Fleet(tmp_path, 1, 1)


def told(folder, *events):
    folder.mkdir(exist_ok=True)
    (folder / server_app.PROGRESS).write_text("".join(json.dumps(e) + "\n" for e in events))
    return folder / server_app.PROGRESS


def pass_on(path, fleet, watch):
    for event in launch.follow(path, fleet):
        launch._pass_on(event, watch, path.parent)


def test_progress_is_that_of_any_run(tmp_path, fleet):
    row = {"val_accuracy": 0.5}
    training = {"event": "training", "label": "fedavg", "seed": 0, "done": 0, "rounds": 2}
    rounds = [{"event": "round", "round": r, "row": row if r == 2 else None} for r in (1, 2)]
    watch = Seen()
    pass_on(told(tmp_path, ME, training, *rounds, {"event": "tested"}, {"event": "finished"}), fleet, watch)
    assert watch.rounds == [(1, []), (2, [0.5])] and watch.rest == [("fedavg", 2), "tested"]


def test_a_failure_brings_its_cause(tmp_path, fleet):
    with pytest.raises(store.RunError, match="quorum"):
        pass_on(told(tmp_path, ME, {"event": "failed", "error": "below the quorum"}), fleet, Seen())


def test_a_server_that_ends_without_a_word_is_noticed(tmp_path, fleet):
    with pytest.raises(store.RunError, match="acclimate resume"):
        pass_on(told(tmp_path, GONE), fleet, Seen())


def test_a_run_that_never_starts_ends_the_wait(tmp_path, fleet, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_FLEET_SECONDS", "0.2")
    with pytest.raises(store.RunError, match="did not start the run within 0 s; .* ACCLIMATE_FLEET_SECONDS=300 waits"):
        pass_on(tmp_path / "nothing.jsonl", fleet, Seen())


def test_how_long_a_start_may_take_is_90_seconds_or_what_the_environment_says(monkeypatch):
    monkeypatch.delenv("ACCLIMATE_FLEET_SECONDS", raising=False)
    assert local_processes.start_seconds() == 90.0
    monkeypatch.setenv("ACCLIMATE_FLEET_SECONDS", "300")
    assert local_processes.start_seconds() == 300.0
    for wrong in ("soon", "0", "-1", "nan", "inf"):
        monkeypatch.setenv("ACCLIMATE_FLEET_SECONDS", wrong)
        with pytest.raises(ValueError, match=f"ACCLIMATE_FLEET_SECONDS='{wrong}' must be a number of seconds above 0"):
            local_processes.start_seconds()


def test_an_interrupt_asks_the_run_to_end_its_round(tmp_path, fleet):
    """The server sees the file, checkpoints, and says so; whoever followed gets the usual exception."""
    path = told(tmp_path, ME, {"event": "round", "round": 1, "row": None})

    class Impatient(Seen):
        def round(self, state):
            with path.open("a") as f:
                f.write(json.dumps({"event": "interrupted", "round": 1}) + "\n")
            raise KeyboardInterrupt

    events = launch.follow(path, fleet)
    with pytest.raises(api.Interrupted, match="after round 1"):
        launch.watched(events, Impatient(), tmp_path)
    assert (tmp_path / server_app.STOP).exists()


@pytest.mark.parametrize("last", [{"event": "interrupted", "round": 1}, {"event": "finished"}])
def test_an_interrupt_believes_the_last_event_of_a_server_that_has_ended_since(tmp_path, fleet, last):
    """Its process is gone by the time somebody looks, and the file says how the run ended."""
    path = told(tmp_path, GONE, {"event": "round", "round": 1, "row": None}, {"event": "tested"}, last)

    class Impatient(Seen):
        def round(self, state):
            raise KeyboardInterrupt

    if last["event"] == "finished":
        launch.watched(launch.follow(path, fleet), Impatient(), tmp_path)
    else:
        with pytest.raises(api.Interrupted) as stopped:
            launch.watched(launch.follow(path, fleet), Impatient(), tmp_path)
        assert stopped.value.round == 1


def test_an_interrupt_of_a_server_that_ended_without_a_word_ends_too(tmp_path, fleet):
    (event,) = launch._stop(told(tmp_path, GONE), None)
    assert event == {"event": "interrupted", "round": None}
    with pytest.raises(api.Interrupted) as stopped:
        launch._pass_on(event, Seen(), tmp_path)
    assert str(stopped.value) == f"stopped; go on with: acclimate resume {tmp_path}"


def test_flowers_own_commands_may_take_as_long_as_a_start(tmp_path, fleet, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_FLEET_SECONDS", "0.01")
    monkeypatch.setattr(loopback.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "flwr").write_text("#!/bin/sh\nread -r forever < '" + str(tmp_path / "pipe") + "'\n")
    (tmp_path / "flwr").chmod(0o755)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(store.RunError, match="`flwr run` did not end within 0 s; .* ACCLIMATE_FLEET_SECONDS=300 waits"):
        loopback.flwr(fleet, "run")


def test_a_server_that_is_told_to_stop_writes_a_checkpoint(tmp_path):
    folder, e = tmp_path / "run", experiment()
    store.RunFolder.create(folder, e, api.device_of("cpu"))

    def stop(node, request, reply):
        if request.metadata.message_type == "train":
            (folder / server_app.STOP).touch()
        return [reply]

    config = {"run-folder": str(folder), "settings": "", "task": "train", "data": "shared"}
    server_app.conduct(FakeGrid(tmp_path, tamper=stop), config)
    last = json.loads((folder / server_app.PROGRESS).read_text().splitlines()[-1])
    assert last == {"event": "interrupted", "round": 1}
    assert store.RunFolder(folder).state.exists() and not (folder / server_app.STOP).exists()


@pytest.mark.parametrize("run", ["absent", "elsewhere"])
def test_only_a_run_of_a_fleet_is_deployed_and_no_other_is_touched(tmp_path, fleet, run):
    folder = tmp_path / run
    if run == "elsewhere":
        store.RunFolder.create(folder, replace(experiment(), backend=Serial()), torch.device("cpu"))
    before = sorted(folder.glob("*"))
    said = {"absent": "is .* a run folder", "elsewhere": "was trained with backend=serial; `fleet deploy` takes"}[run]
    with pytest.raises(store.RunError, match=said):
        launch.deploy(folder, "last", "", fleet)
    assert sorted(folder.glob("*")) == before


def test_an_adapter_that_the_run_does_not_have_is_refused_before_anything_is_started(tmp_path, fleet, monkeypatch):
    folder = tmp_path / "run"
    made = replace(experiment(), adapters=(ac.adapters.NoAdapt(), ac.adapters.T3A()))
    store.RunFolder.create(folder, made, torch.device("cpu"))
    monkeypatch.setattr(launch, "submit", lambda *args, **more: iter([{"event": "deployed", **more}]))
    with pytest.raises(ValueError, match="adapter='tentt' must be one of the run's: none, t3a"):
        launch.deploy(folder, "last", "tentt", fleet)
    assert launch.deploy(folder, "last", "t3a", fleet) == {"selection": "last", "adapter": "t3a"}


def test_whoever_deploys_sees_every_step_from_the_start_to_the_end(tmp_path, fleet, monkeypatch):
    """What the server reports of a real deployment, as a display gets it."""
    made = replace(experiment(), streams=(ac.shifts.Original(), ac.shifts.Corrupted()))
    store.RunFolder.create(folder := tmp_path / "run", made, torch.device("cpu"))
    config = {"run-folder": str(folder), "settings": "", "task": "train", "data": "shared"}
    grid, seen, steps = FakeGrid(tmp_path), [], []
    server_app.conduct(grid, config)

    class Shown(Progress):
        def show(self, starts=False):
            seen.append(f"{self.phase} {self.step}/{self.steps} {self.share:.2f}")

    def submitted(folder, task, fleet, **more):
        steps.append(len(seen))  # the display shows something before the fleet starts to work
        (folder / server_app.PROGRESS).unlink()
        server_app.conduct(grid, {**config, "task": task, **more})
        return map(json.loads, (folder / server_app.PROGRESS).read_text().splitlines())

    monkeypatch.setattr(launch, "submit", submitted)
    deployed = launch.deploy(folder, "last", "", fleet, Shown())
    assert list(deployed["accuracy"]) == ["original", "corrupted"] and steps == [1]
    assert seen == [f"deploy fedavg (seed 0) {i}/4 {i / 4:.2f}" for i in range(5)]


DEPLOY = {"task": "deploy", "selection": "last", "adapter": "none"}


def test_an_interrupted_deployment_says_that_the_fleet_goes_on_and_the_same_command_follows_it(
    tmp_path, fleet, caplog, monkeypatch
):
    store.RunFolder.create(folder := tmp_path / "run", experiment(), torch.device("cpu"))
    told(folder, ME | {"asked": DEPLOY}, {"event": "tested"})
    end = {"event": "finished"}

    class Impatient(Seen):
        def tested(self):
            super().tested()
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "busy", lambda folder: True)
    with pytest.raises(api.Interrupted) as stopped:
        launch.deploy(folder, "last", "", fleet, Impatient())
    assert str(stopped.value) == f"the fleet goes on to deploy {folder}; the same command follows it to its end"
    assert not (folder / server_app.STOP).exists()
    told(folder, ME | {"asked": DEPLOY}, {"event": "tested"}, {"event": "deployed", "clients": [0]}, end)
    assert launch.deploy(folder, "last", "none", fleet, watch := Seen()) == {"clients": [0]}
    assert watch.rest == ["tested"] and f"a deployment goes on in {folder}; following it" in caplog.text
    with pytest.raises(store.RunError, match=r"\(selection=last, adapter=none\) goes on in .*; try again when it has"):
        launch.deploy(folder, "validation", "", fleet)
    told(folder, ME | {"asked": {"task": "train"}})
    with pytest.raises(store.RunError, match=f"follow it to its end: acclimate resume {folder}"):
        launch.deploy(folder, "last", "", fleet)


@pytest.mark.parametrize(("asked", "command"), [({"task": "train"}, "resume"), (DEPLOY, "fleet deploy")])
def test_a_server_that_ends_without_a_word_leaves_what_it_was_asked_for(tmp_path, fleet, asked, command):
    with pytest.raises(store.RunError, match=f"go on with `acclimate {command} {tmp_path}`"):
        pass_on(told(tmp_path, GONE | {"asked": asked}), fleet, Seen())


def test_a_server_says_what_it_was_asked_for(tmp_path):
    store.RunFolder.create(folder := tmp_path / "run", experiment(), torch.device("cpu"))
    config = {"run-folder": str(folder), "settings": "", "data": "shared", "selection": "last", "adapter": "none"}
    for task, asked in (("train", {"task": "train"}), ("deploy", DEPLOY)):
        server_app.conduct(FakeGrid(tmp_path), {**config, "task": task})
        first, *_ = (folder / server_app.PROGRESS).read_text().splitlines()
        assert json.loads(first)["asked"] == asked
        (folder / server_app.PROGRESS).unlink()
