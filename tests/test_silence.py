"""Nothing is silent for more than fifteen seconds, with or without a terminal; and a line comes before slow imports."""

import inspect
import io
import re
import signal
import subprocess
import sys
import threading

import pytest

from acclimate.cli import heartbeat
from acclimate.cli import main as cli
from acclimate.cli.fleet import fleet_app
from acclimate.cli.heartbeat import Heartbeat
from acclimate.cli.progress import display
from acclimate.core import State
from acclimate.running import progress
from acclimate.running.progress import Lines
from acclimate.store import find_runs

LIMIT = 15.0


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def silences(clock, out, tick, seconds):
    """How long nothing was written, at most, while only the clock goes on."""
    last, longest = clock.now, 0.0
    for _ in range(int(seconds)):
        clock.now += 1.0
        before = len(out.getvalue())
        tick()
        if len(out.getvalue()) > before:
            longest, last = max(longest, clock.now - last), clock.now
    return max(longest, clock.now - last)


def test_a_heartbeat_is_never_silent_for_long_unless_a_display_speaks():
    clock, out = Clock(), io.StringIO()
    heart = Heartbeat(out, "compare", clock)
    assert silences(clock, out, heart.tick, 100) <= LIMIT
    assert out.getvalue().splitlines()[1] == "acclimate: compare, about 20 s so far"
    said = out.getvalue()
    with heart.paused():
        assert silences(clock, out, heart.tick, 100) == 100 and out.getvalue() == said
    assert silences(clock, out, heart.tick, 40) <= LIMIT


def test_lines_are_not_silent_before_within_and_after_the_work(monkeypatch):
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(progress.time, "perf_counter", clock)
    lines = Lines(out)
    assert silences(clock, out, lines.tick, 60) <= LIMIT  # data are read, hundreds of experiments are checked
    assert "getting ready; about 10 s so far" in out.getvalue()
    lines.training("fedavg", 0, 0, 2)
    assert silences(clock, out, lines.tick, 60) <= LIMIT  # a round that takes a minute
    lines.round(State(2, {}, {}))
    lines.testing("fedavg", 0, 1)
    assert silences(clock, out, lines.tick, 60) <= LIMIT
    lines.tested()
    assert silences(clock, out, lines.tick, 60) <= LIMIT  # strategies choose, the report is drawn
    assert re.search(r"finishing; about \d min so far", out.getvalue())


def test_every_command_that_imports_torch_has_a_line_before_and_a_heartbeat():
    commands = {c.name or c.callback.__name__ for c in cli.app.registered_commands}
    groups = {g.name for g in cli.app.registered_groups}
    fleet = {f"fleet {c.name or c.callback.__name__}" for c in fleet_app.registered_commands}
    quick = {"fleet up", "fleet status", "fleet down", "fleet remove", "fleet forget"}  # held by test_newcomer
    silent = {"list", "show", "data", "serve"}  # what serve says are lines of JSON
    assert cli.LOADING | silent | quick == commands | groups - {"fleet"} | fleet
    assert cli._loads(["fleet", "init", "f", "--settings", "rounds=3"]) and not cli._loads(["fleet", "init", "f"])
    assert not cli._loads(["fleet", "status"]) and not cli._loads(["fleet"])
    assert cli._loads(["data", "check"]) and cli._loads(["compare", "runs"])
    assert not (cli._loads(["data", "list", "--json"]) or cli._loads(["list"]) or cli._loads([]))


@pytest.mark.parametrize("module", ["main", "tune", "reproduce"])
def test_commands_that_train_have_a_display(module):
    source = inspect.getsource(__import__(f"acclimate.cli.{module}", fromlist=["x"]))
    assert "with display(quiet" in source


def test_a_display_pauses_the_heartbeat():
    out = io.StringIO()
    with heartbeat.beating(Heartbeat(out, "run", clock := Clock())) as heart:
        with display(console=__import__("rich.console").console.Console(file=io.StringIO())):
            clock.now += 100
            heart.tick()
        assert out.getvalue() == ""
        clock.now += 11
        heart.tick()
        assert out.getvalue().startswith("acclimate: run, about 111 s")


def test_a_slow_command_says_that_it_works(monkeypatch):
    """The command goes on until its heart has beaten three times, however slow the machine is."""
    before, said, thrice = signal.getsignal(signal.SIGTERM), Heartbeat.tick, threading.Event()

    def tick(heart: Heartbeat) -> None:
        said(heart)
        if heart._out.getvalue().count("acclimate: compare, about ") >= 3:
            thrice.set()

    monkeypatch.setattr(Heartbeat, "EVERY", 0.02)
    monkeypatch.setattr(Heartbeat, "tick", tick)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(cli, "_hushed", lambda: False)
    monkeypatch.setattr("acclimate.store.find_runs", lambda path: thrice.wait() and find_runs(path))
    monkeypatch.setattr(sys, "argv", ["acclimate", "compare", "x"])
    with pytest.raises(SystemExit):
        cli.main()
    err = sys.stderr.getvalue()
    signal.signal(signal.SIGTERM, before)
    assert err.startswith("acclimate: loading torch ...\n")
    assert len(re.findall(r"^acclimate: compare, about \d+ s so far$", err, re.MULTILINE)) >= 3


@pytest.mark.parametrize("words", [["list", "adapters"], ["show", "fedavg"], ["data", "list"]])
def test_listings_import_no_torch_and_say_nothing_else(words, monkeypatch):
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)  # the first look into a data root needs torch
    code = "import sys; from acclimate.cli.main import main; sys.argv[0] = 'acclimate'\n"
    code += "try: main()\nfinally: assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout) > 200
