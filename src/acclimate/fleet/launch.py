"""Hand a run folder to a fleet on this machine, and follow what the ServerApp does with it."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import store
from ..backends.flower.engine import Flower
from ..core import Stacked, State
from ..experiment import Experiment, labels
from ..running import run as api
from ..running.watch import Watch
from . import admin
from .app_folder import quoted
from .deploy import steps
from .local_processes import LONGER, Process, start_seconds
from .loopback import CONNECTION, Fleet, flwr, tail
from .places import place
from .server_app import PROGRESS, STOP

log = logging.getLogger("acclimate")
POLL_SECONDS = 0.1
ENDS = ("finished", "failed", "interrupted")
"""The last event of a run is one of these."""
STOP_SECONDS = 60.0
"""How long a run that must stop may take to end its round, before its process is ended."""


class Unfollowed(api.Interrupted):
    """Ctrl-C during `fleet deploy`: nobody follows the deployment any more, and the server goes on with it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, None)
        self.args = (f"the fleet goes on to deploy {path}; the same command follows it to its end",)


def current() -> Fleet:
    """The fleet that trains the runs; an error where it is not up."""
    fleet = Fleet.load(place())
    if not fleet.process("link").alive:
        raise store.RunError(f"the fleet in {fleet.folder} is not up; see `acclimate fleet status`")
    return fleet


def finish(folder: Path, watch: Watch, fleet: Fleet | None = None) -> None:
    """Finish the run of a folder on the fleet, whatever it holds so far; progress goes to `watch`."""
    watched(submit(folder, "train", fleet or current()), watch, folder)


def watched(events: Iterator[dict[str, Any]], watch: Watch, folder: Path) -> None:
    """Pass events on; Ctrl-C, whenever it comes, ends the run at its next round, with a checkpoint."""
    server: Process | None = None
    try:
        for event in events:
            server = _server(event) or server
            _pass_on(event, watch, folder)
    except KeyboardInterrupt:
        for event in _stop(folder / PROGRESS, server):
            _pass_on(event, watch, folder)


def _server(event: dict[str, Any]) -> Process | None:
    return Process("server", event["pid"], event["started"]) if event["event"] == "started" else None


def deploy(
    folder: Path, selection: str, adapter: str, fleet: Fleet | None = None, watch: Watch | None = None
) -> dict[str, Any]:
    """Leave each node with its live model. Returns what was deployed, and every stream's accuracy by client."""
    watch, experiment = watch or Watch(), _on_flower(folder)
    known = labels.distinct(experiment.adapters)
    if adapter not in ("", *known):  # before a run is started on the fleet, which takes a minute
        raise ValueError(f"adapter='{adapter}' must be one of the run's: {', '.join(known)}")
    deployed: dict[str, Any] = {}
    fleet = fleet or current()
    watch.deploying(experiment.label, experiment.seed, steps(experiment))
    events = submit(folder, "deploy", fleet, selection=selection, adapter=adapter or known[0])
    try:
        for event in events:
            _pass_on(event, watch, folder)
            if event["event"] == "deployed":
                deployed = {k: v for k, v in event.items() if k != "event"}
    except KeyboardInterrupt:
        raise Unfollowed(folder) from None
    return deployed


def _on_flower(folder: Path) -> Experiment:
    """The experiment; an error where a folder holds no run, or one that was not trained on a fleet and has no nodes."""
    experiment = store.RunFolder(folder).experiment()
    backend = experiment.backend
    if not isinstance(backend, Flower):
        name = type(backend).__name__.lower()
        raise store.RunError(f"{folder} was trained with backend={name}; `fleet deploy` takes a run of backend=flower")
    return experiment


def submit(folder: Path, task: str, fleet: Fleet, **more: str) -> Iterator[dict[str, Any]]:
    """Start the ServerApp on a run folder and yield its events, until it has ended."""
    folder = folder.absolute()
    progress = folder / PROGRESS
    if store.busy(folder):
        _insist({"task": task, **more}, progress)
        log.warning("a %s goes on in %s; following it", {"train": "run"}.get(task, "deployment"), folder)
        return follow(progress, fleet)
    progress.unlink(missing_ok=True)
    (folder / STOP).unlink(missing_ok=True)
    config = {"task": task, "run-folder": str(folder), **more}
    config["admin"] = admin.signed(fleet.app, fleet.secrets / admin.KEY, config)
    settings = " ".join(f"{k}={quoted(v)}" for k, v in config.items())
    flwr(fleet, "run", str(fleet.app), CONNECTION, "--run-config", settings)
    return follow(progress, fleet)


def _insist(asked: dict[str, str], progress: Path) -> None:
    """Raise an error where what goes on in a folder is not what is asked for."""
    begun = _begun(progress)
    if begun == asked:
        return
    if begun["task"] == "train":
        raise store.RunError(
            f"a run goes on in {progress.parent}; follow it to its end: acclimate resume {progress.parent}"
        )
    of = ", ".join(f"{key}={value}" for key, value in begun.items() if key != "task")
    raise store.RunError(f"a deployment ({of}) goes on in {progress.parent}; try again when it has ended")


def _begun(progress: Path) -> dict[str, str]:
    """What the server was asked for, as its first event says; earlier versions did not."""
    events = map(json.loads, progress.read_text().splitlines()) if progress.exists() else ()
    return next((event["asked"] for event in events if "asked" in event), {"task": "train"})


def follow(progress: Path, fleet: Fleet) -> Iterator[dict[str, Any]]:
    """Events as they are written, until the run ends. An error where its process ends without an event that says so."""
    server: Process | None = None
    ended, deadline = False, time.monotonic() + start_seconds()
    for event in _lines(progress):
        if event is None:
            _check(server, ended, deadline, progress, fleet)
            ended = server is not None and not server.alive  # its last event may have come since: look once more
            continue
        server = _server(event) or server
        yield event
        if event["event"] in ENDS:
            return


def _check(server: Process | None, ended: bool, deadline: float, progress: Path, fleet: Fleet) -> None:
    """Raise an error where no event will come any more."""
    if server is None and time.monotonic() > deadline:
        raise store.RunError(
            f"the fleet did not start the run within {start_seconds():.0f} s; {LONGER}; the link's log ends with:\n"
            f"{tail(fleet.log('link'))}"
        )
    if ended:
        command = "resume" if _begun(progress)["task"] == "train" else "fleet deploy"
        raise store.RunError(f"the run's server process was ended; go on with `acclimate {command} {progress.parent}`")


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The events of a growing file, one per line, without end; None where there is no new one at the moment."""
    at, rest = 0, ""
    while True:
        text = ""
        if path.exists():
            with path.open() as f:
                f.seek(at)
                text = f.read()
                at = f.tell()
        *whole, rest = (rest + text).split("\n")
        yield from map(json.loads, whole)
        if not whole:
            yield None
            time.sleep(POLL_SECONDS)


def _stop(progress: Path, server: Process | None) -> Iterator[dict[str, Any]]:
    """Let the run end its round and write a checkpoint; where that takes too long, end it."""
    (progress.parent / STOP).touch()
    ended, end = False, time.monotonic() + STOP_SECONDS
    for event in _lines(progress):
        if event is not None:
            server = _server(event) or server
            if event["event"] in ENDS:
                yield event
                return
        elif ended or time.monotonic() > end:
            if server is not None and server.alive:
                os.kill(server.pid, signal.SIGTERM)
            yield {"event": "interrupted", "round": None}
            return
        else:
            ended = server is not None and not server.alive  # its last event may have come since: look once more


def _pass_on(event: dict[str, Any], watch: Watch, folder: Path) -> None:
    """One event of the ServerApp, to the watch of the process that started it."""
    act: dict[str, Callable[[], None]] = {
        "training": lambda: watch.training(event["label"], event["seed"], event["done"], event["rounds"]),
        "round": lambda: watch.round(_seen(event)),
        "testing": lambda: watch.testing(event["label"], event["seed"], event["steps"]),
        "tested": watch.tested,
        "failed": lambda: _raise(store.RunError(event["error"])),
        "interrupted": lambda: _raise(api.Interrupted(folder, event["round"])),
    }
    act.get(event["event"], lambda: None)()


def _seen(event: dict[str, Any]) -> State:
    """The part of the loop's state that a watch reads: the server keeps the rest."""
    return State(event["round"], {}, Stacked({}), history=() if event["row"] is None else (event["row"],))


def _raise(error: Exception) -> None:
    raise error
