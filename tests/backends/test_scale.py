"""Many clients: state and examples that are not in memory give the same numbers, and cost what a cohort costs."""

from __future__ import annotations

import gc
import math
import platform
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acclimate as ac
from acclimate import store
from acclimate.adapters import Tent, Together
from acclimate.backends import Serial, Vmap
from acclimate.backends.vmap import capture, state_file
from acclimate.backends.vmap.buckets import plan
from acclimate.backends.vmap.capture import tf32
from acclimate.backends.vmap.state_file import Layout, Rows
from acclimate.core import CannotExchange, HostShards, NonFinite, Protocol, Shards, Stacked, Worker, fit, tree
from acclimate.experiment.settings import expand
from acclimate.methods import SCAFFOLD, Ditto, FedAvg
from acclimate.personal import FineTune, NoPersonal
from acclimate.running import run as api
from support import SMALL, Poison, equal, gap, quick_or_slow, shards, small, task
from test_contract import METHODS, having_maps

CPU = torch.device("cpu")
PLAIN = Vmap(chunk=2)
FAR = Vmap(chunk=2, private="mapped", examples="host")
VAL = (5, 9, 6, 0, 8, 7)
EVERYONE = torch.arange(6)


def trained(method, backend, rounds=3, cohort=4, ahead=False, model="cnn-batch"):
    """The engine and the state after some rounds; `ahead` tells the engine every next cohort."""
    worker, schedule = Worker(task(model), method), fit.RoundPlan(rounds, 6, cohort)
    engine = backend.open(worker, shards(), CPU)
    state = fit.start(worker, engine, 6)
    loop = fit.rounds(worker, engine, schedule, shards(VAL, 1), state)
    for r in range(rounds):
        if ahead and r + 1 < rounds:
            engine.expect(fit.sample(worker, schedule, r + 1))
        state = next(loop)
    return worker, engine, state


# --- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick_or_slow(METHODS))
def test_every_method_gives_the_same_bits_from_files_and_host_memory(name):
    model = having_maps(name, "mlp-dropout")
    _, _, near = trained(METHODS[name], PLAIN, model=model)
    _, engine, far = trained(METHODS[name], FAR, ahead=True, model=model)
    assert isinstance(far.mine, Rows) or not tree.leaves(near.mine)
    assert isinstance(engine.shards, HostShards)
    assert equal(near.server, far.server)
    assert equal(near.mine, far.mine.take(EVERYONE))
    assert near.cost == far.cost
    for a, b in zip(near.history, far.history, strict=True):  # models are deployed in other groups: not to the bit
        assert a["val_loss"] == pytest.approx(b["val_loss"], abs=1e-4)


def test_what_was_sent_ahead_is_used_and_never_stale(monkeypatch):
    """Cohorts of 5 of 6 clients overlap: most rows that were sent ahead have changed when they are needed."""
    sent = []
    real = HostShards.fetch
    monkeypatch.setattr(HostShards, "fetch", lambda self, ids, *a: sent.append(ids.tolist()) or real(self, ids, *a))
    backend = replace(FAR, chunk=8, waste=1.0)
    _, _, ahead = trained(small(SCAFFOLD()), backend, cohort=5, ahead=True, model="mlp-dropout")
    counted, sent[:] = len(sent), []
    _, engine, late = trained(small(SCAFFOLD()), backend, cohort=5, model="mlp-dropout")
    assert equal(ahead.server, late.server)
    assert equal(ahead.mine.take(EVERYONE), late.mine.take(EVERYONE))
    assert counted == len(sent)  # nothing travelled twice
    engine.expect(torch.tensor([0, 1]))
    fit.one_round(engine.worker, engine, late.server, torch.tensor([2, 3]), 9)
    assert engine.feeder.ahead.group.who.tolist() == [0, 1]
    engine.mine = late.mine
    assert engine.feeder.ahead is None  # rows of another version are of no use


@pytest.mark.parametrize("personal", [ac.personal.NoPersonal(), FineTune(work=SMALL)], ids=lambda p: type(p).__name__)
def test_tests_are_the_same_from_files_and_host_memory(personal):
    results = []
    for backend in (PLAIN, FAR):
        worker, engine, state = trained(small(Ditto()), backend, rounds=1, model="mlp-dropout")
        models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, personal)
        served = engine.serve(models, shards((9, 12, 0, 8, 5, 8), seed=2), Tent(), Protocol(batch=4), trace=True)
        results.append({"served": served, "one": engine.model_of(models, 3)})
    assert gap(*results) < 1e-4


def test_clients_whose_states_are_in_a_file_are_told_how_to_exchange():
    worker, engine, state = trained(small(SCAFFOLD()), FAR, rounds=1)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    says = "Together needs the models in memory: set backend.private=device"
    with pytest.raises(CannotExchange, match=says):
        engine.serve(models, shards(seed=2), Together(), Protocol(batch=8))


def test_clients_that_hold_nothing_and_one_flat_array_of_rows():
    x, y = torch.arange(20.0)[:, None], torch.arange(20)
    own = [torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([7, 8, 9]), own_none := y[:0]]
    table, flat = Shards.of(x, y, own), HostShards.of(x, y, own)
    assert len(own_none) == 0
    for made in (flat, table.on_host()):
        assert (made.clients, made.longest, len(made.rows)) == (4, 3, 5)
        assert all(torch.equal(made.own(k), table.own(k)) for k in range(4))
        assert made.table(torch.tensor([2, 0]), 3).tolist() == table.table(torch.tensor([2, 0]), 3).tolist()
        fetched = made.fetch(torch.tensor([0, 2, 3]), 2)
        assert fetched["y"].tolist()[:4] == [3, 1, 7, 8] and len(fetched["x"]) == 6
    assert HostShards.of(x, y, [y[:0]]).fetch(torch.tensor([0]), 0)["x"].shape == (1, 1)


# --- versions --------------------------------------------------------------------------------------------------------


def start(client: int) -> tree.Tree:
    return {"a": torch.full((3,), -float(client)), "b": {"c": torch.tensor(client), "d": torch.tensor([True])}}


def row(value: int) -> tree.Tree:
    return {"a": torch.full((3,), float(value)), "b": {"c": torch.tensor(value), "d": torch.tensor([value % 2 == 0])}}


@given(st.lists(st.tuples(st.sets(st.integers(0, 6), min_size=1), st.booleans()), max_size=30))
@settings(deadline=None, max_examples=40)
def test_versions_are_what_a_list_of_copies_would_be(steps):
    rows, model, kept = Rows.fresh(start, 7), {c: start(c) for c in range(7)}, []
    for i, (ids, keep) in enumerate(steps):
        if keep:
            kept.append((rows, dict(model)))
        model |= {c: row(10 * i + c) for c in ids}
        rows = rows.put(torch.tensor(sorted(ids)), tree.stack([model[c] for c in sorted(ids)]))
    for version, expected in (*kept, (rows, model)):
        assert equal(version.take(torch.arange(7)), tree.stack([expected[c] for c in range(7)]))
        assert equal(version.take(4), expected[4])


def test_rows_go_by_name_and_other_names_are_refused():
    rows = Rows.fresh(lambda client: {"a": torch.zeros(1), "b": torch.zeros(1)}, 3)
    new = rows.put(torch.tensor([1]), {"b": torch.full((1, 1), 7.0), "a": torch.full((1, 1), 3.0)}).take(1)
    assert (float(new["a"]), float(new["b"])) == (3.0, 7.0)
    with pytest.raises(ValueError, match=r"must keep its names: got \['a', 'c'\], init_client gave \['a', 'b'\]"):
        rows.put(torch.tensor([1]), {"a": torch.zeros(1, 1), "c": torch.zeros(1, 1)})


def test_the_file_grows_with_living_versions_and_not_with_rounds(monkeypatch):
    monkeypatch.setattr(state_file, "FIRST_SLOTS", 8)
    rows = Rows.fresh(start, 5)
    for i in range(300):
        rows = rows.put(torch.tensor([i % 5, (i + 1) % 5]), tree.stack([row(i), row(i + 1)]))
    assert rows._slab.slots <= 32
    kept = [rows := rows.put(torch.tensor([0]), tree.stack([row(i)])) for i in range(200)]
    assert rows._slab.slots >= 200
    assert [int(v.take(0)["b"]["c"]) for v in kept] == list(range(200))
    size = rows._slab.slots
    del kept
    gc.collect()
    for i in range(1000):
        rows = rows.put(torch.tensor([1]), tree.stack([row(i)]))
    assert rows._slab.slots == size


def test_only_those_who_are_asked_for_are_computed_and_only_those_who_train_are_stored():
    asked = []

    @dataclass(frozen=True)
    class Counting(FedAvg):
        def init_client(self, task, client, key):
            asked.append(int(client))
            return super().init_client(task, client, key)

    many = 200_000
    x, y = torch.zeros(4, 3, 10, 10, dtype=torch.uint8), torch.tensor([0, 1, 2, 3])
    data = HostShards(x, y, torch.arange(4).repeat(many // 2), torch.full((many,), 2))
    worker = Worker(task("mlp-dropout"), Counting(work=replace(SMALL, batch=2), private=("head",)))
    engine = Vmap().open(worker, data, CPU)
    assert isinstance(engine.mine, Rows), "so many clients' state goes into a file unasked"
    server = fit.start(worker, engine, many).server
    cohort = torch.tensor([5, 77, 199_999])
    fit.one_round(worker, engine, server, cohort, 0)
    assert set(asked) == {0, *cohort.tolist()}
    assert engine.mine.written.tolist() == cohort.tolist()
    assert engine.mine._slab.slots == state_file.FIRST_SLOTS


@pytest.mark.parametrize("alike", [True, False])
def test_who_begins_like_all_others_is_computed_once_and_who_does_not_every_time(alike):
    seen = []

    def begin(client):
        seen.append(client)
        return {"a": torch.full((2,), 7.0 if alike else float(client))}

    rows = Rows.fresh(begin, 50, alike=alike)
    for _ in range(2):
        taken = rows.take(torch.arange(10, 15))
        assert equal(taken, tree.stack([{"a": torch.full((2,), 7.0 if alike else float(c))} for c in range(10, 15)]))
    assert seen == ([0] if alike else [0, *range(10, 15), *range(10, 15)])


@dataclass(frozen=True)
class Own(FedAvg):
    """Looks at whose state it makes."""

    def init_client(self, task, client, key):
        return {"number": torch.tensor(client), **super().init_client(task, client, key)}


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_clients_start_alike_say_so(name):
    worker = Worker(task("cnn-batch"), METHODS[name])
    starts = [worker.start(c) for c in (0, 1, 7)]
    assert worker.alike == (equal(starts[0], starts[1]) and equal(starts[0], starts[2]))
    assert not Worker(task(), Own()).alike


def test_small_federations_stay_in_memory_unless_told():
    worker = Worker(task(), small(SCAFFOLD()))
    assert isinstance(Vmap().open(worker, shards(), CPU).mine, Stacked)
    assert isinstance(Vmap(private="mapped").open(worker, shards(), CPU).mine, Rows)
    assert Vmap(private="mapped").open(Worker(task(), FedAvg()), shards(), CPU).mine == {}


def test_a_private_state_that_changes_its_type_is_refused():
    layout = Layout.of(row(1))
    with pytest.raises(ValueError, match=r"must keep shape and type: got torch.float64 \(3,\)"):
        layout.pack(tree.map(lambda x: x[None].double(), row(1)))


def test_a_round_that_fails_changes_nothing_and_older_states_stay():
    worker = Worker(task("mlp-dropout"), Poison(work=SMALL, private=("head",)))
    engine = FAR.open(worker, shards(), CPU)
    loop = fit.rounds(worker, engine, fit.RoundPlan(3, 6, 6), shards(VAL, 1), fit.start(worker, engine, 6))
    state = next(loop)
    before = state.mine.take(EVERYONE)
    with pytest.raises(NonFinite, match=r"client\(s\) 3 "):
        next(loop)
    assert engine.mine is state.mine
    assert equal(engine.mine.take(EVERYONE), before)


def test_states_of_earlier_rounds_keep_their_rows():
    worker = Worker(task("mlp-dropout"), FedAvg(work=SMALL, private=("head",)))
    engine = FAR.open(worker, shards(), CPU)
    kept = [fit.start(worker, engine, 6)]
    seen = [kept[0].mine.take(EVERYONE)]
    for state in fit.rounds(worker, engine, fit.RoundPlan(4, 6, 4), shards(VAL, 1), kept[0]):
        kept.append(state)
        seen.append(state.mine.take(EVERYONE))
    assert all(equal(state.mine.take(EVERYONE), rows) for state, rows in zip(kept, seen, strict=True))
    assert not equal(seen[-1], seen[-2])
    assert kept[-1].best is not None and kept[-1].best.mine is kept[kept[-1].best.round].mine


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wrote", "reads"), [(FAR, FAR), (FAR, PLAIN), (PLAIN, FAR), (FAR, Serial())])
def test_either_kind_of_state_reads_the_others_checkpoints(tmp_path, wrote, reads):
    worker, _, state = trained(small(SCAFFOLD()), wrote, rounds=2, cohort=2, model="mlp-dropout")
    path = tmp_path / "state"
    path.write_bytes(store.pack(state, "t"))
    engine = reads.open(worker, shards(), CPU)
    found = store.unpack(path, fit.start(worker, engine, 6), ("t",))
    assert type(found.mine) is type(engine.mine)
    assert equal(found.mine.take(EVERYONE), state.mine.take(EVERYONE))
    assert equal(found.best.mine.take(EVERYONE), state.best.mine.take(EVERYONE))


def test_a_checkpoint_holds_the_written_rows_alone(tmp_path):
    _, _, state = trained(small(SCAFFOLD()), FAR, rounds=1, cohort=2, model="mlp-dropout")
    (tmp_path / "s").write_bytes(store.pack(state, "t"))
    _, tensors = store.read_tensors(tmp_path / "s")
    assert tensors["mine/@ids"].tolist() == state.mine.written.tolist()
    assert {len(t) for name, t in tensors.items() if name.startswith("mine/@rows/")} == {2}


def test_tensors_of_a_checkpoint_lie_where_torch_puts_its_own(tmp_path):
    """In the file they lie at any multiple of 8 bytes. Products of some processors round by where their numbers lie,
    so that a run that went on ended with other bits."""
    _, _, state = trained(small(SCAFFOLD()), FAR, rounds=1, cohort=2, model="mlp-dropout")
    (tmp_path / "s").write_bytes(store.pack(state, "t"))
    _, tensors = store.read_tensors(tmp_path / "s")
    assert {x.data_ptr() % 64 for x in tensors.values() if x.numel()} == {0}


def test_numbers_of_clients_that_do_not_exist_are_refused(tmp_path):
    worker, engine, state = trained(small(SCAFFOLD()), FAR, rounds=1, cohort=2, model="mlp-dropout")
    flat = tree.flatten({"mine": state.mine.saved()})
    flat["mine/@ids"] = torch.tensor([1, 6])
    with pytest.raises(ValueError, match="'mine/@ids' must hold numbers of clients, 0 to 5"):
        fit.start(worker, FAR.open(worker, shards(), CPU), 6).mine.restored(flat, "mine/")


def test_an_interrupted_run_ends_with_the_same_bytes(tmp_path):
    words = ["data.clients=6", "model=mlp", "model.hidden=8", "rounds=4", "cohort=3", "checkpoint_every=1"]
    more = ["method=fedper", "method.work.epochs=1", "backend=vmap", "backend.private=mapped", "backend.examples=host"]
    (e,) = expand([*words, *more])

    class Stop(ac.Watch):
        def round(self, state):
            if state.round == 2:
                raise KeyboardInterrupt

    ac.run(e, tmp_path / "whole")
    with pytest.raises(api.Interrupted):
        ac.run(e, tmp_path / "cut", watch=Stop())
    ac.resume(tmp_path / "cut")
    whole, cut = ((tmp_path / name / "state.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut
    assert ac.load(tmp_path / "cut").model(3)["vars"]["params"]


# --- few shapes, few recordings --------------------------------------------------------------------------------------


def shapes_and_waste(sizes, cohort, batch, rounds, largest):
    """Distinct (size, count) over many drawn cohorts, and the share of the computed steps that is undone."""
    shapes, real, computed = set(), 0, 0
    for r in range(rounds):
        drawn = sizes[torch.randperm(len(sizes), generator=torch.Generator().manual_seed(r))[:cohort]]
        for members, size, count in plan(drawn, 0.25, 128, largest):
            shapes.add((size, count))
            real += int(torch.ceil(drawn[members] / batch).sum())
            computed += count * math.ceil(size / batch)
    return len(shapes), 1 - real / computed


def test_cohorts_drawn_anew_have_few_shapes_and_little_padding():
    g = torch.Generator().manual_seed(0)
    writers = (torch.randn(3400, generator=g) * 76 + 197).round().clamp(19, 465).long()  # as in FEMNIST
    anew, _ = shapes_and_waste(writers, 10, 20, 60, None)
    few, waste = shapes_and_waste(writers, 10, 20, 60, int(writers.max()))
    assert few <= 40 < 150 < anew
    assert waste < 0.2
    zipf = torch.tensor([max(round(6000 / k), 20) for k in range(1, 201)])
    assert shapes_and_waste(zipf, 200, 20, 1, None)[1] < 0.2
    assert shapes_and_waste(zipf, 50, 20, 30, 6000)[1] < 0.2


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.25, 0.6, 1.0]),
    st.integers(1, 20),
    st.booleans(),
)
def test_plans_cover_everyone_once_and_bound_the_padding(sizes, waste, chunk, few):
    sizes = torch.tensor(sizes)
    made = list(plan(sizes, waste, chunk, max(int(sizes.max()), 1) if few else None))
    assert sorted(torch.cat([m for m, _, _ in made]).tolist()) == list(range(len(sizes)))
    for members, size, count in made:
        assert (1 - waste) * size <= int(sizes[members].min()) and int(sizes[members].max()) <= size
        assert len(members) <= count <= min(max(len(members) * 1.25, 1), chunk)


def test_recordings_that_were_not_used_for_longest_are_dropped(monkeypatch):
    made = []

    class Pretend:
        def __init__(self, f, inputs, slot, tidy):
            made.append(inputs)
            self.f = f

        def __call__(self, *inputs, room=None):
            return self.f(*inputs)

    monkeypatch.setattr(capture, "Captured", Pretend)
    monkeypatch.setattr(capture, "MOST_RECORDINGS", 2)
    engine = PLAIN.open(Worker(task(), FedAvg()), shards(), CPU)
    engine.recorder.on = True
    for work in ("a", "b", "a", "c", "a", "b"):
        engine.recorder.run((work,), lambda x: x, ({"x": torch.zeros(1)},))
    assert len(made) == 4  # b was dropped for c, and made again
    assert [key[0][0] for key in engine.recorder.recorded] == ["a", "b"]


# --- precision -------------------------------------------------------------------------------------------------------


def test_full_precision_is_for_the_engines_work_alone():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    with tf32(False):
        assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == before
    seen = []
    engine = replace(PLAIN, precision="fp32").open(Worker(task(), FedAvg()), shards(), CPU)
    engine.recorder.run(("look",), lambda: seen.append(torch.backends.cudnn.allow_tf32) or {}, ())
    assert seen == [False] and torch.backends.cudnn.allow_tf32 == before[0]


# torch then gives up oneDNN for the rest of the process, and other tests of it would get other bits
has_bf16 = platform.machine() != "aarch64" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not has_bf16, reason="this ARM processor has no products in bfloat16")


@needs_bf16
@pytest.mark.parametrize("model", ["mlp-dropout", "cnn-batch"])
def test_bfloat16_computes_roughly_the_same_and_keeps_states_in_float32(model):
    _, _, exact = trained(small(FedAvg()), PLAIN, rounds=2, model=model)
    _, engine, rough = trained(small(FedAvg()), replace(PLAIN, precision="bf16"), rounds=2, model=model)
    assert {t.dtype for t in tree.leaves(rough.server)} == {torch.float32}
    begun = fit.start(engine.worker, engine, 6).server["vars"]["params"]
    far, off = (tree.norm(tree.sub(exact.server["vars"]["params"], p)) for p in (begun, rough.server["vars"]["params"]))
    assert 0 < float(off) < 0.3 * float(far)
    out = engine.worker.task.apply(rough.server["vars"], shards().x[:2])
    assert out.logits.dtype == out.features.dtype == torch.float32
    assert out.buffers.keys() == rough.server["vars"]["buffers"].keys()


@needs_bf16
def test_bfloat16_reaches_the_accuracy_of_float32_on_digits():
    words = ["data.clients=4", "model=mlp", "model.hidden=32", "rounds=6", "method.work.epochs=3", "backend=vmap"]
    scores = []
    for precision in ("tf32", "bf16"):
        (e,) = expand([*words, f"backend.precision={precision}"])
        scores.append(api.train(e).history[-1]["val_accuracy"])
    assert scores[0] > 0.5
    assert scores[1] == pytest.approx(scores[0], abs=0.05)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"private": "disk"}, "private='disk'"), ({"examples": "far"}, "examples='far'"), ({"precision": "fp8"}, "fp8")],
)
def test_bad_options_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        Vmap(**options)
