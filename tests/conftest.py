"""Shared set-up: one torch thread per test process; property tests are random by seed, never by clock."""

import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

os.environ["ACCLIMATE_SECRETS"] = os.devnull  # no key of a test in the home folder; `keys_are_the_sessions` has one
os.environ.pop("COLUMNS", None)  # a window's width is none of the tests' business
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start: they share two cores

import pytest
import torch
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a script: tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two busy workers on two cores; more threads only fight each other
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def keys_are_the_sessions(tmp_path_factory):
    """Keys lie in a folder that the session removes in the end. Where it is killed, pytest does so later."""
    folder = tmp_path_factory.mktemp("keys")
    os.environ["ACCLIMATE_SECRETS"] = str(folder)
    yield
    shutil.rmtree(folder, ignore_errors=True)  # a process that is still ending may write into it


@pytest.fixture(scope="session", autouse=True)
def counts_are_balanced_once():
    """Many tests deal the embedded digits to clients in the same way: for equal tensors the scaling is done once.
    Tests of `counts.balanced` itself call the real one."""
    from acclimate.data import dealing

    real, known = dealing.balanced, {}

    def balanced(*given):
        key = tuple((x.dtype, x.shape, x.numpy().tobytes()) for x in given)
        if key not in known:
            known[key] = real(*given)
        return known[key].clone()

    dealing.balanced = balanced
    yield
    dealing.balanced = real


@pytest.fixture(autouse=True)
def no_width_is_set(monkeypatch):
    """Some libraries set COLUMNS for the whole process."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def nobody_is_trusted_after(monkeypatch):
    """To parse --trust sets this for the process: put it back in the end."""
    monkeypatch.setenv("ACCLIMATE_ALLOW", "")


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """The command in this process, in a folder of its own: all but the start of the interpreter."""

    from acclimate.cli import main as cli  # not above: most tests need no command line

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["acclimate", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(args, ended.value.code, printed.out, printed.err)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):  # a user's own file
            del sys.modules[name]


@pytest.fixture(scope="module")
def bench():
    """The modules of benchmarks/ by name."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module
    sys.path.remove(folder)


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """No data folder, and a cache of this test's own."""
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own_machine(no_data, monkeypatch, tmp_path):
    """The same, and files are named relative to the test's folder."""
    monkeypatch.chdir(tmp_path)


def pytest_collection_modifyitems(items):
    """What is known to be slow is not stuck after the fifteen minutes of the others, least of all on a busy machine."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))


def pytest_collection_finish():
    """Thousands of tests lie in memory until the end: no collection of garbage need look at them again."""
    gc.freeze()
