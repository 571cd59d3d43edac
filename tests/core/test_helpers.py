"""Helpers: what they do while this process goes on, in which order, and what happens when they fail, die or hang."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from acclimate.core.nn import forked, helpers
from acclimate.core.nn.helpers import Helpers, Serve

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nothing hung before, and however busy the machine is there are as many children as asked for. No test leaves a
    child or a file behind."""
    monkeypatch.setattr(forked, "_hung", [])
    monkeypatch.setattr(forked, "LONGEST", 3600.0)
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


def lines(place: Path) -> list[str]:
    return place.read_text().splitlines() if place.exists() else []


def noting(place: Path) -> Serve:
    """Helpers write down what they do, and which process they are; some tasks end otherwise."""

    def serve(text: str, begin: Callable[[], None]) -> bool:
        if text == "there":
            return False
        begin()
        if text == "fail":
            raise ValueError("no")
        if text == "die":
            os._exit(3)
        if text == "hang":
            time.sleep(10_000)
        if text.startswith("wait for "):
            until(lambda: os.path.exists(text.removeprefix("wait for ")))
        with place.open("a") as file:
            file.write(f"{text} {os.getpid()}\n")
        return True

    return serve


def until(true: Callable[[], bool]) -> None:
    enough = time.monotonic() + 60
    while not true():
        assert time.monotonic() < enough
        time.sleep(0.005)


def test_tasks_are_done_while_this_process_goes_on(notes: Path) -> None:
    with Helpers(lambda: noting(notes), 2) as some:
        some.give("a", 1)
        until(lambda: lines(notes) != [])
        some.give("b", 1)
        until(lambda: len(lines(notes)) == 2)
        assert some.finish() == 2
    assert str(os.getpid()) not in notes.read_text()


def test_of_those_that_wait_the_longest_comes_first(notes: Path, tmp_path: Path) -> None:
    with Helpers(lambda: noting(notes), 1) as some:
        some.give(f"wait for {tmp_path / 'go'}", 0)
        for text, length in (("short", 1), ("longest", 3), ("there", 4), ("longer", 2), ("also longer", 2)):
            some.give(text, length)
        until(lambda: some.go_on() or some.needed)
        (tmp_path / "go").touch()
        assert some.finish() == 5
    assert [line.rpartition(" ")[0] for line in lines(notes)][1:] == ["longest", "longer", "also longer", "short"]


def test_there_is_one_child_until_one_is_needed_and_then_as_many_as_allowed(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    with Helpers(lambda: noting(notes), 3) as some:
        for _ in range(9):
            some.give("there", 1)
            some.go_on()
        assert some.finish() == 0 and not some.needed and len(forks) == 1
        for _ in range(9):
            some.give(f"wait for {tmp_path / 'go'}", 1)
        until(lambda: some.go_on() or some.needed)
        some.go_on()
        (tmp_path / "go").touch()
        assert some.finish() == 9 and len(forks) == 3
    assert len({line.split()[-1] for line in lines(notes)}) <= 3


def test_all_that_are_needed_are_made_when_it_is_decided(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the time was in which tasks were given. Where none is needed the rest is left."""
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    with Helpers(lambda: noting(notes), 3) as some:
        for _ in range(4):
            some.give(f"wait for {tmp_path / 'go'}", 1)
        some.decide()
        (tmp_path / "go").touch()
        assert some.needed and len(forks) == 3 and some.finish() == 4
    with Helpers(lambda: noting(notes), 3) as some:
        for _ in range(4):
            some.give("there", 1)
        some.decide()
        assert not some.needed and len(forks) == 4 and some.finish() == 0


def test_a_child_that_hangs_before_anything_is_decided_is_ended(notes: Path) -> None:
    with Helpers(lambda: lambda text, begin: time.sleep(10_000) or True, 2) as some:
        some.give("a", 1)
        some.decide(0.1)
        assert some.finish() == 0
    assert forked._hung == [1] and not lines(notes)


def test_without_leave_and_in_other_threads_no_child_is_made(notes: Path) -> None:
    """A thread that comes here from a device's work may hold what a child would wait for."""
    with Helpers(lambda: None, 2) as some:
        some.give("a", 1)
        assert some.finish() == 0
    asked: list[bool] = []
    with Helpers(lambda: asked.append(True) or noting(notes), 2) as some:  # type: ignore[func-returns-value]
        thread = Thread(target=some.give, args=("a", 1))
        thread.start()
        thread.join()
        assert not asked
        some.go_on()
        assert asked == [True]
        thread = Thread(target=some.give, args=("b", 1))  # what there is it may use
        thread.start()
        thread.join()
        until(lambda: some.go_on() or len(lines(notes)) == 2)
    assert asked == [True]


def test_what_fails_is_not_counted_and_others_are_done(notes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Helpers(lambda: noting(notes), 1) as some:
        for text in ("fail", "a", "fail", "b"):
            some.give(text, 1)
        until(lambda: some.go_on() or some.needed)
        assert some.finish() == 2
    assert not forked._hung and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("most", [1, 2])
def test_children_that_die_leave_their_tasks(notes: Path, most: int) -> None:
    with Helpers(lambda: noting(notes), most) as some:
        some.give("a", 9)
        until(lambda: some.go_on() or some.needed)
        for text in ("b", "die"):
            some.give(text, 1)
        assert some.finish(30.0) == 2
    assert not forked._hung


def test_a_child_that_hangs_is_ended_and_no_other_is_made(notes: Path) -> None:
    with Helpers(lambda: noting(notes), 1) as some:
        some.give("hang", 1)
        until(lambda: some.go_on() or some.needed)
        assert some.finish(0.1) == 0
    assert forked._hung == [1] and not forked.possible()


def test_children_end_with_their_tasks_when_this_process_is_interrupted(notes: Path) -> None:
    def work() -> None:
        with Helpers(lambda: noting(notes), 2) as some:
            some.give("hang", 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not lines(notes)


def test_where_no_process_can_be_made_nothing_is_done(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []

    def refused() -> int:
        tried.append(True)
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(forked, "LONGEST", 0.5)
    monkeypatch.setattr(os, "fork", refused)
    with Helpers(lambda: noting(notes), 2) as some:
        some.give("a", 1)
        some.give("b", 1)
        assert some.finish() == 0 and tried == [True]


def test_a_process_that_takes_long_to_copy_is_copied_once(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forks, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    monkeypatch.setattr(forked, "LONGEST", sys.float_info.min)
    with Helpers(lambda: noting(notes), 3) as some:
        some.give("a", 1)
        until(lambda: some.go_on() or some.needed)
        for _ in range(5):
            some.give("b", 1)
        assert some.finish() == 6 and len(forks) == 1


def test_texts_that_do_not_fit_are_left(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "ROOM", 4)
    with Helpers(lambda: noting(notes), 1) as some:
        some.give("aü", 3)
        until(lambda: some.go_on() or some.needed)
        for text in ("bb", "c"):
            some.give(text, len(text))
        assert some.finish() == 2
    assert [line.split()[0] for line in lines(notes)] == ["aü", "c"]
