"""Estimates along streams: what is kept, how curves are compared, and the table of a small federation."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import acclimate as ac
from acclimate.core import Protocol, Shards, rng, stream, tree
from acclimate.eval import estimates
from acclimate.eval.distorted import KINDS, PLAN, SEGMENT, distorted
from acclimate.eval.estimate_table import Estimates, pooled
from acclimate.eval.observed import Observed
from acclimate.experiment import catalogue
from acclimate.shifts.corruptions import COMMON
from support import client_data, equal, fitted, gap, shards

NAN = math.nan
T = torch.tensor


@pytest.fixture(scope="module")
def trained():
    return fitted(ac.methods.FedAvg(), rounds=2)


def served(trained, adapter, trace, batch=8):
    worker, _, state = trained
    model = worker.method.deploy(worker.task, worker.method.download(worker.task, state.server), {})
    data = tree.drop(client_data(shards(), 0), ("y",))
    return stream.run(worker.task, worker.predict(), adapter, model, data, Protocol(batch), rng.key(3), trace), model


@pytest.mark.parametrize(
    "name", ["none", "bn", "tent", "t3a", "shot", "em", pytest.param("memo", marks=pytest.mark.slow)]
)
def test_it_answers_as_the_adapter_inside_it(trained, name):
    adapter = catalogue.ADAPTERS[name]
    (plain, _), (probed, _) = served(trained, adapter, False), served(trained, Observed(adapter, 2), True)
    assert gap(plain.logits, probed.logits) < 1e-5
    assert equal(probed.trace["logits"], probed.logits)
    assert probed.trace["differs"].shape == (40,) and probed.trace["dropped"].shape == (40, 5)
    assert bool(((probed.trace["dropped"].sum(-1) - 1).abs() < 1e-5).all())


def test_dropout_passes_are_the_head_on_partly_zero_features(trained):
    from acclimate.ops.estimates import dropout

    worker, _, _ = trained
    probed, model = served(trained, Observed(passes=2), True, batch=40)
    data = client_data(shards(), 0)
    out = worker.predict()(model, data["x"][data["rows"]])
    params = model["vars"]["params"]
    keys = rng.rows(rng.fold(rng.key(3), "samples"), 40)
    masks = [rng.fold(keys, "passes", number) for number in range(2)]
    passes = torch.stack([dropout(out.features, 0.4, m) @ params["head.weight"].T for m in masks])
    passes = passes + params["head.bias"]
    torch.testing.assert_close(probed.trace["dropped"], passes.softmax(-1).mean(0))
    other = (passes.argmax(-1) != out.logits.argmax(-1)).float().mean(0)
    torch.testing.assert_close(probed.trace["differs"], other)
    assert 0 < float(other.mean()) < 1


def test_curves_are_cut_into_batches_and_smoothed_over_full_windows():
    assert estimates.cut(T([[1.0, 2.0, 3.0]]), 2).tolist() == [[[1.0, 2.0], [3.0, 0.0]]]
    values, counts = T([[0.0, 1.0, 0.5], [0.2, NAN, NAN]]), T([[2, 2, 1], [2, 0, 0]])
    smooth = estimates.moving(values, counts, 2)
    torch.testing.assert_close(smooth, T([[0.5, 2.5 / 3], [0.2, NAN]]), equal_nan=True)
    torch.testing.assert_close(estimates.moving(values, counts, 9), T([[2.5 / 5], [0.2]]))


def test_errors_are_means_over_clients_and_leave_out_those_without():
    truth, guess = T([[0.5, 0.7], [1.0, 1.0], [0.4, 0.4]]), T([[0.6, 0.6], [1.4, 1.0], [NAN, NAN]])
    counts = torch.full((3, 2), 4)
    whole = {"truth": truth.mean(1), "doc": guess.mean(1)}
    (row,) = estimates._errors({"truth": truth, "doc": guess}, whole, counts, 1)
    assert row["clients"] == 2
    assert row["error"] == pytest.approx(0.0, abs=1e-6)  # 0.6 for 0.6; 1.2, which is clipped to 1, for 1
    assert row["curve_error"] == pytest.approx((0.1 + 0.1 + 0.0 + 0.0) / 4)


def test_the_draw_is_what_few_samples_are_worth():
    """Against simulated streams: 400 clients of one accuracy, with 40 samples each or with 10 examples four times."""
    shares = rng.uniform(rng.key(1), 400, 40)
    hit, real = (shares < 0.7).float(), torch.arange(40) < T([30, 40]).repeat(200)[:, None]
    each = torch.arange(40).expand(400, -1)
    known = estimates.draw(hit, real, each)
    p, n = (hit[0] * real[0]).sum() / 30, 30
    assert float(known[0]) == pytest.approx(float((2 / math.pi * p * (1 - p) / (n - 1)).sqrt()), abs=1e-6)
    found = (hit * real).sum(-1) / real.sum(-1) - 0.7
    assert float(known.mean()) == pytest.approx(float(found.abs().mean()), abs=0.005)
    again = estimates.draw(hit[:, :10].repeat(1, 4), torch.ones(400, 40, dtype=torch.bool), each % 10)
    once = estimates.draw(hit[:, :10], torch.ones(400, 10, dtype=torch.bool), each[:, :10])
    torch.testing.assert_close(again, once)  # the same ten draws
    assert estimates.draw(hit[:1], torch.zeros(1, 40, dtype=torch.bool), each[:1]).isnan().all()


def test_copies_of_one_example_are_known_as_such():
    data = ac.data.Digits(clients=2, partition=ac.data.IID(), fraction=0.3)
    world = ac.train(ac.Experiment(data=data, model=ac.models.MLP(hidden=(4,)), rounds=1)).world
    shifts = [
        ac.shifts.Original(),
        ac.shifts.Corrupted(),
        ac.shifts.Correlated(severity=0),
        ac.shifts.Repeated(cycles=2),
    ]
    for shift in (*shifts, ac.shifts.Mixture(parts=tuple(shifts[:2]))):
        s = shift.build(world, rng.key(0))
        of = estimates._examples(estimates.Test(s.shards, shift.protocol, copied=s.copied))
        for c in range(2):
            own = of[c, : int(s.shards.n[c])]
            assert set(own.tolist()) == set(world.test[c].tolist())
            assert torch.equal(world.examples.y[own], s.shards.y[s.shards.own(c)])


def test_distorted_validation_data_has_kinds_that_streams_lack():
    assert not set(KINDS) & set(COMMON) and len(PLAN) == 11
    x = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    world = SimpleNamespace(examples=SimpleNamespace(x=x, y=torch.arange(6)))
    made = distorted(world, (T([4, 2, 1]), T([], dtype=torch.int64)), rng.key(0))
    assert made.n.tolist() == [SEGMENT * 11, 0]
    own = made.own(0)
    assert made.y[own][:4].tolist() == [4, 2, 1, 4]
    same = (made.x[own] == x[made.y[own]]).flatten(1).all(1).view(11, SEGMENT)
    assert same[0].all() and not same[1:].any()
    rows = SimpleNamespace(examples=SimpleNamespace(x=torch.rand(6, 9), y=torch.arange(6)))
    assert torch.equal(distorted(rows, (T([4]),), rng.key(0)).x[0], rows.examples.x[4])


def test_a_small_federation_from_training_to_the_table():
    e = ac.Experiment(
        data=ac.data.Digits(clients=3, partition=ac.data.IID(), fraction=0.4),
        model=ac.models.MLP(hidden=(16,), norm="batch"),
        rounds=2,
    )
    fit = ac.train(e)
    found = ac.estimates(
        fit,
        [ac.adapters.NoAdapt(), ac.adapters.Tent(), ac.adapters.THE()],
        [ac.shifts.Original(batch=16), ac.shifts.Gradual(segment=16, batch=16)],
        ac.personal.FineTune(work=ac.Work(epochs=1, batch=16)),
        passes=2,
    )
    names = ["doc", "atc", "cbpe", "aetta", "aetta-uniform", "agreement", "classwise"]
    assert found.estimators() == names
    assert {(r["adapter"], r["stream"]) for r in found.rows} == {
        (a, s) for a in ("none", "tent") for s in ("original", "gradual")
    }  # THE cannot serve the model
    assert all(r["clients"] == 3 and 0 <= r["error"] <= 1 and 0 < r["draw"] < 0.2 for r in found.rows)
    # the true curve is the accuracy that the table of results has
    table = ac.evaluate(
        fit,
        [ac.adapters.NoAdapt()],
        [ac.shifts.Gradual(segment=16, batch=16)],
        ac.personal.FineTune(work=ac.Work(epochs=1, batch=16)),
    )
    curve = next(c for c in found.curves if c["stream"] == "gradual" and c["adapter"] == "none")["curves"]
    assert len(curve["truth"]) == 11 - 4 + 1 and set(curve) == {"truth", *names}
    whole = ac.estimates(
        fit,
        [ac.adapters.NoAdapt()],
        [ac.shifts.Gradual(segment=16, batch=176)],
        ac.personal.FineTune(work=ac.Work(epochs=1, batch=16)),
        passes=0,
    )
    assert whole.curves[0]["curves"]["truth"] == pytest.approx([table.rows[0]["accuracy"]], abs=1e-5)
    assert {r["drifts"] for r in found.drift if r["stream"] == "original"} == {False}
    assert {r["drifts"] for r in found.drift if r["stream"] == "gradual"} == {True}


def rows(**errors):
    fixed = {"adapter": "none", "stream": "original", "clients": 4, "curve_error": 0.1, "bias": 0.0, "draw": 0.02}
    return tuple({**fixed, "estimator": k, "error": v} for k, v in errors.items())


def test_the_table_says_which_is_best_and_seeds_are_pooled():
    one, two = Estimates(rows(doc=0.04, atc=0.05)), Estimates(rows(doc=0.08, atc=0.03))
    assert one.best() == "doc" and two.best(adapter="none") == "atc"
    both = pooled([one, two])
    assert both.error(estimator="doc") == pytest.approx(0.06) and both.best() == "atc"
    assert both.rows[0]["clients"] == 8
    assert "| none | original | 6.0 | **4.0** | 2.0 | +2.0 |" in both.to_markdown()
    assert "| none | original | **10.0** | 10.0 |\n" in both.to_markdown("curve_error")
    assert one.to_csv().splitlines()[1] == "none,original,doc,4,0.04,0.1,0.0,0.02"
    gap = Estimates(rows(doc=None, atc=0.05))
    assert gap.best() == "atc" and "| none | original | - | **5.0** | 2.0 | +3.0 |" in str(gap)
    earlier = Estimates(tuple({k: v for k, v in row.items() if k != "draw"} for row in one.rows))
    assert "| none | original | **4.0** | 5.0 | - | - |" in str(pooled([earlier]))
    alarm = {"adapter": "none", "stream": "gradual", "detector": "adwin", "drifts": True, "clients": 3, "alarmed": 2}
    drift = Estimates(drift=({**alarm, "alarms": 4, "samples": 500, "first": 70},))
    assert "| adwin | none | gradual | yes | 2 of 3 | 70 | 8.0 |" in drift.drift_markdown()


def test_detection_starts_from_validation_confidence():
    sure, unsure = T([[9.0, 0.0]]).repeat(40, 1), T([[0.4, 0.0]]).repeat(40, 1)
    fit = estimates.Fitted({"temperature": torch.ones(2)}, T(1.0), *[T(0.0)] * 4, [[1.0] * 40] * 2)
    seen = estimates.Outputs({"logits": torch.stack((sure, unsure))}, T(0), torch.ones(2, 40, dtype=torch.bool))
    for row in estimates._drift(fit, seen, True):
        assert row["alarmed"] == 1 and row["clients"] == 2 and row["samples"] == 80 and row["first"] <= 30


def test_neighbours_answer_on_the_stream_of_the_one_before():
    s = Shards.of(torch.zeros(3, 1), T([0, 1, 2]), [T([0]), T([1]), T([2])])
    seen = []

    def serve(adapter, shards, served):
        seen.append(shards.rows[:, 0].tolist())
        return SimpleNamespace(logits=torch.stack((torch.arange(3), shards.rows[:, 0]), -1))

    got = estimates._neighbour(SimpleNamespace(serve=serve), None, SimpleNamespace(shards=s, protocol=None))
    assert got.tolist() == [[1, 0], [2, 1], [0, 2]]  # (whose model, whose stream)


@dataclass(frozen=True)
class Counts(ac.Adapter):
    """Answers the number of batches that it has seen."""

    def init(self, task, model):
        return {"count": torch.zeros((), dtype=torch.int64)}

    def step(self, task, predict, model, state, x, key):
        sure = 20.0 * torch.nn.functional.one_hot(state["count"] % task.num_classes, task.num_classes)
        return sure.expand(len(x), -1) + 0.0 * predict(model, x).logits, {"count": state["count"] + 1}


@dataclass(frozen=True)
class Plain(ac.Adapter):
    """Does not adapt, and is served in batches of the size that is asked for."""

    batch_free = False


def test_a_sample_has_the_same_dropout_however_its_stream_is_cut(trained):
    one, some = (served(trained, Observed(Plain(), 2), True, batch)[0].trace for batch in (40, 8))
    torch.testing.assert_close(some["dropped"], one["dropped"])


def test_dropout_passes_start_from_the_state_that_the_adapter_has(trained):
    probed, _ = served(trained, Observed(Counts(), 2), True)
    assert probed.trace["dropped"].argmax(-1)[::8].tolist() == [0, 1, 2, 3, 4]
    assert float(probed.trace["differs"].max()) == 0.0


def test_the_guide_has_the_figures_that_were_measured():
    root = Path(__file__).parents[2]
    measured = json.loads((root / "results" / "live" / "estimates.json").read_text())["pooled"]
    table = Estimates(tuple(measured["rows"]))
    text = (root / "docs" / "guides" / "accuracy-without-labels.md").read_text()
    assert table.to_markdown() in text
    assert f"Its mean is {100 * table.error(estimator='classwise'):.1f} points over all" in text


def test_a_client_without_validation_data_has_no_estimate_and_the_others_have():
    data = ac.data.Digits(clients=3, partition=ac.data.IID(), fraction=0.3)
    fit = ac.train(ac.Experiment(data=data, model=ac.models.MLP(hidden=(8,), norm="batch"), rounds=1))
    unlabelled = replace(fit.world, val=(fit.world.val[0][:0], *fit.world.val[1:]))
    found = ac.estimates(replace(fit, world=unlabelled), [ac.adapters.Tent()], [ac.shifts.Original()], passes=2)
    clients = {r["estimator"]: r["clients"] for r in found.rows}
    assert clients.pop("aetta-uniform") == 3  # it knows of no reference
    assert set(clients.values()) == {2} and all(r["error"] is not None for r in found.rows)
    assert {r["clients"] for r in found.drift} == {2}


def outputs(seed, clients, size, classes=3, counted=None):
    logits = 2.0 * rng.normal(rng.key(seed), clients, size, classes)
    y = rng.randint(rng.key(seed + 1), 0, classes, clients, size)
    real = torch.arange(size) < T(counted or [size] * clients)[:, None]
    return estimates.Outputs({"logits": logits}, y, real)


def by_hand(hard, base, temperatures, seen, plain, client, rows, stretch):
    """The class-wise estimate of one client's rows, given what was met before, one number after the other."""

    def parts(adapted, un, i):
        own, other = ((x / t).softmax(-1) for x, t in zip((adapted[i], un[i]), temperatures, strict=True))
        answer, sure = int(own.argmax()), bool(other.max() > 0.6)
        group = answer, answer != int(other.argmax())
        return float(own[answer] + other[answer]) / 2, group, (int(other.argmax()), sure)

    gap, cells = [{}, {}], [{}, {}]
    for c in range(2):
        for i in range(hard.y.shape[1]):
            chance, group, cell = parts(hard.logits[c], base.logits[c], i)
            right = float(int(hard.logits[c, i].argmax()) == int(hard.y[c, i]))
            gap[c].setdefault(group, []).append(right - chance)
            cells[c][cell] = cells[c].get(cell, 0) + 1
    every = [(a, b) for a in range(3) for b in (False, True)]
    rest = {k: (cells[1 - client].get(k, 0) + 1) / (hard.y.shape[1] + 6) for k in every}
    usual = {k: (cells[client].get(k, 0) + 100 * rest[k]) / (hard.y.shape[1] + 100) for k in every}
    met = [parts(seen.logits[client], plain.logits[client], i) for i in stretch]
    share = 0.5
    for _ in range(100):
        likely = [share * usual[k] / (share * usual[k] + (1 - share) * rest[k]) for *_, k in met]
        share = sum(likely) / len(likely)
    out = []
    for i in rows:
        chance, group, k = parts(seen.logits[client], plain.logits[client], i)
        mine, both = gap[client].get(group, []), gap[0].get(group, []) + gap[1].get(group, [])
        everyone = sum(both) / (len(both) + 20)
        belongs = share * usual[k] / (share * usual[k] + (1 - share) * rest[k])
        offset = belongs * (sum(mine) + everyone) / (len(mine) + 1) + (1 - belongs) * everyone
        out.append(min(max(chance + offset, 0.0), 1.0))
    return sum(out) / len(out)


def test_the_classwise_estimate_along_a_stream_by_hand():
    clean, plain_clean, hard, base = (outputs(s, 2, n) for s, n in ((0, 20), (2, 20), (4, 44), (6, 44)))
    seen, plain = (outputs(s, 2, 10, counted=[10, 7]) for s in (8, 10))
    session = SimpleNamespace(
        serve=lambda adapter, shards, served: {"clean": clean, "bent": hard}[shards],
        plain=lambda name, shards: {"clean": plain_clean, "bent": base}[shards],
    )
    fit = estimates._fit(session, ac.Adapter(), "clean", "bent", 3)
    found, whole = estimates._curves(fit, seen, plain, None, 4)
    known = hard, base, (fit.ref["pooled"][0], fit.plain_temperature), seen, plain
    for c, n in ((0, 10), (1, 7)):
        for t, got in enumerate(found["classwise"][c, : -(-n // 4)].tolist()):
            met = range(min(4 * t + 4, n))
            assert got == pytest.approx(by_hand(*known, c, met[4 * t :], met), abs=1e-4)
        assert float(whole["classwise"][c]) == pytest.approx(by_hand(*known, c, range(n), range(n)), abs=1e-4)


def test_examples_of_two_sets_with_the_same_numbers_are_two_draws(monkeypatch):
    """A mixture's rows of another set are no second copies of the clients' own examples."""
    from acclimate.running import estimates as running

    data = ac.data.Digits(clients=2, partition=ac.data.IID(), fraction=0.3)
    fit = ac.train(ac.Experiment(data=data, model=ac.models.MLP(hidden=(4,)), rounds=1))
    other = ac.shifts.Natural(source=ac.data.Digits(domains=("sketch",)))
    monkeypatch.setattr(running, "measure", lambda engine, models, world, val, able, tests, *rest: tests)
    found = ac.estimates(fit, [ac.adapters.NoAdapt()], [ac.shifts.Mixture(parts=(ac.shifts.Original(), other))])
    (test,) = found.values()
    rows = torch.cat([test.shards.own(c) for c in range(2)])
    assert len(test.copied[rows].unique()) == len(rows)
