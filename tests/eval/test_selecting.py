"""Adapters chosen without test labels: scores along streams, choices, accuracies and gaps."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import acclimate as ac
from acclimate.core import Protocol, rng, stream
from acclimate.eval.estimates import Session
from acclimate.eval.selection import VIEWS, Viewed
from acclimate.eval.selection_table import Pick, Selection
from acclimate.experiment import catalogue
from acclimate.ops.selection import STRATEGIES, WITHOUT_LABELS

TENT = catalogue.ADAPTERS["tent"]
CANDIDATES = [
    catalogue.ADAPTERS["none"],
    catalogue.ADAPTERS["bn"],
    TENT,
    replace(TENT, opt=replace(TENT.opt, lr=0.3)),
]
STREAMS = [ac.shifts.Original(), ac.shifts.Corrupted(kinds=("gaussian_noise", "contrast"))]


@pytest.fixture(scope="module")
def fit():
    model = ac.models.MLP(hidden=(16,), norm="batch")
    return ac.train(ac.Experiment(data=ac.data.Digits(clients=3), model=model, rounds=2, backend=ac.backends.Serial()))


@pytest.fixture(scope="module")
def found(fit):
    return ac.select(fit, CANDIDATES, STREAMS, STRATEGIES)


def score(found, stream, strategy):
    return [c["scores"][strategy] for c in found.candidates if c["stream"] == stream]


def test_accuracies_are_those_of_the_results_table_and_gaps_count_from_the_best(fit, found):
    table = ac.evaluate(fit, CANDIDATES, STREAMS)
    names = [c["adapter"] for c in found.candidates[:4]]
    assert names == ["none", "bn", "tent", "tent(opt.lr=0.3)"]
    for s in ("original", "corrupted"):
        known = {n: table.accuracy(adapter=n, stream=s) for n in names}
        assert found.accuracy("oracle", s) == pytest.approx(max(known.values()), abs=2e-6)
        for row in (r for r in found.rows if r["stream"] == s):
            (chosen,) = row["chosen"]
            assert row["accuracy"] == pytest.approx(known[chosen], abs=2e-6)
            assert row["gap"] == pytest.approx(max(known.values()) - known[chosen], abs=4e-6)
            assert np.mean(row["per_client"]) == pytest.approx(row["accuracy"], abs=2e-6)
            top = score(found, s, row["strategy"])
            assert names.index(chosen) == top.index(max(top))
    assert found.rows[0]["chosen"] == {"none": 3} and found.gap("oracle") == 0


def test_scores_are_computed_from_answers_and_validation_accuracy(fit, found):
    world, worker, engine = fit.world, fit.worker, fit.engine
    models = engine.deploy(
        worker.method.download(worker.task, fit.state.server), fit.state.mine, fit.experiment.personal
    )
    held = world.shards(world.val)
    session = Session(engine, models, held)
    out = session.serve(CANDIDATES[2], held, Protocol(32))
    right = [float(h[r].mean()) for h, r in zip(out.hit, out.real, strict=True)]
    assert score(found, "original", "source")[2] == pytest.approx(np.mean(right), abs=2e-6)
    built = ac.shifts.Original().build(world, rng.fold(rng.key(world.seed), "streams"))
    out = session.serve(CANDIDATES[1], built.shards, Protocol(32))
    p = [x[r].softmax(-1).double() for x, r in zip(out.logits, out.real, strict=True)]
    entropies = [float(-(q * q.log()).sum(-1).mean()) for q in p]
    assert score(found, "original", "entropy")[1] == pytest.approx(-np.mean(entropies), abs=1e-5)
    out = session.serve_as(Viewed(CANDIDATES[1]), built.shards, Protocol(32))
    answers, views = (a.argmax(-1) for a in (out.logits, out.trace["view"]))
    same = [float((a == v)[r].double().mean()) for a, v, r in zip(answers, views, out.real, strict=True)]
    assert score(found, "original", "consistency")[1] == pytest.approx(np.mean(same), abs=2e-6) and np.mean(same) < 1


def test_source_serves_validation_examples_with_the_streams_batch_size(fit):
    """A batch's own statistics are others in batches of another size."""
    known = {}
    for batch in (3, 32):
        held = Session(fit.engine, fit.engine.deploy(fit.state.server, fit.state.mine, fit.experiment.personal), None)
        known[batch] = held.serve(CANDIDATES[1], fit.world.shards(fit.world.val), Protocol(batch))
        found = ac.select(fit, CANDIDATES[:2], [ac.shifts.Original(batch=batch)], ("source",))
        right = [float(h[r].mean()) for h, r in zip(known[batch].hit, known[batch].real, strict=True)]
        assert score(found, "original", "source")[1] == pytest.approx(np.mean(right), abs=2e-6)
    assert not torch.equal(known[3].hit[:, :9], known[32].hit[:, :9])


def test_the_view_is_answered_from_the_same_state_and_changes_nothing(fit):
    worker, data = fit.worker, fit.world.shards(fit.world.test)
    model = worker.method.deploy(worker.task, worker.method.download(worker.task, fit.state.server), {})
    own = {"x": data.x, "rows": data.own(0), "n": data.n[0]}
    run = [worker.task, worker.predict(), Viewed(TENT), model, own, Protocol(8), rng.key(3)]
    traced = stream.run(*run, trace=True)
    run[2] = TENT
    assert torch.equal(traced.logits, stream.run(*run).logits)
    key, x = rng.advance(rng.fold(rng.key(3), "samples"), 0), data.x[data.own(0)[:8]]
    keys = rng.fold(rng.rows(key, 8), "views")
    views = torch.stack([VIEWS.views(x[i][None], keys[i])[0] for i in range(8)])
    first, _ = TENT.step(worker.task, worker.predict(), model, TENT.init(worker.task, model), views, key)
    torch.testing.assert_close(traced.trace["view"][:8], first)
    run[2], run[5] = Viewed(catalogue.ADAPTERS["none"]), Protocol(5)
    whole = stream.run(*run[:5], Protocol(8, "batch"), run[6], trace=True)
    torch.testing.assert_close(stream.run(*run, trace=True).trace["view"], whole.trace["view"])  # however it is cut


def relabelled(fit):
    """The same federation, whose test examples have other labels."""
    examples, test = fit.world.examples, torch.cat(fit.world.test)
    y = examples.y.clone()
    y[test] = (y[test] + 1) % len(examples.classes)
    return replace(fit, world=replace(fit.world, examples=replace(examples, y=y)))


def test_labels_of_a_stream_change_no_choice_but_the_oracles(fit, found):
    other = ac.select(relabelled(fit), CANDIDATES, STREAMS, STRATEGIES)
    for a, b in zip(found.candidates, other.candidates, strict=True):
        assert {s: a["scores"][s] for s in WITHOUT_LABELS} == {s: b["scores"][s] for s in WITHOUT_LABELS}
        assert a["scores"]["oracle"] != b["scores"]["oracle"]


def test_every_client_may_choose_for_itself(fit, found):
    each = ac.select(fit, CANDIDATES, STREAMS[:1], ("fixed", "oracle"), by="client")
    table = ac.evaluate(fit, CANDIDATES, STREAMS[:1])
    own = np.array([r["per_client"] for r in table.where(selection="last").rows])
    fixed, oracle = each.rows
    assert fixed["chosen"] == {"none": 3} and fixed["accuracy"] == found.accuracy("fixed", "original")
    assert oracle["per_client"] == own.max(0).tolist() and sum(oracle["chosen"].values()) == 3
    assert fixed["gap"] == pytest.approx(own.max(0).mean() - own[0].mean(), abs=4e-6)


def test_candidates_that_cannot_serve_or_diverge_are_left_out_with_the_reason(fit):
    wild = replace(TENT, opt=replace(TENT.opt, lr=1e38))
    found = ac.select(fit, [wild, catalogue.ADAPTERS["the"], CANDIDATES[0]], STREAMS[:1], ("fixed",))
    assert found.rows[0]["chosen"] == {"none": 3}
    assert [w.split(":")[0] for w in found.left_out] == ["the", "tent on original"]
    with pytest.raises(ArithmeticError, match="no candidate's answers are finite"):
        ac.select(fit, [wild], STREAMS[:1], ("fixed",))
    with pytest.raises(ValueError, match="nothing to choose from"):
        ac.select(fit, [catalogue.ADAPTERS["the"]], STREAMS[:1])


def test_what_is_not_possible_is_named(fit):
    with pytest.raises(ValueError, match="'best' is not possible; allowed: fixed, source"):
        ac.select(fit, CANDIDATES, STREAMS, ("best",))
    with pytest.raises(ValueError, match="must name at least one"):
        ac.select(fit, CANDIDATES, STREAMS, ())
    with pytest.raises(ValueError, match="by='batch' is not possible"):
        ac.select(fit, CANDIDATES, STREAMS, by="batch")
    bare = replace(fit, world=replace(fit.world, val=tuple(v[:0] for v in fit.world.val)))
    with pytest.raises(ValueError, match="strategy source: .* no validation examples"):
        ac.select(bare, CANDIDATES, STREAMS)


def row(stream, strategy, chosen, accuracy, gap, by="stream"):
    return Pick(stream=stream, strategy=strategy, by=by, chosen=chosen, accuracy=accuracy, gap=gap, per_client=[])


def test_the_table_says_what_was_chosen_and_labels_the_oracle():
    rows = (
        row("a", "entropy", {"tent": 4}, 0.5, 0.25),
        row("a", "oracle", {"bn": 4}, 0.75, 0.0),
        row("b", "entropy", {"tent": 3, "bn": 1}, 0.7, 0.05, "client"),
        row("b", "oracle", {"bn": 4}, 0.75, 0.0),
    )
    lines = Selection(rows).to_markdown().splitlines()
    assert lines[2:] == [
        "| a | entropy | tent | 50.0 | 25.0 |",
        "| a | oracle (test labels) | bn | 75.0 | 0.0 |",
        "| b | entropy | tent x3, bn | 70.0 | 5.0 |",
        "| b | oracle (test labels) | bn | 75.0 | 0.0 |",
        "| mean | entropy |  | 60.0 | 15.0 |",
        "| mean | oracle (test labels) |  | 75.0 | 0.0 |",
    ]
    with pytest.raises(KeyError, match="no choice by 'snd'"):
        Selection(rows).gap("snd")


def test_the_overall_choice_is_by_the_mean_score_of_those_that_are_on_every_stream():
    def seen(stream, adapter, value):
        return {"stream": stream, "adapter": adapter, "accuracy": 0.0, "scores": {"entropy": value}}

    every = [seen("a", "none", -1.0), seen("b", "none", -1.0), seen("a", "bn", -2.0), seen("b", "bn", 0.5)]
    found = Selection(candidates=(*every, seen("a", "tent", 9.0), seen("b", "tent", None)))
    assert found.overall("entropy") == "bn"
    assert json.loads(json.dumps(found.to_dict()))["candidates"][2]["scores"] == {"entropy": -2.0}
    assert math.isclose((found + found).candidates[5]["scores"]["entropy"] or 9.0, 9.0)


def test_clients_together_choose_and_learn_as_one_by_one(fit, found):
    from acclimate.running.build import Fit, build

    experiment = replace(fit.experiment, backend=ac.backends.Vmap())
    world, worker, engine = build(experiment)
    together = Fit(experiment, world, worker, engine, fit.state)
    again = ac.select(together, CANDIDATES, STREAMS, STRATEGIES)
    assert [r["chosen"] for r in again.rows] == [r["chosen"] for r in found.rows]
    for a, b in zip(again.candidates, found.candidates, strict=True):
        assert a["scores"] == pytest.approx(b["scores"], abs=2e-3)
    device = [ac.shifts.Periodic(kinds=("contrast",), batch=16), ac.shifts.FewSamples(kinds=("contrast",))]
    one, both = (ac.evaluate(f, CANDIDATES[2:], device) for f in (fit, together))
    assert [r["per_client"] for r in one.rows] == [r["per_client"] for r in both.rows]
    always = ac.evaluate(fit, CANDIDATES[3:], [replace(device[0], every=1)])
    assert (
        always.rows[0]["per_client"] != one.where(stream="periodic", adapter="tent(opt.lr=0.3)").rows[0]["per_client"]
    )


def test_adapters_that_exchange_are_left_out_since_every_client_is_served_alone(fit):
    both = [CANDIDATES[0], catalogue.ADAPTERS["together"]]
    found = ac.select(fit, both, STREAMS[:1], ("entropy",))
    says = "Together exchanges with other clients, and here every client is served alone"
    assert found.left_out == (f"together: {says}",) and found.rows[0]["chosen"] == {"none": 3}
    estimated = ac.estimates(fit, both, STREAMS[:1], passes=0)
    assert {r["adapter"] for r in estimated.rows} == {"none"}


def scored(*found):
    """A selection of candidates with these scores: adapter, stream, score."""
    rows = [{"adapter": a, "stream": s, "accuracy": 0.0, "scores": {"entropy": v}} for a, s, v in found]
    return Selection(candidates=tuple(rows))


def test_streams_count_alike_whatever_the_number_of_their_seeds():
    three = [("tent", "a", 0.9)] * 3 + [("bn", "a", 0.8)] * 3  # three seeds have a score on a, and one on b
    assert scored(*three, ("tent", "b", 0.1), ("bn", "b", 0.3)).overall("entropy") == "bn"
    pick = {"strategy": "entropy", "by": "stream", "chosen": {"bn": 1}, "per_client": []}
    rows = [{**pick, "stream": s, "accuracy": v, "gap": v / 10} for s, v in (("a", 0.9), ("a", 0.7), ("b", 0.2))]
    assert Selection(tuple(rows)).accuracy("entropy") == pytest.approx((0.8 + 0.2) / 2)
    assert Selection(tuple(rows)).gap("entropy") == pytest.approx(0.05)
    assert Selection(tuple(rows)).accuracy("entropy", "a") == pytest.approx(0.8)


def test_candidates_that_are_missing_on_other_streams_are_compared_on_those_that_both_have():
    both = (("tent", "easy", 0.9), ("tent", "shared", 0.2), ("bn", "hard", 0.3), ("bn", "shared", 0.4))
    assert scored(*both).overall("entropy") == "bn"  # by their own streams tent had 0.55, and bn 0.35
    assert scored(*both, ("em", "easy", 0.1), ("em", "hard", 0.1), ("em", "shared", 0.1)).overall("entropy") == "em"
    assert scored(both[0], both[2]).overall("entropy") == "tent"  # nothing better is known
