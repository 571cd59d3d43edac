"""The progress display: bars on a terminal, a few plain lines elsewhere, and nothing where nobody asked for it."""

import io
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from acclimate.cli.progress import display
from acclimate.core import State
from acclimate.running import progress
from acclimate.running.progress import Lines, duration
from acclimate.running.watch import Watch


@pytest.fixture
def still(monkeypatch):
    """A clock that stands: what a line says of times, and when one is due, does not depend on the machine."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: 100.0))


def console(terminal):
    return Console(file=io.StringIO(), width=200, force_terminal=terminal, color_system=None, markup=False)


def one_run(watch, label, rounds=100, tests=40, done=0):
    """What a run tells its watch."""
    watch.training(label, 0, done, rounds)
    for r in range(done, rounds):
        watch.round(State(r + 1, {}, {}, history=({"val_accuracy": 0.5},)))
    watch.testing(label, 0, tests)
    for _ in range(tests):
        watch.tested()


@pytest.mark.parametrize("runs", [0, 1, 8, 30])
def test_without_a_terminal_every_tenth_of_the_work_is_one_plain_line(runs, still):
    out = console(terminal=False)
    with display(console=out) as watch:
        if runs:
            watch.suite(runs)
        for i in range(max(runs, 1)):
            one_run(watch, f"method{i}")
            if runs:
                watch.done()
    text = out.file.getvalue()
    assert "\x1b" not in text and "\r" not in text
    lines = text.splitlines()
    shares = [int(re.match(r" *(\d+) %: ", line)[1]) for line in lines]
    assert shares == sorted(set(shares)) and shares[0] == 0 and shares[-1] == 100
    assert len(lines) <= 11 and len({s // 10 for s in shares}) == len(shares)
    assert lines[0] == "  0 %: train method0 (seed 0), 0 of 100 rounds"
    assert all(line.endswith(" left") for line in lines[1:-1]) and not lines[-1].endswith(" left")


def test_a_line_says_what_is_at_hand_and_how_it_goes(still):
    out = console(terminal=False)
    with display(console=out) as watch:
        one_run(watch, "fedavg", rounds=10, tests=10)
    lines = out.file.getvalue().splitlines()
    assert re.fullmatch(r" 20 %: train fedavg \(seed 0\), 4 of 10 rounds, validation 50.0%; about 0 s left", lines[2])
    assert lines[5].startswith(" 50 %: train fedavg (seed 0), 10 of 10 rounds")
    assert lines[-1] == "100 %: test fedavg (seed 0), 10 of 10 tests"


def test_a_single_round_test_or_step_is_one(still):
    out = console(terminal=False)
    with display(console=out) as watch:
        one_run(watch, "fedavg", rounds=1, tests=1)
        watch.deploying("fedavg", 0, 1)
    lines = [line.partition(";")[0] for line in out.file.getvalue().splitlines()]
    assert lines[0] == "  0 %: train fedavg (seed 0), 0 of 1 round"
    assert lines[2] == "100 %: test fedavg (seed 0), 1 of 1 test"


def test_a_run_that_goes_on_starts_where_it_was(still):
    out = console(terminal=False)
    with display(console=out) as watch:
        one_run(watch, "fedavg", done=60)
    assert out.file.getvalue().startswith(" 30 %: train fedavg (seed 0), 60 of 100 rounds\n")


def test_a_search_trains_and_does_not_test(still):
    out = console(terminal=False)
    with display(console=out) as watch:
        watch.suite(2)
        for seed in (0, 1):
            watch.training("fedprox", seed, 0, 2)
            watch.round(State(1, {}, {}))
            watch.round(State(2, {}, {}))
            watch.done()
    lines = [line.partition(";")[0] for line in out.file.getvalue().splitlines()]
    assert lines[-3:] == [
        " 62 %: train fedprox (seed 1), 1 of 2 rounds",
        " 75 %: train fedprox (seed 1), 2 of 2 rounds",
        "100 %: 2 of 2 done",
    ]


def test_a_terminal_has_a_bar_for_all_runs_and_one_for_the_run_at_hand():
    out = console(terminal=True)
    with display(console=out) as watch:
        watch.suite(2)
        watch.training("fedavg", 3, 1, 4)
        watch.round(State(2, {}, {}, history=({"val_accuracy": 0.512},)))
    shown = out.file.getvalue()
    assert re.search(r"all .* 0/2 ", shown) and re.search(
        r"train fedavg \(seed 3\) .* 2/4 .* left, validation 51.2%", shown
    )


def test_no_accuracy_is_shown_where_nobody_holds_validation_data():
    out = console(terminal=True)
    with display(console=out) as watch:
        watch.training("fedavg", 3, 1, 4)
        watch.round(State(2, {}, {}, history=({"val_accuracy": None},)))
    assert re.search(r"train fedavg .* 2/4 ", out.file.getvalue()) and "validation" not in out.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_square_brackets_stay(terminal):
    out = console(terminal)
    with display(console=out) as watch:
        watch.suite(2)
        watch.training("fedavg(filters=[clip])", 0, 0, 2)
    assert "fedavg(filters=[clip]) (seed 0)" in out.file.getvalue()


def test_quiet_shows_nothing_and_an_error_passes_through():
    out = console(terminal=True)
    with display(quiet=True, console=out) as watch:
        assert type(watch) is Watch
    assert out.file.getvalue() == ""
    with pytest.raises(ZeroDivisionError), display(console=out):
        _ = 1 / 0


def test_times_are_for_people():
    assert [duration(s) for s in (0.2, 89, 90, 3600)] == ["about 0 s", "about 89 s", "about 2 min", "about 60 min"]


def test_a_line_is_written_in_one_piece(still, monkeypatch):
    """So that the thread that says that a step takes long does not write into the middle of it."""
    out, pieces = io.StringIO(), []
    monkeypatch.setattr(out, "write", pieces.append)
    one_run(Lines(out), "fedavg", rounds=2, tests=2)
    assert len(pieces) == 5 and all(re.fullmatch(r" *\d+ %: t.*\n", piece) for piece in pieces)


def test_a_long_step_is_not_silent(monkeypatch):
    """Each step goes on until two lines have come while it waited, however slow the machine is."""
    monkeypatch.setattr(Lines, "EVERY", 0.05)
    out = console(terminal=False)

    def wait_for(line, count):
        while len(re.findall(line, out.file.getvalue())) < count:
            time.sleep(0.01)

    time_of = r"about \d+ (s|min)"
    with display(console=out) as watch:
        watch.training("fedavg", 0, 0, 2)
        wait_for(rf"(?m)^  0 %: train fedavg \(seed 0\), 0 of 2 rounds; {time_of} so far\n", 2)
        watch.round(State(1, {}, {}))
        wait_for(rf"(?m)^ 25 %: train fedavg \(seed 0\), 1 of 2 rounds; {time_of} left\n", 3)
