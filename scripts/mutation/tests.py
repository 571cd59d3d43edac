"""Which tests run which lines, and in which order they are asked about a mutant.

The tests come from a fixed list, so that a run is affordable: those of the folders below. The slow ones, and those of
real processes, networks, Ray, Flower, the command line and the recipes, are left out.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from .operators import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "acclimate"
FOLDERS = ("methods", "adapters", "ops", "personal", "filters")
"""The folders of the package that are changed."""
LEFT_OUT = ("ops/augmix_kernel.py",)
"""It runs on a GPU alone."""
TESTS = (
    "tests/adapters",
    "tests/core/test_clocks_and_keys.py",
    "tests/core/test_fit.py",
    "tests/core/test_optim.py",
    "tests/core/test_stream.py",
    "tests/filters",
    "tests/methods",
    "tests/personal",
    "tests/ops",
    "tests/backends/test_backends.py",
    "tests/backends/test_lanes.py",
    "tests/data/test_noisy.py",
    "tests/models/test_frozen.py",
    "tests/test_augment.py",
    "tests/test_compose.py",
    "tests/test_contract.py",
    "tests/test_defaults.py",
    "tests/test_fingerprint.py",
    "tests/test_papers.py",
)
QUIET = ("-q", "-p", "no:cacheprovider", "--assert=plain")
Test = dict[str, Any]
"""`id`, `seconds`, `words` of its source, and `lines`: file of the package -> the lines that it runs."""


def sources() -> dict[str, str]:
    """Path below the package -> text, of the files that are changed."""
    paths = sorted(p for folder in FOLDERS for p in (PACKAGE / folder).rglob("*.py"))
    named = {p.relative_to(PACKAGE).as_posix(): p for p in paths}
    return {name: p.read_text() for name, p in named.items() if name not in LEFT_OUT}


def test_files() -> list[str]:
    """The test files of the list, below the root of the repository."""
    found = [q for t in TESTS for q in (sorted((ROOT / t).glob("test_*.py")) if (ROOT / t).is_dir() else [ROOT / t])]
    return [p.relative_to(ROOT).as_posix() for p in found if p.exists()]


def digest(file: str) -> str:
    """A test file, the tests' own modules and the package as they are now: a map of other ones is of no use."""
    shared = [p for p in sorted((ROOT / "tests").rglob("*.py")) if not p.name.startswith("test_")]
    parts = [ROOT / file, *shared, *sorted(PACKAGE.rglob("*.py"))]
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in parts)).hexdigest()


def commit() -> str | None:
    """The commit of this tree, with `-dirty` where files differ from it; None where git cannot say."""
    line = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty"]
    try:
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


class Tracer:
    """A pytest plugin that notes, for every test that passes, how long it takes and which lines it runs.

    What a fixture of a module runs counts for each of its tests, and caches of test modules are emptied before each.
    """

    def __init__(self, part: int, parts: int) -> None:
        self.part, self.parts = part, parts
        self.files = {str(PACKAGE / name): name for name in sources()}
        self.lines: set[tuple[str, int]] = set()
        self.fixtures: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self.tests: dict[str, Test] = {}
        self.seconds = defaultdict[str, float](float)
        self.bad: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self.part :: self.parts]

    def _call(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        return self._line(frame, event, _) if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        before, self.lines = self.lines, set()
        try:
            return (yield)
        finally:
            self.fixtures.setdefault((fixturedef.baseid, fixturedef.argname), set()).update(self.lines)
            self.lines |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Function) -> Iterator[Any]:
        for value in vars(item.module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()
        self.lines = set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self._note(item)

    def _note(self, item: pytest.Function) -> None:
        lines = set(self.lines)
        for name, found in item._fixtureinfo.name2fixturedefs.items():
            for definition in found:
                lines |= self.fixtures.get((definition.baseid, name), set())
        by_file: dict[str, list[int]] = {}
        for name, number in sorted(lines):
            by_file.setdefault(self.files[name], []).append(number)
        words = sorted(set(re.findall(r"\w+", inspect.getsource(item.function))))
        self.tests[item.nodeid] = {"words": words, "lines": by_file}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self.bad.add(report.nodeid)

    def noted(self) -> list[Test]:
        """The tests that passed."""
        good = {k: v for k, v in self.tests.items() if k not in self.bad}
        return [{"id": k, "seconds": round(self.seconds[k], 3), **v} for k, v in good.items()]


def trace(file: str, part: int, parts: int, longest: float | None, note: Path) -> int:
    """Run one part of a test file and write what its tests run; one that takes `longest` seconds is ended."""
    tracer = Tracer(part, parts)
    limit = [] if longest is None else [f"--timeout={longest:g}"]
    code = pytest.main([*QUIET, *limit, f"--basetemp={note}.tmp", str(ROOT / file)], plugins=[tracer])
    note.write_text(json.dumps({"tests": tracer.noted(), "bad": sorted(tracer.bad)}))
    return int(code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR))


def chosen(mutant: Mutant, tests: list[Test], most: int, seconds: float) -> list[str]:
    """Tests that run the changed statement: quick ones first, of these the nearest, and of a test's cases a few.

    A test is near that names the file, the class or the function, in its own name or in its source.
    """
    names = set(mutant.function.split(".")) | {Path(mutant.file).stem}
    stem = Path(mutant.file).stem.lower()

    def nearness(test: Test) -> int:
        file, _, name = test["id"].partition("::")
        named = names & {*test["words"], *re.findall(r"\w+", name)}
        return 2 * bool(named) + (stem in Path(file).stem) + (stem in name.lower())

    near = {t["id"]: nearness(t) for t in tests}
    found = [t for t in tests if _runs(t, mutant, near[t["id"]])]
    found.sort(key=lambda t: (-near[t["id"]], t["seconds"]))
    turn: Counter[str] = Counter()
    order = []
    for test in found:
        function, cost = test["id"].partition("[")[0], test["seconds"]
        order.append((cost > seconds / 10, turn[function] - near[test["id"]], cost, test["id"]))
        turn[function] += 1
    out: list[str] = []
    for _, _, cost, name in sorted(order):
        if len(out) < most and (not out or cost <= seconds):
            out.append(name)
            seconds -= cost
    return out


def _runs(test: Test, mutant: Mutant, near: int) -> bool:
    lines = test["lines"].get(mutant.file, ())
    if mutant.within:
        return any(mutant.first <= n <= mutant.last for n in lines)
    return bool(lines) or near >= 2
