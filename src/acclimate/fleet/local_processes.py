"""Processes of this machine that outlive the one that started them, and the ports they listen on.

The system gives the number of an ended process to a new one, so a process is known by its number and its start time.
No other process is ever sent a signal.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 10.0
"""How long a process may take to end before it is killed."""
START = "ACCLIMATE_FLEET_SECONDS"
"""The environment variable that says how long a start may take."""
LONGER = f"on a busy machine try again: {START}=300 waits longer"


def start_seconds() -> float:
    """How long the SuperLink, then all nodes together, and then a run may take to start: 90 s, or what START says."""
    given = os.environ.get(START, "90")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"{START}={given!r} must be a number of seconds above 0")
    return seconds


@dataclass(frozen=True)
class Process:
    """A process that the fleet started: its number, and its start time, without which the number says nothing."""

    name: str
    pid: int
    started: int
    """The start time in clock ticks since the machine started; 0 where the system does not tell it."""

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return started(self.pid) == self.started and self.started >= 0

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, if it still is the process that was recorded."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def family(self) -> list[Process]:
        """The process and all that it started, directly or not, as far as they run; also where it has ended itself."""
        if started(self.pid) not in (-1, self.started):
            return []  # the number belongs to another process by now
        table = _table()
        found = [pid for pid, (_, session) in table.items() if self.pid in (pid, session)] if table else [self.pid]
        for member in found:
            found += [pid for pid, (parent, _) in table.items() if parent == member and pid not in found]
        return [p for p in (Process(self.name, pid, started(pid)) for pid in found) if p.alive]


def _table() -> dict[int, tuple[int, int]]:
    """Parent and session of every process; empty where the system does not tell. `start` gives each its own session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = (int(fields[1]), int(fields[3]))
    return found


def started(pid: int) -> int:
    """When a process started, in clock ticks; 0 where the system does not tell, -1 where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return -1
        try:
            os.kill(pid, 0)
        except OSError:
            return -1
        return 0
    if fields[0] != "Z":
        return int(fields[19])
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of this very process stays as a zombie until it is asked for
    return -1


def stop(processes: Sequence[Process]) -> None:
    """End processes and all that they started: first with SIGTERM, after STOP_SECONDS with SIGKILL."""

    def living() -> list[list[Process]]:
        """The families that run now: a process that is about to end may have started another."""
        return [family for p in processes if (family := p.family())]

    for family in living():
        family[0].end()  # the first ends the others; where it has ended, this is one that is left
    deadline = time.monotonic() + STOP_SECONDS
    while (left := living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in (member for family in left for member in family):
        process.end(signal.SIGKILL)


def listening(port: int) -> bool:
    """Whether something on this machine accepts connections at a port."""
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex(("127.0.0.1", port)) == 0


def check_port(port: int) -> None:
    """Raise an error where this cannot be the number of a port."""
    if not 1 <= port <= 65535:
        raise ValueError(f"port={port} must be between 1 and 65535")


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for s in held:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in held]
    finally:
        for s in held:
            s.close()
