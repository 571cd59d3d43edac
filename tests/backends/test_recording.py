"""What is recorded and replayed gives the numbers of the plain run to the bit; tapes stand for CUDA graphs."""

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from acclimate.adapters import NoAdapt
from acclimate.backends import Vmap
from acclimate.backends.vmap import capture, graphs, rooms, shelf, warming
from acclimate.backends.vmap.buckets import Buckets
from acclimate.backends.vmap.capture import Captured, Job, Recorder, tf32
from acclimate.core import Protocol, Work, Worker, fit
from acclimate.core.loops import Loop
from acclimate.core.nn import proven, rehearsal
from acclimate.experiment import catalogue
from acclimate.methods import SCAFFOLD, FedAvg
from partners import models, partner, short
from support import equal, gap, quick_or_slow, shards, small, task
from taping import Tape, taped
from test_contract import METHODS

CPU = torch.device("cpu")
SIZES = (12, 9, 16)
ONCE = Work(epochs=1, batch=8)
"""A tape is slow: few steps, but more than one."""


@pytest.fixture(autouse=True)
def empty_shelf():
    """What another test recorded is not found here."""
    shelf.forget()


def trained(method, data=None, rounds=2, chunk=None):
    worker = Worker(task(), method)
    engine = Vmap(chunk=chunk).open(worker, shards() if data is None else data, CPU)
    state = fit.start(worker, engine, 6)
    plan, val = fit.RoundPlan(rounds, 6, 4), shards((5, 9, 6, 0, 8, 7), seed=1)
    for state in fit.rounds(worker, engine, plan, val, state):
        pass
    return worker, engine, state


@pytest.mark.parametrize("name", quick_or_slow(METHODS, ("fedavg", "scaffold", "fedthe")))
def test_a_recorded_round_is_the_plain_one_to_the_bit(name):
    _, _, plain = trained(small(METHODS[name], ONCE))
    with taped():
        _, engine, replayed = trained(small(METHODS[name], ONCE))
    assert not engine.recorder.refused and engine.recorder.recorded
    assert equal(replayed.server, plain.server) and equal(replayed.mine, plain.mine)
    assert replayed.history == plain.history


def test_a_step_is_recorded_once_however_many_there_are():
    made = []
    for epochs in (3, 6):
        with taped() as tape:
            _, engine, _ = trained(small(FedAvg(), Work(epochs=epochs, batch=8)), shards((16,) * 6), rounds=1)
            made.append((len(engine.recorder.recorded), tape.made))
            assert tape.replays > 2 * epochs
    assert made[0] == made[1]


def served(name):
    """What a small federation gets from an adapter."""
    worker, personal = partner(name)
    engine = Vmap().open(worker, shards(SIZES), CPU)
    live = models(worker, engine, personal)
    assert short(name).refusal(worker.task, engine.model_of(live, 0)) is None
    return engine.serve(live, shards((3, 6, 5), seed=2), short(name), Protocol(batch=2))


def eager(name):
    """Why an adapter is not recorded; None where it is, with the answers of the plain run to the bit."""
    plain = served(name)
    shelf.forget()  # what an adapter before this one recorded
    with taped() as tape:
        replayed = served(name)
    assert equal(plain, replayed), name
    refused = [why for r in tape.recorders for why in r.refused.values()]
    kinds = {key[0][0] for r in tape.recorders for key in r.recorded}
    return refused[0] if refused else None if kinds & {"serve", "train"} else "nothing was recorded"


SOON = ("tent", "bbse", "mbsl", "together")
"""Adapters that stand for all in the quick set: a stream, a solution, a whole set, an exchange."""


@pytest.mark.parametrize(
    "names", [SOON, pytest.param([n for n in catalogue.ADAPTERS if n not in SOON], marks=pytest.mark.slow)]
)
def test_no_adapter_is_eager(names):
    reasons = {name: eager(name) for name in names}
    assert {name: why for name, why in reasons.items() if why is not None} == {}


def test_an_adapter_that_asks_the_device_is_named_and_runs_as_it_is(caplog):
    """That the list above is empty means something."""

    @dataclass(frozen=True)
    class Asking(NoAdapt):
        def step(self, task, predict, model, state, x, key):
            return predict(model, x).logits * torch.tensor(1.0), state

    with taped() as tape:
        engine = Vmap().open(Worker(task(), FedAvg()), shards(SIZES), CPU)
        live = models(engine.worker, engine, "none")
        found = [engine.serve(live, shards((3, 6, 5), seed=2), Asking(), Protocol(batch=2)) for _ in range(2)]
        plain = engine.serve(live, shards((3, 6, 5), seed=2), NoAdapt(), Protocol(batch=2))
        assert {key[0][0] for key in engine.recorder.recorded} == {"deploy", "serve"} and tape.replays
    assert list(engine.recorder.refused.values()) == ["lift_fresh in a recording"] * 2  # of even and of padded groups
    assert len([r for r in caplog.records if "not captured" in r.message]) == 1
    assert equal(found[0], found[1]) and gap(found[0], plain) < 1e-6


def test_another_arithmetic_is_recorded_by_itself():
    """A recording keeps the kernels that were chosen for it, whatever torch is set to later."""
    with taped():
        worker = Worker(task(), small(FedAvg(), ONCE))
        engine = Vmap().open(worker, shards(), CPU)
        down = worker.method.download(worker.task, fit.start(worker, engine, 6).server)
        for allowed, made in ((True, 1), (False, 2), (True, 2)):
            with tf32(allowed):
                engine.train(down, torch.arange(4), 0)
            assert len({key[-1] for key in engine.recorder.recorded}) == made


def test_clients_of_other_sizes_share_recordings(monkeypatch):
    """Cohorts that are drawn have groups of many sizes: their recordings are those of a few."""
    data = shards((33, 40, 36, 30, 31, 37))
    monkeypatch.setattr(Buckets, "__init__", _as_on_a_gpu(Buckets.__init__))
    _, _, plain = trained(small(SCAFFOLD(), ONCE), data, rounds=3)
    seen = []
    monkeypatch.setattr(Loop, "times", _noting(Loop.times, seen))
    with taped():
        _, engine, replayed = trained(small(SCAFFOLD(), ONCE), data, rounds=3)
    assert equal(replayed.server, plain.server) and equal(replayed.mine, plain.mine)
    rooms = {room for room in seen if room is not None}
    assert {room.size for room in rooms} == {32, 40} and len({room.most for room in rooms}) > 2
    trained_in = [key for key in engine.recorder.recorded if key[0][0] == "train"]
    assert len(trained_in) < len(rooms) * 4  # one for each number of clients, however large they are


@pytest.mark.parametrize("name", ["icon", pytest.param("mbsl", marks=pytest.mark.slow)])
def test_sets_of_other_sizes_share_recordings(name, monkeypatch):
    """What a set does not fill of its room is left out, and leaves no trace in its numbers."""
    worker, personal = partner(name)
    sets = [shards(sizes, seed=2) for sizes in ((11, 16), (6, 2))]
    live = models(worker, Vmap().open(worker, shards(SIZES), CPU), personal)
    empty, seen = torch.Tensor.new_empty, []
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *given, **more: _spoilt(empty(*given, **more)))

    def served_in_turn():
        engine = Vmap().open(worker, shards(SIZES), CPU)
        return [engine.serve(live, data, short(name), Protocol(batch=2)) for data in sets], engine

    plain, _ = served_in_turn()
    monkeypatch.setattr(Buckets, "__init__", _as_on_a_gpu(Buckets.__init__))
    unrecorded, _ = served_in_turn()
    monkeypatch.setattr(Loop, "times", _noting(Loop.times, seen))
    with taped():
        replayed, engine = served_in_turn()
    assert all(equal(a, b) for a, b in zip(unrecorded, replayed, strict=True))
    assert all(gap(a, b) < 1e-5 for a, b in zip(plain, replayed, strict=True))
    assert {(room.size, room.most) for room in seen if room is not None} >= {(16, n) for n in (11, 16, 6)}
    assert len([key for key in engine.recorder.recorded if key[0][0] == "serve"]) == 2  # of four clients


def _spoilt(x):
    return x.fill_(float("nan")) if x.is_floating_point() else x


def test_a_room_is_a_power_of_four_unless_that_takes_much_memory(monkeypatch):
    assert [rooms.room(n) for n in (1, 2, 4, 5, 16, 17, 1670, 3929, 4096, 4097)] == [
        1, 4, 4, 16, 16, 64, 4096, 4096, 4096, 16384,
    ]  # fmt: skip
    held = shards((11, 16, 13))
    wide = rooms.widened(held)
    assert wide.rows.shape == (3, 16) and len(wide.x) == len(wide.y) == 64
    assert torch.equal(wide.x[: len(held.x)], held.x) and torch.equal(wide.y[: len(held.y)], held.y)
    assert torch.equal(wide.rows[:, : held.rows.shape[1]], held.rows) and torch.equal(wide.n, held.n)
    each = held.x[0].numel() * held.x.element_size()
    monkeypatch.setattr(rooms, "MOST", 16 * 3 * each)
    assert rooms.shared(11, 3, held) == 16 and rooms.shared(11, 4, held) == 11
    assert len(rooms.widened(held).x) == len(held.x)


def _noting(times, seen):
    return lambda self, room: (seen.append(room), times(self, room))[1]


def _as_on_a_gpu(begin):
    def opened(self, waste, *others):
        begin(self, 0.1, *others)
        self.few_shapes = True

    return opened


def test_garbage_is_collected_once_for_recordings_that_are_made_together(monkeypatch):
    """A collection takes as long as many steps of a client, and one of them leaves nothing for the next."""
    collected = []
    monkeypatch.setattr(graphs.gc, "collect", lambda: collected.append(len(Tape.recorders[0].recorded)))
    jobs = [Job(("add", n), lambda x: x + 1, (torch.zeros(n),)) for n in (1, 2, 3)]
    with taped():
        recorder = Recorder(True, False)
        for x, done in zip((1, 2, 3), recorder.run_all(jobs), strict=True):
            assert torch.equal(done, torch.ones(x))
        assert collected == [0]
        recorder.run_all(jobs)
        assert collected == [0]
        recorder.run(("double",), lambda x: 2 * x, (torch.ones(2),))
        assert collected == [0, 3]


@pytest.fixture
def first(monkeypatch):
    """A process that has a GPU and has rehearsed nothing, and what its rehearsals were given: how many works each."""
    stream, given = SimpleNamespace(wait_stream=lambda other: None), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda given: nullcontext())
    monkeypatch.setattr(warming, "_known", set())
    monkeypatch.setattr(warming, "_compiled", {})

    def rehearse(*works):
        given.append([work() for work in works])
        return rehearse.new

    rehearse.new = 1
    monkeypatch.setattr(rehearsal, "rehearse", rehearse)
    return SimpleNamespace(given=given, rehearse=rehearse)


def test_before_the_first_recording_of_a_process_its_kernels_are_compiled(first):
    """The work is rehearsed, and then run; what follows is run alone."""
    recorded, ran = Captured.__new__(Captured), []
    recorded._inputs = (torch.ones(2),)
    for times in (2, 3):
        recorded._warm(lambda x: ran.append(float(x.sum())))
        assert ran == [2.0] * times and len(first.given) == 1


def test_work_that_meets_a_kernel_nobody_compiled_is_rehearsed_and_begins_again(first, monkeypatch):
    """A smaller work before it found all of its kernels in the cache, so nothing else was rehearsed."""
    triton = SimpleNamespace(knobs=SimpleNamespace(compilation=SimpleNamespace(listener=None)))
    triton.knobs.runtime, triton.AsyncCompileMode = SimpleNamespace(jit_cache_hook=None), object
    monkeypatch.setattr(rehearsal, "triton", triton)
    in_cache, steps = {"small"}, []

    def launch(kernel):
        if triton.knobs.compilation.listener is not None:
            triton.knobs.compilation.listener(src=kernel, cache_hit=kernel in in_cache)
        in_cache.add(kernel)
        steps.append(kernel)

    def work():
        launch("small")
        try:
            launch("large")
        except Exception:
            steps.append("taken for a failure")
        launch("last")
        return "rehearsed"

    first.rehearse.new = 0
    warming.rehearse([("deploy", lambda: launch("small"))], "engine")
    warming.rehearse([("serve", work)], "engine")
    assert first.given == [[None]]
    steps.clear()
    in_cache.add("last")  # as the rehearsal, which is a stand-in here, would leave it
    warming.run(work)
    assert first.given == [[None], ["rehearsed"]]  # of the work itself
    assert steps == ["small"] + 2 * ["small", "large", "last"]  # it stopped; the rehearsal; the work
    warming.run(work)
    assert len(first.given) == 2 and triton.knobs.compilation.listener is None


def test_a_recording_that_meets_a_kernel_nobody_compiled_is_made_after_a_run(monkeypatch):
    """Else its kernels would be compiled one after the other, while it waits."""
    triton = SimpleNamespace(knobs=SimpleNamespace(compilation=SimpleNamespace(listener=None)))
    triton.knobs.runtime, triton.AsyncCompileMode = SimpleNamespace(jit_cache_hook=None), object
    monkeypatch.setattr(rehearsal, "triton", triton)
    in_cache, steps = set(), []

    def work(x):
        for kernel in ("first", "second"):
            if triton.knobs.compilation.listener is not None:
                triton.knobs.compilation.listener(src=kernel, cache_hit=kernel in in_cache)
            in_cache.add(kernel)
            steps.append((kernel, Tape.open is not None))
        return 2 * x

    with taped():
        recorder = Recorder(True, False)
        monkeypatch.setattr(
            Captured, "_warm", lambda self, f: (in_cache.update(("first", "second")), steps.append("run"))
        )
        assert torch.equal(recorder.run(("work",), work, (torch.ones(2),)), torch.full((2,), 2.0))
    assert steps == ["run", ("first", True), ("second", True)]
    assert len(recorder.recorded) == 1 and not recorder.refused


def test_where_memory_runs_out_while_a_graph_is_recorded_it_is_recorded_after_a_run(monkeypatch):
    """What was measured in the recording holds memory that a run would get back; a run that lacks memory says so."""
    short = [torch.cuda.OutOfMemoryError("once")]

    def work(x):
        if short:
            raise short.pop()
        return 2 * x

    with taped():
        recorder = Recorder(True, False)
        assert torch.equal(recorder.run(("work",), work, (torch.ones(2),)), torch.full((2,), 2.0))
        assert len(recorder.recorded) == 1 and not recorder.refused
        short.extend(torch.cuda.OutOfMemoryError("again and again") for _ in range(2))
        with pytest.raises(torch.cuda.OutOfMemoryError):
            recorder.run(("more",), work, (torch.ones(3),))
    assert not recorder.refused


def test_rehearsals_are_of_new_kinds_of_work_as_long_as_the_first_had_to_compile(first):
    warming.rehearse([("a", lambda: 1), ("b", lambda: 2), ("b", lambda: 3)])
    warming.rehearse([("b", lambda: 4)])
    first.rehearse.new = 0
    warming.rehearse([("b", lambda: 5), ("c", lambda: 6)])  # all of it was in the cache, which the first was not
    warming.rehearse([("d", lambda: 7)])
    assert first.given == [[1, 2, 3], [6], [7]]


def test_where_the_first_rehearsal_finds_all_in_the_cache_no_other_follows(first):
    first.rehearse.new = 0
    warming.rehearse([("a", lambda: 1)])
    warming.rehearse([("b", lambda: 2)])
    assert first.given == [[1]]


def test_what_one_engine_finds_in_the_cache_says_nothing_of_another_or_of_another_arithmetic(first):
    first.rehearse.new = 0
    warming.rehearse([("a", lambda: 1)], "engine")
    warming.rehearse([("a", lambda: 2), ("b", lambda: 3)], "engine")  # all of the first was in the cache
    warming.rehearse([("a", lambda: 4)], "other")
    first.rehearse.new = None  # no kernels at all, as in double precision
    warming.rehearse([("a", lambda: 5)], "third")
    first.rehearse.new = 7
    warming.rehearse([("b", lambda: 6)], "third")
    warming.rehearse([("c", lambda: 7)], "third")
    assert first.given == [[1], [4], [5], [6], [7]]


def test_recorders_rehearse_each_work_once_in_each_arithmetic(first, monkeypatch):
    flags = [(False,)]
    monkeypatch.setattr(capture, "arithmetic", lambda: flags[-1])
    one, other = Recorder(True, False), Recorder(True, False)
    job = capture.Job(("train",), lambda x: x, (5,))
    for recorder in (one, one, other):
        recorder._rehearse(job)
    flags.append((True,))
    one._rehearse(job)
    assert first.given == [[5], [5], [5]]


def test_what_is_tried_is_rehearsed_with_the_first_work_and_tried_before_it_is_recorded(first, monkeypatch):
    there, order = torch.device("cuda", 0), []
    monkeypatch.setattr(proven, "_found", {})
    monkeypatch.setattr(proven, "_expected", {there})
    monkeypatch.setattr(proven, "_trials", [lambda device: order.append(str(device)) or True])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(proven.rehearsal, "rehearse", lambda *works: order.append([work() for work in works]) or 1)
    warming.rehearse([("a", lambda: "work")])
    assert order == [
        "cuda:0",
        ["work", True],
        "cuda:0",
        [True],
        "cuda:0",
    ]  # with the work; where on rehearses; in earnest
    assert proven._found == {there: True}
    warming.rehearse([("a", lambda: "work")])
    assert len(order) == 5
    monkeypatch.setattr(proven, "_expected", {torch.device("cuda", 1)})
    monkeypatch.setattr(warming, "_compiled", {None: 0})  # nothing is rehearsed any more
    warming.rehearse([("b", lambda: "work")])
    assert proven._found == {there: True, torch.device("cuda", 1): True}


def test_an_engine_on_a_gpu_prepares_and_one_on_a_cpu_does_not(monkeypatch):
    told = []
    monkeypatch.setattr(proven, "expect", lambda device: told.append(device))
    monkeypatch.setattr(rehearsal, "prepare", lambda: told.append("prepared"))
    Vmap().open(Worker(task(), FedAvg()), shards(SIZES), CPU)
    assert told == [CPU]
    warming.expect(torch.device("cuda"))
    assert told == [CPU, torch.device("cuda"), "prepared"]


def test_jobs_that_are_recorded_together_are_rehearsed_together_once_for_every_form(first, monkeypatch):
    class Direct:
        def __init__(self, f, inputs, slot, tidy):
            self.f = f

        def launches(self, inputs, room):
            self.found = self.f(*inputs)
            return iter(())

        def results(self):
            return self.found

    monkeypatch.setattr(capture, "Captured", Direct)
    monkeypatch.setattr(capture.Slot, "renew", lambda self: vars(self).update(stream=None, aside=None, pool=None))
    for recorder in (Recorder(True, False), Recorder(True, False)):
        jobs = [Job(("sum",), lambda x: x.sum(), (torch.ones(n),)) for n in (2, 3, 2)]
        assert [float(found) for found in recorder.run_all(jobs)] == [2.0, 3.0, 2.0]
        recorder.run_all([Job(("sum",), lambda x: x.sum(), (torch.ones(n),)) for n in (4, 5)])
    assert [sorted(map(float, each)) for each in first.given] == [[2.0, 3.0]] * 2  # another engine has other kernels
