"""Worker processes: the numbers of Serial, nothing half done after a failure, and no process left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from troubled import Sleeper, Trouble

from acclimate import backends
from acclimate.adapters import THE, BNTogether, FedCTTA, FedTSA, Guarded, Latte, Tent, Together
from acclimate.backends import Auto, Processes, Serial, Vmap
from acclimate.backends.workers import engine, process_pool, processes
from acclimate.backends.workers.engine import shares
from acclimate.backends.workers.process_pool import Failure, ProcessPool, WorkerDied
from acclimate.backends.workers.shared_memory import Unsendable, seal
from acclimate.cli import main as cli_main
from acclimate.core import NonFinite, Protocol, Shards, Task, Worker, fit, tree
from acclimate.methods import SCAFFOLD, FedAvg, FedTHE
from acclimate.models import CNN
from acclimate.personal import FineTune, NoPersonal
from support import (
    BACKENDS,
    BRIEF,
    FEW,
    MODELS,
    ONE,
    SIZES,
    SMALL,
    Poison,
    Roll,
    equal,
    fitted,
    gap,
    quick_or_slow,
    shards,
    small,
    task,
)
from test_contract import METHODS, trained

CPU = torch.device("cpu")


class Kept:
    """Hands the same two worker processes to every engine: starting them for each test would take seconds."""

    def __init__(self):
        self.pool = None

    def __call__(self, count, function):
        if self.pool is None or not self.pool.open:
            self.pool = ProcessPool(2, function)
        else:
            self.pool.set_function(function)
        return self.pool


@pytest.fixture(scope="module")
def kept():
    workers = Kept()
    yield workers
    if workers.pool is not None:
        workers.pool.close()


@pytest.fixture
def two(kept, monkeypatch):
    """`fitted(..., "two")` and `"two-vmap"` run on two worker processes."""
    monkeypatch.setattr(processes, "ProcessPool", kept)
    monkeypatch.setitem(BACKENDS, "two", Processes(workers=2))
    monkeypatch.setitem(BACKENDS, "two-vmap", Processes(workers=2, inside="vmap"))


def gone(pid: int) -> bool:
    """True when a process has ended; it waits for that, and pytest has a limit for what does not end."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.02)
    return True


# --- the same numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick_or_slow(METHODS))
def test_every_method_has_the_bits_of_serial(name, two):
    _, _, a = trained(name, "cnn-batch", rounds=2)
    _, _, b = fitted(METHODS[name], "two", rounds=2)
    assert equal(a.server, b.server)
    assert equal(a.mine, b.mine)
    assert (a.cost, a.history) == (b.cost, b.history)


@pytest.mark.parametrize(
    "adapter",
    [
        Together(every=2),
        pytest.param(Together(weights="uniform"), marks=pytest.mark.slow),
        pytest.param(Latte(neighbours=2), marks=pytest.mark.slow),
        pytest.param(FedCTTA(noise=4, temperature=0.1), marks=pytest.mark.slow),
        pytest.param(FedTSA(window=2, steps=3), marks=pytest.mark.slow),
        pytest.param(BNTogether(), marks=pytest.mark.slow),
    ],
)
def test_clients_that_exchange_while_they_adapt_have_the_bits_of_serial(adapter, two):
    def served(name):
        _, engine, state = fitted(FedAvg(work=FEW), name, rounds=1)
        models = engine.deploy(state.server, engine.mine, NoPersonal())
        return engine.serve(models, shards((40, 24, 16, 33, 17, 0), seed=2), adapter, Protocol(batch=8))

    ours = served("serial")
    assert int(ours["exchanged"].sum()) > 0
    assert equal(ours, served("two"))
    assert gap(ours, served("two-vmap")) < 1e-5


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedthe", "fedrod", "apfl"])
def test_vectorised_workers_agree_with_serial(name, two):
    _, _, a = trained(name, "cnn-batch", rounds=2)
    _, _, b = fitted(METHODS[name], "two-vmap", rounds=2)
    assert gap(a.server, b.server) < 1e-5
    assert gap(a.mine, b.mine) < 1e-5
    assert a.cost == b.cost


@pytest.mark.parametrize("name", ["two", "two-vmap"])
def test_live_models_newcomers_and_streams_are_those_of_serial(name, two):
    worker, serial, state = fitted(small(FedTHE(), FEW), "serial", rounds=1)
    other = BACKENDS[name].open(worker, shards(), CPU)
    down, personal = worker.method.download(worker.task, state.server), FineTune(work=FEW)
    test, late = shards((5, 9, 6, 0, 8, 7), seed=1), shards((4, 6, 5), seed=2)
    a, b = (e.deploy(down, state.mine, personal) for e in (serial, other))
    assert all(gap(serial.model_of(a, c), other.model_of(b, c)) < 1e-5 for c in range(len(SIZES)))
    for adapter in (Tent(), THE()):
        x, y = (e.serve(m, test, adapter, Protocol(batch=4), trace=True) for e, m in ((serial, a), (other, b)))
        assert gap(tree.drop(x, ("trace",)), tree.drop(y, ("trace",))) < 1e-4
        for c, n in enumerate(test.n.tolist()):  # what lies beyond a client's own rows means nothing
            first, second = (tree.map(lambda t, c=c, n=n: t[c, :n], z["trace"]) for z in (x, y))
            assert gap(first, second) < 1e-4
    new_a, new_b = serial.join(down, 3), other.join(down, 3)
    assert all(gap(serial.model_of(new_a, c), other.model_of(new_b, c)) < 1e-6 for c in range(3))
    x, y = (e.serve(m, late, Tent(), Protocol(batch=4)) for e, m in ((serial, new_a), (other, new_b)))
    assert gap(x, y) < 1e-4


@pytest.mark.parametrize("name", ["two", "two-vmap"])
def test_calibrated_models_are_those_of_serial(name, two):
    worker, data, held = Worker(task(), FedAvg()), shards((8, 6, 7)), shards((5, 0, 6), seed=1)
    serial, other = (BACKENDS[b].open(worker, data, CPU) for b in ("serial", name))
    state, guard = fit.start(worker, serial, 3), Guarded(Tent(), kept=8)
    down = worker.method.download(worker.task, state.server)
    a, b = (e.calibrated(e.deploy(down, state.mine, NoPersonal()), held, guard) for e in (serial, other))
    for c in range(3):
        one, same = (tree.map(torch.nan_to_num, e.model_of(m, c)) for e, m in ((serial, a), (other, b)))
        assert "reference" in one and gap(one, same) < 1e-5
    x, y = (e.serve(m, held, guard, Protocol(batch=4)) for e, m in ((serial, a), (other, b)))
    assert gap(x, y) < 1e-4


class Inline:
    """Stands for worker processes: runs the jobs here, the last first."""

    open = True

    def __init__(self, count, function):
        self.function = function.open()

    def run(self, jobs):
        jobs = list(jobs)
        done = [seal(self.function(*(p.open(self.function.known) for p in job))) for job in reversed(jobs)]
        return done[::-1]


def test_bits_depend_neither_on_the_number_of_workers_nor_on_who_is_quicker(two, monkeypatch):
    monkeypatch.setattr(engine, "GROUPS", 2)  # so that a group has several clients
    a = fitted(small(SCAFFOLD(), BRIEF), "two", rounds=2, cohort=6)[2]
    monkeypatch.setattr(processes, "ProcessPool", Inline)
    for workers in (1, 3):
        monkeypatch.setitem(BACKENDS, "two", Processes(workers=workers))
        b = fitted(small(SCAFFOLD(), BRIEF), "two", rounds=2, cohort=6)[2]
        assert equal(a.server, b.server)
        assert equal(a.mine, b.mine)


@given(st.lists(st.integers(0, 500), min_size=1, max_size=40), st.integers(1, 9))
def test_shares_cover_everyone_once_and_are_balanced(sizes, workers):
    out = shares(torch.tensor(sizes), workers)
    assert sorted(torch.cat(out).tolist()) == list(range(len(sizes)))
    assert len(out) == min(workers, len(sizes))
    loads = [sum(max(sizes[i], 1) for i in s.tolist()) for s in out]
    assert max(loads) - min(loads) <= max(*sizes, 1) if len(out) > 1 else len(out) == 1


def test_results_of_groups_are_in_their_order_and_the_largest_begins():
    begun, groups = [], [torch.tensor(g) for g in ([0], [1, 2], [3])]
    inline = types.SimpleNamespace(
        _start_workers=lambda: 2,
        _for_many_jobs=lambda call: call,
        _for_one_job=lambda part: part,
        _run_jobs=lambda jobs: [begun.append(job()) or f"of {begun[-1][1]}" for job in jobs],
    )
    sizes = torch.tensor([5, 4, 3, 6])
    found = engine.WorkersEngine._run(inline, "train", (), groups, sizes, lambda i: (i,))
    assert [given for _, *given in begun] == [[[1, 2], 1], [[3], 2], [[0], 0]]
    assert found == ["of [0]", "of [1, 2]", "of [3]"]


@pytest.mark.parametrize("name", ["two", "two-vmap"])
def test_gathered_replies_are_in_cohort_order(name, two):
    a, b = (fitted(Roll(work=ONE), n, rounds=2)[2].server for n in ("serial", name))
    assert a["roll"].tolist() == b["roll"].tolist() == sorted(b["roll"].tolist())
    assert gap(a["own"], b["own"]) < 1e-5


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two", "two-vmap"])
def test_non_finite_values_stop_the_round_by_name_and_change_nothing(name, two):
    worker = Worker(task(), Poison(work=ONE, private=("head",), poisoned=(1, 3)))
    engine = BACKENDS[name].open(worker, shards(), CPU)
    loop = fit.rounds(worker, engine, fit.RoundPlan(3, 6, 6), shards((4,) * 6, 1), fit.start(worker, engine, 6))
    state = next(loop)
    with pytest.raises(NonFinite, match=r"round 1: client\(s\) 1, 3 produced") as error:
        next(loop)
    assert error.value.clients == [1, 3]
    assert equal(engine.mine, state.mine)
    assert len(engine.pids) == 2, "the workers are still there: nothing is wrong with them"


def test_closing_leaves_no_process_and_a_later_call_starts_new_ones(two, kept):
    worker = Worker(task(), FedAvg(work=ONE))
    engine = BACKENDS["two"].open(worker, shards(), CPU)
    server = fit.start(worker, engine, 6).server
    fit.one_round(worker, engine, server, torch.arange(6), 0)
    old = engine.pids
    assert len(old) == 2
    engine.close()
    engine.close()
    assert engine.pids == []
    assert all(gone(pid) for pid in old)
    fit.one_round(worker, engine, server, torch.arange(6), 0)
    assert len(engine.pids) == 2
    assert not set(engine.pids) & set(old)


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("gossip", ValueError, r"Trouble: the message has \['gossip'\]"),
        ("exit", WorkerDied, r"worker process \d \(pid \d+\) ended with exit code 7 before its clients were done"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_told_and_ends_the_workers(kind, error, says, two, kept):
    worker = Worker(task(), Trouble(work=ONE, private=("head",), kind=kind))
    engine = BACKENDS["two"].open(worker, shards(), CPU)
    before = tree.map(torch.clone, engine.mine)
    with pytest.raises(error, match=says) as raised:
        fit.one_round(worker, engine, fit.start(worker, engine, 6).server, torch.arange(6), 0)
    if error is ValueError:
        assert "check_message" in str(raised.value.__cause__), "the worker's own traceback is the cause"
    assert equal(engine.mine, before)
    assert engine.pids == []
    assert all(gone(pid) for pid in kept.pool.pids)


class Odd(Exception):
    """An exception that pickle cannot bring back."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_exceptions_that_cannot_travel_are_told_in_words():
    failure = seal(Failure.of(Odd(1, 2))).open()
    assert failure.error is None
    assert failure.text == "Odd: 1 and 2"
    assert isinstance(seal(Failure.of(KeyError("x"))).open().error, KeyError)


def test_a_killed_worker_is_explained():
    said = str(WorkerDied(2, 99, -signal.SIGKILL))
    assert said.startswith("worker process 2 (pid 99) ended by signal SIGKILL (exit code -9), perhaps because memory")


def test_an_interrupt_ends_busy_workers_at_once(tmp_path):
    """The interrupt comes while the worker is at its job, which has no end of its own."""
    workers = ProcessPool(1, seal(Sleeper(tmp_path / "begun")))

    def interrupt():
        while not (tmp_path / "begun").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        workers.run([(seal(0), seal(0))])
    assert not workers.open
    assert all(gone(pid) for pid in workers.pids)


SCRIPT = """
    import os, signal, sys, torch
    torch.set_num_threads(1)
    from acclimate.backends import Processes
    from acclimate.core import fit
    from acclimate.core.worker import Worker
    from acclimate.methods import FedAvg
    from support import ONE, shards, task

    print("started", flush=True)
    worker = Worker(task(), FedAvg(work=ONE))
    engine = Processes(workers=1).open(worker, shards(), torch.device("cpu"))
    assert engine.pids == [], "workers start at the first call"
    fit.one_round(worker, engine, fit.start(worker, engine, 6).server, torch.arange(6), 0)
    print(*engine.pids, flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["return", "kill"])
def test_a_script_needs_no_guard_and_leaves_no_process_however_it_ends(end, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, script, end], capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == (0 if end == "return" else -signal.SIGKILL), done.stderr
    started, pids = done.stdout.splitlines()
    assert started == "started", "the script ran once, not once more per worker"
    assert all(gone(int(pid)) for pid in pids.split())


# --- values on their way -------------------------------------------------------------------------------------------


def test_sealed_values_come_back_as_they_were():
    x = torch.arange(24.0).view(4, 6)
    value = {
        "plain": x,
        "strided": x.t()[1:3],
        "again": x,
        "number": torch.tensor(3, dtype=torch.int8),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "nothing": torch.zeros(0, 5),
        "rest": ("text", 1, None, SMALL),
    }
    back = seal(value).open()
    assert back["rest"] == value["rest"]
    assert equal({k: v for k, v in value.items() if k != "rest"}, {k: v for k, v in back.items() if k != "rest"})
    assert all(v.dtype == value[k].dtype for k, v in back.items() if k != "rest")
    shape = seal(torch.empty(2, 3, dtype=torch.int8, device="meta")).open()
    assert (shape.device.type, shape.dtype, tuple(shape.shape)) == ("meta", torch.int8, (2, 3))


def test_sealed_tensors_are_one_readers_own_and_known_ones_are_not_sent():
    x, y = torch.ones(1000), torch.ones(10)
    sealed = seal({"x": x, "y": y}, known=(x,))
    assert sealed.size < 1000
    a, b = sealed.open(known=(x,)), sealed.open(known=(x,))
    assert a["x"] is x
    a["y"] += 1
    assert float(b["y"].sum()) == 10


def test_descriptors_are_given_back():
    before = len(os.listdir("/proc/self/fd"))
    kept = [seal(torch.ones(5)) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    del kept
    assert len(os.listdir("/proc/self/fd")) == before


def lambda_worker() -> Worker:
    return Worker(Task(lambda shape, n: MODELS["cnn-plain"].build(shape, n), (3, 10, 10), 5), FedAvg(work=SMALL))


def test_what_cannot_be_sent_is_refused_before_anything_starts(monkeypatch):
    with pytest.raises(
        Unsendable, match="cannot be sent to worker processes: .*lambda.*use the backend Serial or Vmap"
    ):
        Processes(workers=2).open(lambda_worker(), shards(), CPU)
    own = type("Mine", (FedAvg,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", own, raising=False)
    with pytest.raises(Unsendable, match="Mine is defined in the script or notebook itself"):
        Processes(workers=2).open(Worker(task(), own()), shards(), CPU)


@pytest.mark.parametrize(
    ("fields", "says"), [({"workers": 0}, "workers=0"), ({"inside": "ray"}, "inside='ray' must be one of 'serial'")]
)
def test_bad_settings_are_named(fields, says):
    with pytest.raises(ValueError, match=says):
        Processes(**fields)


def test_gpus_and_nesting_are_refused(monkeypatch):
    worker = Worker(task(), FedAvg())
    with pytest.raises(ValueError, match="device='cuda'; use Vmap"):
        Processes().open(worker, shards(), torch.device("cuda"))
    monkeypatch.setenv(process_pool.NESTED, "1")
    with pytest.raises(ValueError, match="use Serial or Vmap"):
        Processes().open(worker, shards(), CPU)


# --- who chooses it ------------------------------------------------------------------------------------------------


def federation(examples: int, clients: int = 2) -> Shards:
    return Shards.of(torch.zeros(1, 3, 32, 32), torch.zeros(1), [torch.zeros(examples, dtype=torch.int64)] * clients)


def test_auto_takes_processes_where_there_is_work_for_them(monkeypatch):
    worker = Worker(Task(CNN(), (3, 32, 32), 10), FedAvg())
    enough = backends.WORTH_PROCESSES // backends.work(worker, federation(1))
    few, many = federation(enough // 2), federation(enough + 1)
    monkeypatch.setattr(backends, "usable_cores", lambda: 2)
    assert Auto().choose(worker, many, CPU) == Processes()
    assert Auto().choose(worker, few, CPU) == Serial()
    assert Auto().choose(worker, federation(2 * enough + 2, clients=1), CPU) == Serial()
    assert backends.work(lambda_worker(), federation(10**5)) > backends.WORTH_PROCESSES
    assert Auto().choose(lambda_worker(), federation(10**5), CPU) == Serial()
    assert Auto().choose(replace(worker, task=task("mlp-dropout")), many, CPU) == Vmap()
    assert Auto().choose(worker, many, torch.device("cuda")) == Vmap()
    monkeypatch.setenv(process_pool.NESTED, "1")
    assert Auto().choose(worker, many, CPU) == Serial()
    monkeypatch.delenv(process_pool.NESTED)
    monkeypatch.setattr(backends, "usable_cores", lambda: 1)
    assert Auto().choose(worker, many, CPU) == Serial()


def test_usable_cores_follow_torch_and_the_container(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    monkeypatch.setattr(processes, "_quota", lambda: 4)
    assert processes.usable_cores() == 4
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert processes.usable_cores() == 1


def test_workers_keep_memory_between_steps_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert process_pool.environment()["MIMALLOC_PURGE_DELAY"] == "1000"
    assert process_pool.environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "0")
    assert process_pool.environment()["MIMALLOC_PURGE_DELAY"] == "0"


def test_the_command_line_keeps_memory_between_steps_too(monkeypatch):
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "")
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY")
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["acclimate", "--version"])
    with pytest.raises(SystemExit):
        cli_main.main()
    assert os.environ["MIMALLOC_PURGE_DELAY"] == process_pool.environment()["MIMALLOC_PURGE_DELAY"] == "1000"
