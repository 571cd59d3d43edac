"""Child processes: tasks that go well, that raise, that die, that hang; and what a child may not do."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acclimate.core.nn import forked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing hung before, and however busy the machine is there are as many children as asked for."""
    monkeypatch.setattr(forked, "_hung", [])
    monkeypatch.setattr(forked, "LONGEST", 3600.0)


@pytest.fixture(autouse=True)
def all_is_closed() -> Any:
    """No test leaves a child or a file behind."""
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)


def noting(place: Path) -> int:
    """Note which process this is; one line is written at once."""
    with place.open("a") as file:
        return file.write(f"{os.getpid()}\n")


def lines(place: Path) -> list[str]:
    return place.read_text().split() if place.exists() else []


@pytest.mark.parametrize(("tasks", "most"), [(0, 2), (1, 2), (2, 1), (9, 3), (300, 2)])
def test_every_task_runs_once_in_a_child(tmp_path: Path, tasks: int, most: int) -> None:
    places = [tmp_path / str(i) for i in range(tasks)]
    assert forked.spread([partial(noting, place) for place in places], most) == tasks
    assert all(len(lines(place)) == 1 for place in places)
    ran = {lines(place)[0] for place in places}
    assert str(os.getpid()) not in ran and len(ran) <= min(most, tasks)


def test_tasks_begin_in_their_order(tmp_path: Path) -> None:
    def add(number: int) -> None:
        with (tmp_path / "order").open("a") as file:
            file.write(f"{number}\n")

    assert forked.spread([partial(add, i) for i in range(5)], 1) == 5
    assert lines(tmp_path / "order") == list("01234")


def test_more_tasks_than_a_pipe_holds_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "MOST", 3)
    assert forked.spread([partial(noting, tmp_path / str(i)) for i in range(5)], 2) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_a_task_that_raises_is_not_done_and_others_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def loud() -> None:
        print("a child speaks", flush=True)
        os.write(1, b"and its compiler")
        os.write(2, b"and warns")
        raise ValueError("no")

    tasks = [loud, partial(noting, tmp_path / "a"), loud, partial(noting, tmp_path / "b")]
    assert forked.spread(tasks, 1) == 2 and not forked._hung
    assert lines(tmp_path / "a") and lines(tmp_path / "b") and capfd.readouterr() == ("", "")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("die", [partial(os._exit, 3), killed, sys.exit], ids=["exit", "kill", "raise"])
def test_a_child_that_dies_leaves_its_tasks_undone(tmp_path: Path, die: Any) -> None:
    assert forked.spread([partial(noting, tmp_path / "a"), die, partial(noting, tmp_path / "b")], 1) == 1
    assert lines(tmp_path / "a") and not lines(tmp_path / "b") and not forked._hung


def test_a_child_that_hangs_is_ended_and_no_other_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    children, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    hang = lambda: time.sleep(10_000)  # noqa: E731
    assert forked.spread([hang, partial(noting, tmp_path / "a")], 1, 0.1) == 0
    assert forked._hung == [2] and not forked.possible() and not lines(tmp_path / "a")
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)


def test_children_end_when_the_parent_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(forked, "_listen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        forked.spread([lambda: time.sleep(10_000)] * 2, 2)


def test_a_process_that_takes_long_to_copy_is_copied_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "LONGEST", 0.0)
    places = [tmp_path / str(i) for i in range(6)]
    assert forked.spread([partial(noting, place) for place in places], 3) == 6
    assert len({lines(place)[0] for place in places}) == 1


def test_where_no_process_can_be_made_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", refused)
    assert forked.spread([lambda: pytest.fail("ran")] * 2, 2) == 0


def test_a_child_runs_nothing_that_was_prepared_for_signals_output_or_garbage(tmp_path: Path) -> None:
    """Handlers of the parent may save a run; its buffers hold what it will write itself; its garbage may be a GPU's."""
    told: list[Any] = []
    before = {number: signal.signal(number, lambda *_: told.append(1)) for number in (signal.SIGINT, signal.SIGTERM)}

    def look() -> None:
        handlers = [signal.getsignal(number) is signal.SIG_DFL for number in before]
        (tmp_path / "seen").write_text(f"{handlers} {gc.isenabled()}")

    with (tmp_path / "buffered").open("w") as file:
        file.write("once")
        assert forked.spread([look], 1) == 1
    for number, handler in before.items():
        signal.signal(number, handler)
    assert (tmp_path / "seen").read_text() == "[True, True] False" and gc.isenabled() and not told
    assert (tmp_path / "buffered").read_text() == "once"


def test_locks_of_threads_do_not_stop_a_child_and_python_does_not_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 warns where a process with threads forks; logging's lock is free in a child."""
    held, release = threading.Event(), threading.Event()
    handler = logging.FileHandler(tmp_path / "log")
    handler.createLock()

    def hold() -> None:
        with handler.lock:  # type: ignore[union-attr]
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: warnings.warn("threads", DeprecationWarning, stacklevel=2) or fork())
    record = logging.LogRecord("a", logging.INFO, "", 0, "said", None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forked.spread([lambda: handler.handle(record)], 1, 30.0) == 1
    release.set()
    thread.join()
    handler.close()
    assert (tmp_path / "log").read_text() == "said\n"


def test_children_are_for_linux_and_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 7}, raising=False)
    assert forked.cores() == 2 and forked.possible()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {7})
    assert forked.cores() == 1 and not forked.possible()
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {4, 7})
    for platform in ("darwin", "win32"):
        monkeypatch.setattr(sys, "platform", platform)
        assert not forked.possible()
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert forked.cores() == 5
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delattr(os, "fork")
    assert not forked.possible()
