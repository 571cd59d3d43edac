"""Worker processes of this machine: they start together, get a job whenever they are free, and end with their parent.

A worker is a fresh interpreter with one torch thread. It imports the modules that its jobs name and never the script
that was started, so scripts need no `if __name__ == "__main__"`. One of its threads listens to the parent: when the
parent closes the connection or dies, whatever the reason, the worker ends at once, also in the middle of a job.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

import torch

from .shared_memory import Channel, Sealed, seal

SealedJob = tuple[Sealed, ...]
"""The arguments of one call of the workers' function; at least two."""

NESTED = "ACCLIMATE_WORKER"
"""An environment variable that worker processes have, so that they start no worker processes themselves."""


class WorkerDied(RuntimeError):
    """A worker process ended by itself. The message says which process, and how it ended."""

    def __init__(self, worker: int, pid: int, code: int | None) -> None:
        self.worker, self.pid, self.code = worker, pid, code
        how = f"with exit code {code}"
        if code is not None and code < 0:
            how = f"by signal {signal.Signals(-code).name} (exit code {code})"
            how += ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
        super().__init__(f"worker process {worker} (pid {pid}) ended {how} before its clients were done")


class WorkerError(RuntimeError):
    """An exception in a worker process: the cause of the exception that the parent raises, or that exception."""


class Failure(NamedTuple):
    """An exception on its way to the parent; `error` is None where it cannot be pickled."""

    error: Exception | None
    text: str
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """An exception that was just caught, in a form that can be sent."""
        trace = "".join(traceback.format_exception(error))
        text = f"{type(error).__name__}: {error}"
        try:
            travels = str(pickle.loads(pickle.dumps(error))) == str(error)
        except Exception:
            travels = False
        return cls(error if travels else None, text, trace)

    def throw(self, where: str) -> NoReturn:
        """Raise the exception here; its cause says where it was raised first, with the traceback of that place."""
        cause = WorkerError(f"in {where}:\n{self.trace}")
        raise (WorkerError(self.text) if self.error is None else self.error) from cause


class _Member(NamedTuple):
    process: subprocess.Popen[bytes]
    channel: Channel


class ProcessPool:
    """`count` worker processes that hold one function, which they receive as a `Sealed` value.

    The function has an attribute `known`: the tensors that the parent need not send (see `seal`).
    """

    def __init__(self, count: int, function: Sealed) -> None:
        members: list[_Member] = []
        self._members = members
        self.close = weakref.finalize(self, _stop, members, os.getpid())
        """End the workers now. Otherwise they end with this object, with the interpreter, or with the process."""
        try:
            for _ in range(count):
                members.append(_start())
        except BaseException:
            self.close()
            raise
        self.set_function(function)

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers."""
        return [m.process.pid for m in self._members]

    @property
    def open(self) -> bool:
        """Whether the workers are there."""
        return self.close.alive

    def set_function(self, function: Sealed) -> None:
        """Give all workers the function that jobs call. They read it, and import what it needs, at the same time."""
        try:
            for index in range(len(self._members)):
                self._send(index, (function,))
            for index in range(len(self._members)):
                self._receive(index)
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[SealedJob]) -> list[Sealed]:
        """Call the function for every job; the results have the order of the jobs. A job is read when a worker is free.

        After an exception, a death or an interrupt all workers are ended, so that none goes on with a job for nobody.
        """
        try:
            return self._run(jobs)
        except BaseException:
            self.close()
            raise

    def _run(self, jobs: Iterable[SealedJob]) -> list[Sealed]:
        results: dict[int, Sealed] = {}
        waiting = iter(enumerate(jobs))
        busy: dict[int, int] = {}

        def hand_out(index: int) -> None:
            number, job = next(waiting, (None, ()))
            if number is not None:
                self._send(index, job)
                busy[index] = number

        with selectors.DefaultSelector() as ready:
            for index, member in enumerate(self._members):
                ready.register(member.channel, selectors.EVENT_READ, index)
                hand_out(index)
            while busy:
                for event, _ in ready.select():
                    result = self._receive(event.data)
                    results[busy.pop(event.data)] = result
                    hand_out(event.data)
        return [results[number] for number in range(len(results))]

    def _send(self, index: int, job: SealedJob) -> None:
        try:
            self._members[index].channel.send(*job)
        except OSError:
            self._died(index)

    def _receive(self, index: int) -> Sealed:
        try:
            failure, result = self._members[index].channel.receive()
        except (EOFError, OSError):
            self._died(index)
        if (f := failure.open()) is not None:
            f.throw(f"worker process {index}")
        return result

    def _died(self, index: int) -> NoReturn:
        process = self._members[index].process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)  # the socket is seen closed a moment before the exit code is there
        raise WorkerDied(index, process.pid, process.returncode)


def environment() -> dict[str, str]:
    """The environment of a worker. Where torch allocates with mimalloc (on ARM), it would give memory back to the
    system between two steps of training and ask for it again; so it waits a second."""
    return {
        "MIMALLOC_PURGE_DELAY": "1000",
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        NESTED: "1",
    }


def _start() -> _Member:
    ours, theirs = socket.socketpair()
    with theirs:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work; work({theirs.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment(),
            process_group=0,  # Ctrl-C reaches the parent alone, which ends the workers
        )
    return _Member(process, Channel(ours))


def _stop(members: list[_Member], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the parent: the workers are not its own
        return
    for m in members:
        m.channel.close()
        m.process.kill()  # a worker holds nothing that would have to be saved
    for m in members:
        m.process.wait()


def work(end: int) -> None:
    """The loop of a worker: a message of one part is the function, a message of several parts is a job."""
    torch.set_num_threads(1)
    channel = Channel(socket.socket(fileno=end))
    jobs: queue.SimpleQueue[SealedJob] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, jobs), daemon=True).start()
    function: Any = None
    while True:
        job = jobs.get()
        failure, result = None, None
        try:
            if len(job) == 1:
                function = job[0].open()
            else:
                result = function(*(part.open(function.known) for part in job))
            reply = seal(failure), seal(result)
        except Exception as error:
            reply = seal(Failure.of(error)), seal(None)
        del job, result  # so that the worker holds no memory while it waits
        channel.send(*reply)


def _listen(channel: Channel, jobs: queue.SimpleQueue[SealedJob]) -> None:
    while True:
        try:
            jobs.put(channel.receive())
        except (EOFError, OSError):
            os._exit(0)
