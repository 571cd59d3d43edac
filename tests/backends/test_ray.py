"""Ray actors: the numbers of Serial, nothing lost with an actor, and nothing left behind."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if find_spec("ray") is None:  # not imported here: the backend must tell Ray where to listen before that
    pytest.skip("the extra `ray` is not installed", allow_module_level=True)

from acclimate.adapters import THE, BNTogether, FedCTTA, FedTSA, Latte, Tent, Together
from acclimate.backends.workers import ray_actors
from acclimate.backends.workers import ray_cluster as module
from acclimate.backends.workers.process_pool import Failure
from acclimate.backends.workers.ray import Ray
from acclimate.backends.workers.ray_actors import ActorsDied, StoredValue
from acclimate.backends.workers.shared_memory import Unsendable
from acclimate.core import NonFinite, Protocol, Task, Worker, fit, tree
from acclimate.experiment import catalogue
from acclimate.methods import SCAFFOLD, FedAvg, FedTHE
from acclimate.personal import FineTune
from acclimate.version import __version__
from support import BACKENDS, MODELS, PEERS, SIZES, SMALL, Roll, equal, fitted, gap, shards, small, task

# Ray leaves /dev/null open when it starts processes, and does not wait for them when it ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CPU = torch.device("cpu")
TWO = {"ray": Ray(actors=2), "ray-vmap": Ray(actors=2, inside="vmap")}


@dataclass(frozen=True)
class Trouble(FedAvg):
    """Client 3 does something that a client should not do, in round 1."""

    kind: str = ""
    once: str = ""
    """A file: the trouble is over once it is there."""

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        if int(data["id"]) == 3 and int(data["round"]) == 1 and not (self.once and Path(self.once).exists()):
            if self.kind == "kill":
                Path(self.once or os.devnull).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.kind == "raise":
                raise LookupError("no such ward: 3")
            elif self.kind == "nan":
                up = {**up, "delta": tree.scale(up["delta"], torch.nan)}
        return up, mine


METHODS = {
    "fedavg": small(FedAvg(private=("norm",))),
    "scaffold": small(SCAFFOLD()),
    "fedthe": small(FedTHE()),
    "gathers": Roll(work=SMALL),
}


@pytest.fixture(scope="module")
def cluster():
    """One cluster for the tests of this file: it takes seconds to start. Engines find it and leave it alone."""
    connection = module.Connection(cores=4)
    yield connection
    connection.end()


@pytest.fixture
def engines(cluster, monkeypatch):
    """`opened(backend, method)`: an engine that is closed after the test. `fitted` knows the backends too."""
    made = []

    def opened(backend, method):
        worker = Worker(task(), method)
        made.append(backend.open(worker, shards(), CPU))
        return worker, made[-1]

    for name, backend in TWO.items():
        monkeypatch.setitem(BACKENDS, name, backend)
    yield opened
    for engine in made:
        engine.close()


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int]) -> bool:
    """True when processes have ended; it waits for that, and pytest has a limit for what does not end."""
    while any(map(alive, pids)):
        time.sleep(0.1)
    return True


def below(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [c for child in map(int, children) for c in (child, *below(child))]


def trained(worker, engine, rounds=3):
    """The state after some rounds of all six clients."""
    schedule = fit.RoundPlan(rounds, 6, 6, eval_every=rounds)
    *_, last = fit.rounds(worker, engine, schedule, shards((4,) * 6, 1), fit.start(worker, engine, 6))
    return last


# --- the same numbers ----------------------------------------------------------------------------------------------


EXCHANGED = [(Together(), "ray", 0.0)]
EXCHANGED += [
    pytest.param(a, backend, most, marks=pytest.mark.slow)
    for a, backend, most in (
        (Together(), "ray-vmap", 1e-5),
        (Together(weights="uniform"), "ray", 0.0),
        (FedCTTA(noise=4, temperature=0.1), "ray", 0.0),
        (Latte(neighbours=2), "ray", 0.0),
        (FedTSA(window=2, steps=3), "ray", 0.0),
        (BNTogether(), "ray", 0.0),
    )
]


@pytest.mark.parametrize(("adapter", "backend", "most"), EXCHANGED)
def test_clients_that_exchange_while_they_adapt_agree_with_serial(adapter, backend, most, engines):
    def served(name):
        _, engine, state = fitted(METHODS["fedavg"], name, rounds=1)
        models = engine.deploy(state.server, engine.mine, FineTune(work=SMALL))
        found = engine.serve(models, shards(seed=2), adapter, Protocol(batch=8))
        engine.close()
        return found

    ours = served("serial")
    assert int(ours["exchanged"].sum()) > 0
    assert gap(ours, served(backend)) <= most


def agrees(name: str, backend: str, bits: bool) -> None:
    """Train on Serial and on Ray: the same server, private state, history and cost."""
    method = METHODS[name] if name in METHODS else small(catalogue.METHODS[name])
    _, _, a = fitted(method, "serial", rounds=2)
    _, engine, b = fitted(method, backend, rounds=2)
    engine.close()
    assert gap(a.server, b.server) < 1e-5
    assert gap(a.mine, b.mine) < 1e-5
    assert a.cost == b.cost
    if bits:
        assert equal(a.server, b.server)
        assert equal(a.mine, b.mine)
        assert a.history == b.history


def test_fedthe_on_two_actors_has_the_bits_of_serial(engines):
    agrees("fedthe", "ray", bits=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "gathers", *PEERS])
def test_methods_on_two_actors_have_the_bits_of_serial(name, engines):
    agrees(name, "ray", bits=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*METHODS, *PEERS])
def test_methods_on_two_vectorised_actors_agree_with_serial(name, engines):
    agrees(name, "ray-vmap", bits=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO)
def test_live_models_newcomers_and_streams_are_those_of_serial(name, engines):
    worker, serial, state = fitted(small(FedTHE()), "serial", rounds=1)
    _, other = engines(TWO[name], worker.method)
    down, personal = worker.method.download(worker.task, state.server), FineTune(work=SMALL)
    test, late = shards((5, 9, 6, 0, 8, 7), seed=1), shards((4, 6, 5), seed=2)
    a, b = (e.deploy(down, state.mine, personal) for e in (serial, other))
    assert all(gap(serial.model_of(a, c), other.model_of(b, c)) < 1e-5 for c in range(len(SIZES)))
    for adapter in (Tent(), THE()):
        x, y = (e.serve(m, test, adapter, Protocol(batch=4)) for e, m in ((serial, a), (other, b)))
        assert gap(x, y) < 1e-4
    new_a, new_b = serial.join(down, 3), other.join(down, 3)
    x, y = (e.serve(m, late, Tent(), Protocol(batch=4)) for e, m in ((serial, new_a), (other, new_b)))
    assert gap(x, y) < 1e-4


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_actor_killed_in_mid_round_is_replaced_and_the_result_is_the_same(engines, tmp_path, caplog):
    quiet = trained(*engines(BACKENDS["serial"], Trouble(work=SMALL, private=("head",))))
    once = tmp_path / "killed"
    worker, engine = engines(TWO["ray"], Trouble(work=SMALL, private=("head",), kind="kill", once=str(once)))
    with caplog.at_level(logging.WARNING, "acclimate"):
        state = trained(worker, engine)
    assert once.exists()
    assert caplog.text.count("died; client(s) 3 run again on another") == 1
    assert equal(state.server, quiet.server)
    assert equal(state.mine, quiet.mine)
    for _ in range(200):  # the round did not wait for the new actor
        if len(engine.pids) == 2:
            break
        fit.one_round(worker, engine, state.server, torch.arange(6), 0)
    assert len(engine.pids) == 2


@pytest.mark.slow
def test_actors_that_die_between_rounds_are_replaced(engines):
    worker, engine = engines(Ray(actors=2, retries=1), METHODS["fedavg"])
    server, start = fit.start(worker, engine, 6).server, engine.mine
    first, _, _ = fit.one_round(worker, engine, server, torch.arange(6), 0)
    for pid in engine.pids:
        os.kill(pid, signal.SIGKILL)
    engine.mine = start
    second, _, _ = fit.one_round(worker, engine, server, torch.arange(6), 0)
    assert equal(first, second)


@pytest.mark.slow
def test_clients_that_kill_every_actor_are_named_and_change_nothing(engines):
    worker, engine = engines(Ray(actors=2, retries=1), Trouble(work=SMALL, private=("head",), kind="kill"))
    loop = fit.rounds(worker, engine, fit.RoundPlan(3, 6, 6, 3), shards((4,) * 6, 1), fit.start(worker, engine, 6))
    state = next(loop)
    with pytest.raises(ActorsDied, match=r"2 Ray actors died, each while it had client\(s\) 3; the last"):
        next(loop)
    assert equal(engine.mine, state.mine)
    assert engine.pids == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [("raise", LookupError, "no such ward: 3"), ("nan", NonFinite, r"round 1: client\(s\) 3 produced")],
)
def test_what_a_client_raises_is_raised_and_changes_nothing(kind, error, says, engines):
    worker, engine = engines(TWO["ray"], Trouble(work=SMALL, private=("head",), kind=kind))
    loop = fit.rounds(worker, engine, fit.RoundPlan(3, 6, 6, 3), shards((4,) * 6, 1), fit.start(worker, engine, 6))
    state, pids = next(loop), engine.pids
    with pytest.raises(error, match=says) as raised:
        next(loop)
    assert equal(engine.mine, state.mine)
    if error is NonFinite:
        assert engine.pids == pids, "nothing is wrong with the actors"
    else:
        assert "in the actor with pid" in str(raised.value.__cause__)
        assert "in client" in str(raised.value.__cause__), "the actor's own traceback is the cause"
        assert gone(pids)


@pytest.mark.slow
def test_a_round_whose_replies_are_lost_with_a_machine_runs_again(engines, monkeypatch, caplog):
    from ray.exceptions import ObjectLostError

    worker, engine = engines(Ray(actors=2, retries=1), METHODS["scaffold"])
    server, start = fit.start(worker, engine, 6).server, engine.mine
    kept, losses = engine._values, iter([True, False, True, True])

    def lossy(handles):
        if next(losses):
            raise ObjectLostError("ab" * 28, None, "")
        return kept(handles)

    monkeypatch.setattr(engine, "_values", lossy)
    after, _, _ = fit.one_round(worker, engine, server, torch.arange(6), 0)
    assert "lost replies of round 0, which runs again" in caplog.text
    mine = engine.mine
    with pytest.raises(ObjectLostError):
        fit.one_round(worker, engine, after, torch.arange(6), 1)
    assert engine.mine is mine
    monkeypatch.setattr(engine, "_values", kept)
    engine.mine = start
    assert equal(fit.one_round(worker, engine, server, torch.arange(6), 0)[0], after)


@pytest.mark.slow
def test_actors_that_do_not_fit_are_refused_or_waited_for_with_patience(engines):
    _, engine = engines(Ray(cpus=99), METHODS["fedavg"])
    with pytest.raises(ValueError, match=r"no actor with cpus=99, gpus=0 fits: the cluster has CPU=\d+, GPU="):
        engine.join({}, 1)
    _, engine = engines(Ray(actors=1, cpus=99, patience=0.5), METHODS["fedavg"])
    with pytest.raises(
        ActorsDied, match=r"no Ray actor could be started within patience=0.5 seconds: one needs cpus=99"
    ):
        engine.join({}, 1)


# --- coming and going ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_closing_ends_the_actors_and_leaves_a_cluster_that_it_found(engines, cluster):
    import ray

    worker, engine = engines(TWO["ray"], METHODS["fedavg"])
    server = fit.start(worker, engine, 6).server
    fit.one_round(worker, engine, server, torch.arange(6), 0)
    pids = engine.pids
    assert len(pids) == 2
    engine.close()
    engine.close()
    assert engine.pids == []
    assert gone(pids)
    assert ray.is_initialized()
    fit.one_round(worker, engine, server, torch.arange(6), 0)
    assert not set(engine.pids) & set(pids)


ALONE = """
import os, sys, time, torch
from test_ray import METHODS, Ray, Worker, alive, below, fit, gone, shards, task

def opened(address):
    worker = Worker(task(), METHODS["fedavg"])
    engine = Ray(address=address, actors=1).open(worker, shards(), torch.device("cpu"))
    fit.one_round(worker, engine, fit.start(worker, engine, 6).server, torch.arange(6), 0)
    return engine
"""


def alone(code: str) -> None:
    """Run a script in an interpreter of its own, where no cluster has been found yet and Ray was not told anything."""
    here = Path(__file__).parent
    path = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    env = {k: v for k, v in os.environ.items() if k not in module.LOCAL}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    code = ALONE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_a_cluster_of_its_own_listens_on_loopback_and_ends_with_the_last_engine():
    alone("""
        first, second = opened(None), opened(None)
        import ray

        assert ray.get_runtime_context().gcs_address.startswith("127.")
        started = below(os.getpid())
        assert set(first.pids) | set(second.pids) <= set(started)
        first.close()
        assert ray.is_initialized() and all(map(alive, second.pids))
        second.close()
        assert not ray.is_initialized()
        assert gone(started), [p for p in started if alive(p)]
    """)


@pytest.mark.slow
def test_a_program_keeps_its_own_answer_to_sigterm():
    """Else `run backend=ray` would end without a word when it is asked to, and a forked child might not end."""
    code = """
    import signal
    from acclimate.backends.workers import ray_cluster

    def own(*_):
        pass

    for before in (own, signal.SIG_DFL):
        signal.signal(signal.SIGTERM, before)
        connection = ray_cluster.Connection(cores=1)
        during = signal.getsignal(signal.SIGTERM)
        assert (during is own) == (before is own) and callable(during), during
        connection.end()
        assert signal.getsignal(signal.SIGTERM) is before, signal.getsignal(signal.SIGTERM)
    print("kept")
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=240)
    assert ran.stdout.strip().endswith("kept"), ran.stderr


@pytest.mark.slow
def test_a_cluster_given_by_address_stays():
    alone("""
        from acclimate.backends.workers.ray_cluster import imported

        ray = imported(local=True)
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        engine = opened(cluster.address)
        pids = engine.pids
        try:
            Ray(address="192.0.2.1:6379").open(engine.worker, shards(), torch.device("cpu")).join({}, 1)
        except ValueError as error:
            assert "is connected to " + cluster.address in str(error)
        else:
            raise AssertionError("connected to two clusters")
        engine.close()
        assert not ray.is_initialized() and gone(pids)
        opened(cluster.address).close()  # it is still there
        cluster.shutdown()
    """)


# --- without a cluster ---------------------------------------------------------------------------------------------


def test_stored_values_come_back_as_they_were_and_known_tensors_are_not_sent():
    x, y = torch.ones(1000), torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    stored = StoredValue.of({"x": x, "y": y, "rest": ("text", SMALL), "none": torch.zeros(0, 2)}, known=(x,))
    assert stored.memory.nbytes < 1000
    stored.memory.setflags(write=False)  # as Ray's store has it
    for copy in (True, False):
        back = stored.open(known=(x,), copy=copy)
        assert back["x"] is x
        assert torch.equal(back["y"], y)
        assert back["rest"] == ("text", SMALL)
        assert tuple(back["none"].shape) == (0, 2)
    assert StoredValue.of({"no": "tensors"}).open() == {"no": "tensors"}


def test_an_actor_of_another_version_is_refused_before_its_own_failure_is_raised(monkeypatch):
    failure = Failure.of(LookupError("the other version cannot read this"))
    greeting = (failure, ray_actors.Greeting(1, "0.0.9"))
    fake = SimpleNamespace(get=lambda answer: greeting, exceptions=SimpleNamespace(RayActorError=OSError))
    monkeypatch.setattr(ray_actors, "imported", lambda: fake)
    actors = ray_actors.RayActors(0, "recipe", module.Reservation(1.0, 0.0), retries=0, patience=1.0)
    actors._joining = {"answer": "actor"}
    both = f"the Ray cluster has acclimate 0.0.9, but this process has {__version__}; install the same version on every"
    with pytest.raises(RuntimeError, match=both):
        actors._welcome("answer")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"actors": 0}, "actors=0"),
        ({"cpus": 0}, "cpus=0"),
        ({"gpus": 1.5}, "gpus=1.5 must be between 0"),
        ({"inside": "ray"}, "inside='ray' must be one of 'serial'"),
        ({"retries": -1}, "retries=-1"),
        ({"patience": 0}, "patience=0"),
    ],
)
def test_bad_settings_are_named(fields, says):
    with pytest.raises(ValueError, match=says):
        Ray(**fields)


def test_what_cannot_run_is_refused_before_anything_starts():
    worker = Worker(task(), FedAvg())
    with pytest.raises(ValueError, match=r"gpus=0.0, so clients would run on CPU cores, but device='cuda'"):
        Ray().open(worker, shards(), torch.device("cuda"))
    with pytest.raises(ValueError, match="not on device='mps'"):
        Ray().open(worker, shards(), torch.device("mps"))
    odd = Worker(Task(lambda shape, n: MODELS["cnn-plain"].build(shape, n), (3, 10, 10), 5), FedAvg())
    with pytest.raises(Unsendable, match="cannot be sent to worker processes: .*lambda"):
        Ray().open(odd, shards(), CPU)


def test_a_start_that_takes_long_is_said_before_it_begins(caplog):
    begun = []

    class Fake:
        def init(self, **how):
            begun.append((how["address"], [r.message for r in caplog.records]))

        def get_runtime_context(self):
            return SimpleNamespace(gcs_address="127.0.0.1:6379")

    connection = object.__new__(module.Connection)
    connection._begin(Fake(), None, 1)
    connection._begin(Fake(), "ray://there:10001", 1)
    ways = ("starting Ray on this machine", "connecting to the Ray cluster at ray://there:10001")
    here, there = (f"{how}, which may take half a minute" for how in ways)
    assert begun == [("local", [here]), ("ray://there:10001", [here, there])]


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'acclimate\[ray\]'"):
        Ray().open(Worker(task(), FedAvg()), shards(), CPU)
