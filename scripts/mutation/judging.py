"""Forks of one warm process: each one imports the package afresh, with one change, and runs tests on it.

No file is changed: an import hook hands out the changed module. A fork that outlives its time is killed.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from .operators import Mutant, mutated
from .tests import PACKAGE, QUIET, ROOT

WARM = ("methods", "adapters", "personal", "filters", "ops", "models", "backends", "running", "shifts", "data")


def warm_up() -> None:
    """Import what all forks need, once; the package's own modules are forgotten again, for a fork imports its own."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that forks are ended too
    os.chdir(ROOT)
    sys.path.insert(0, str(PACKAGE.parent))
    # torch.func loads torch._dynamo at its first call, which takes longer than most tests
    for name in ("torch", "torch.func", "torch._dynamo", "numpy", "safetensors.torch", "hypothesis.strategies"):
        importlib.import_module(name)
    for name in WARM:
        with contextlib.suppress(ImportError):  # of a package that only some tests need
            importlib.import_module(f"acclimate.{name}")
    for name in [m for m in sys.modules if m.partition(".")[0] == "acclimate"]:
        del sys.modules[name]


class Changed(SourceFileLoader):
    """Finds (as one of sys.meta_path) and loads one module, from a syntax tree in place of its file."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        path = PACKAGE / file
        parts = ("acclimate", *Path(file).with_suffix("").parts)
        super().__init__(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path))
        self.tree = tree

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, self.path, "exec", dont_inherit=True)


class First:
    """A pytest plugin that keeps the first test that fails."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


def judge(mutant: Mutant, ids: list[str], note: Path) -> int:
    """Zero where every test passes on the changed package; the first test that failed is noted."""
    source = (PACKAGE / mutant.file).read_text()
    sys.meta_path.insert(0, Changed(mutant.file, mutated(source, mutant)))
    first = First()
    code = pytest.main([*QUIET, "-x", f"--basetemp={note}.tmp", *ids], plugins=[first])
    note.write_text(json.dumps(first.failed))
    return int(code)


@dataclass(frozen=True)
class Job:
    """Something to run in a fork, which gets the path of its note; after `limit` seconds it is killed."""

    name: str
    work: Callable[[Path], int]
    limit: float


@dataclass(frozen=True)
class Done:
    name: str
    code: int | None
    """The exit status; None where it was killed for its time."""
    seconds: float
    note: Any
    log: str


def forked(jobs: Sequence[Job], workers: int, until: float) -> Iterator[Done]:
    """Run jobs in forks, so many at a time; no job is begun after the time `until` (of time.monotonic)."""
    waiting, running = list(jobs)[::-1], dict[int, tuple[Job, float, Path]]()
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        begun = 0
        try:
            while running or (waiting and time.monotonic() < until):
                while waiting and len(running) < workers and time.monotonic() < until:
                    job, note = waiting.pop(), Path(folder) / str(begun)
                    begun += 1
                    running[_fork(job, note)] = (job, time.monotonic(), note)
                yield from _finished(running)
                time.sleep(0.01)
        finally:
            for pid in running:
                _kill(pid)


def _finished(running: dict[int, tuple[Job, float, Path]]) -> Iterator[Done]:
    for pid, (job, start, note) in list(running.items()):
        seconds = time.monotonic() - start
        ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended and seconds < job.limit:
            continue
        if not ended:
            _kill(pid)
        del running[pid]
        log = Path(f"{note}.log")
        text = json.loads(note.read_text()) if note.exists() and ended else None
        yield Done(
            job.name,
            os.waitstatus_to_exitcode(status) if ended else None,
            seconds,
            text,
            log.read_text()[-4000:] if log.exists() else "",
        )
        for path in (note, log):
            path.unlink(missing_ok=True)


def _fork(job: Job, note: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log = os.open(f"{note}.log", os.O_WRONLY | os.O_CREAT)
        for stream in (1, 2):
            os.dup2(log, stream)
        code = job.work(note)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # on a busy machine it may have no group of its own yet
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
