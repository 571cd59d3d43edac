"""Live models: they answer as the test stream does, in requests of any size, and can be frozen and taken back."""

import functools
from dataclasses import replace

import pytest
import torch

import acclimate as ac
from acclimate.core import tree
from acclimate.experiment import catalogue
from acclimate.live import Live
from acclimate.running.evaluate import streams_of
from acclimate.store import RunError
from support import small
from test_compose import ADAPTERS

A = ac.adapters
WORK = ac.Work(epochs=1, batch=8)
NEEDS = {
    **dict.fromkeys(("the", "theplus", "tsa"), ("fedthe", "none")),
    **dict.fromkeys(("fedtta", "fedtta-plus"), ("fedtta", "none")),
    **dict.fromkeys(("ttt", "ttt-episodic"), ("fedttt", "none")),
    **dict.fromkeys(("atp", "atp-online"), ("fedatp", "none")),
    "odpfl": ("odpfl", "none"),
    "eata": ("fedavg", "fisher"),
    "bbse": ("fedavg", "confusion"),
    "knn": ("fedavg", "memory"),
    **dict.fromkeys(("neo-client", "santa"), ("fedavg", "means")),
    **dict.fromkeys(("dpa", "the-lora"), ("feddpa-the", "none")),
}
NORMS = {"note": "iabn"}
"""Adapters that need another normalisation than batch norm."""


@functools.cache
def trained(method: str = "fedavg", personal: str = "none", norm: str = "batch") -> ac.Fit:
    model = ac.models.CNN(widths=(3, 4), hidden=8, kernel=3, norm=norm)
    if method == "feddpa-the":
        model = ac.models.LoRA(ac.models.ViT(patch=8, width=8, depth=1), rank=2, private=2)
    e = ac.Experiment(
        data=ac.data.Digits(clients=3, split=(0.1, 0.2, 0.7)),
        model=model,
        method=small(catalogue.METHODS[method], WORK),
        personal=small(catalogue.PERSONALS[personal], WORK),
        rounds=2,
        eval_every=2,
        backend=ac.backends.Vmap(),
    )
    return ac.train(e)


def deployed(name: str, guard: bool = False, **more) -> Live:
    method, personal = NEEDS.get(name, ("fedavg", "none"))
    return trained(method, personal, NORMS.get(name, "batch")).deploy(1, ADAPTERS[name], guard, **more)


def stream(count: int = 96, client: int = 1) -> torch.Tensor:
    world = trained().world
    return world.examples.x[world.test[client]][:count]


def answers(live: Live, x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.cat([live(part).probabilities for part in x.split(size)])


@pytest.mark.parametrize("name", ["none", "tent", "t3a", "the", "eata", "guarded-tent"])
def test_full_batches_are_answered_as_in_a_test_stream(name):
    method, personal = NEEDS.get(name, ("fedavg", "none"))
    fit = trained(method, personal)
    data = fit.world
    rows = tuple(r[:64] for r in data.test)
    short = replace(fit, world=replace(data, test=rows))
    streamed = ac.evaluate(short, adapters=[ADAPTERS[name]], streams=[ac.shifts.Original()]).rows[0]["per_client"]
    _, made = streams_of(short.world, [ac.shifts.Original()])["original"]
    for client in range(3):
        own = made.shards.own(client)
        live = fit.deploy(client, ADAPTERS[name], guard=False)
        hits = answers(live, made.shards.x[own], 32).argmax(-1) == made.shards.y[own]
        assert float(hits.float().mean()) == pytest.approx(streamed[client], abs=1e-6)


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_every_adapter_answers_one_sample_at_a_time(name):
    live = deployed(name, guard=False, window=4)
    if live.adapter.transductive:
        live.prepare(stream(8))
    notes = set()
    for x in stream(9).split(1):
        answer = live(x)
        assert answer.probabilities.shape == (1, 10) and bool(torch.isfinite(answer.probabilities).all())
        assert answer.labels[0] == live.classes[int(answer.classes)]
        notes.add(answer.note)
    if not live.adapter.batch_free:
        assert {"the window fills: 1 of 4 samples", "the window fills: 3 of 4 samples"} <= notes
    assert live.step > 0 or name == "none" or live.adapter.transductive


FREE = [n for n, a in ADAPTERS.items() if a.batch_free]


@pytest.mark.parametrize("name", FREE)
def test_answers_of_a_batch_free_adapter_do_not_depend_on_the_cut(name):
    x, found = stream(12), []
    for size in (12, 5, 1):
        live = deployed(name)
        if live.adapter.transductive:
            live.prepare(x)
        found.append(answers(live, x, size))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tent", "guarded-tent", "t3a"])
def test_the_state_goes_the_same_way_whatever_the_cut(name):
    one, other = deployed(name, window=8), deployed(name, window=8)
    answers(one, stream(40), 8)
    answers(other, stream(40), 3)
    assert one.step == other.step == 5
    for a, b in zip(tree.leaves(one.state), tree.leaves(other.state), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_frozen_model_answers_and_stays():
    live = deployed("tent", window=8)
    answers(live, stream(16), 8)
    live.freeze()
    before = live.state
    assert live(stream(8)).adapted == (True,) * 8 and live.step == 2
    assert tree.leaves(live.state) == tree.leaves(before)
    live.freeze(False)
    live(stream(8))
    assert live.step == 3


def test_a_reset_model_answers_as_at_first_and_a_step_can_come_back():
    live = deployed("tent", window=8)
    first = live(stream(8)).probabilities
    after, state = live(stream(8)).probabilities, live.state
    assert float((first - after).abs().max()) > 0
    live.reset()
    torch.testing.assert_close(live(stream(8)).probabilities, first)
    live.restore(2)
    assert [torch.equal(a, b) for a, b in zip(tree.leaves(live.state), tree.leaves(state), strict=True)]
    with pytest.raises(ValueError, match="restore: step=99 must be one of those kept: 1, 2, 3, 4, 5"):
        live.restore(99)


def test_labels_that_come_late_are_counted_once():
    live = deployed("tent", window=8)
    x, y = stream(8), trained().world.examples.y[trained().world.test[1]][:8]
    answer = live(x)
    right = int((answer.classes == y).sum())
    assert live.feedback(answer.ids, [live.classes[c] for c in y])["accuracy"] == pytest.approx(right / 8)
    assert live.measured["labels"] == 8
    with pytest.raises(ValueError, match=r"feedback: 1-0, 1-1, .* \(8 in all\) are not among"):
        live.feedback(answer.ids, y.tolist())
    again = live(x)
    with pytest.raises(ValueError, match="label 17 must be one of"):
        live.feedback(again.ids[:1], [17])
    assert live.measured["labels"] == 8


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(tmp_path):
    live, other = deployed("guarded-tent", window=8), deployed("guarded-tent", window=8)
    answers(live, stream(20), 5)
    answers(other, stream(20), 5)
    back = ac.load_live(live.save(tmp_path / "me"))
    assert torch.equal(answers(back, stream(40)[20:], 5), answers(other, stream(40)[20:], 5))
    assert back.step == other.step and [s for s, _ in back.snapshots] == [s for s, _ in other.snapshots]
    live.save(tmp_path / "me", overwrite=True)
    assert len(list((tmp_path / "me").iterdir())) == 3
    with pytest.raises(RunError, match="holds a live model"):
        live.save(tmp_path / "me")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(RunError, match="run holds a run; choose another folder for the live model"):
        live.save(tmp_path / "run", overwrite=True)
    (tmp_path / "me" / "config.json").write_text("{}")  # as an earlier version allowed
    live.save(tmp_path / "me", overwrite=True)


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 3, 9, 9, dtype=torch.uint8), r"live: x has shape \(2, 3, 9, 9\), expected \[N, 3, 16, 16\]"),
        (torch.full((1, 3, 16, 16), torch.nan), "live: x holds values that are not finite"),
        (torch.zeros(0, 3, 16, 16), "live: x has no samples"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.int64), "live: x is of type torch.int64"),
        ("digits", "live: x is a str"),
    ],
)
def test_bad_input_changes_nothing(x, words):
    live = deployed("tent", window=4)
    live(stream(6))
    before = live.session
    with pytest.raises(ValueError, match=words):
        live(x)
    assert live.session is before


def test_a_guard_is_there_unless_told_otherwise():
    fit = trained()
    assert fit.deploy(0).adapter == A.Guarded(A.Tent())
    assert fit.deploy(0, guard=False).adapter == A.Tent()
    assert fit.deploy(0, A.T3A(), guard=A.Guarded(policy="skip")).adapter == A.Guarded(A.T3A(), policy="skip")
    assert fit.deploy(0, A.NoAdapt()).adapter == A.NoAdapt()
    with pytest.raises(ValueError, match="guard='yes' must be True, False, or a Guarded"):
        fit.deploy(0, guard="yes")
    with pytest.raises(ValueError, match="THE needs head, descriptors"):
        fit.deploy(0, A.THE())
    with pytest.raises(ValueError, match="client=3 must be from 0 to 2"):
        fit.deploy(3)


def test_a_guarded_answer_says_what_the_guard_saw():
    live = trained().deploy(0)
    answer = live(stream(32, 0))
    assert set(answer.guard) == {"gain", "flips", "foreign", "likely", "surer", "nearer", "moved", "harmful"}
    assert answer.estimate is not None and 0 <= answer.estimate <= 1
    assert live(stream(3, 0)).ids == ("0-32", "0-33", "0-34")


@pytest.mark.parametrize("name", ["bn", "tent", "guarded-tent"])
def test_a_sample_is_predicted_alike_alone_and_among_others(name):
    live = deployed(name, window=8)
    answers(live, stream(24), 8)
    before = live.session
    together = live.predict(stream(12))
    torch.testing.assert_close(
        torch.cat([live.predict(x) for x in stream(12).split(1)]), together, rtol=1e-4, atol=1e-4
    )
    assert live.session is before


@pytest.mark.parametrize("adapter", [A.BNStats(), A.Tent()])
def test_a_newcomer_can_be_asked_one_sample(adapter):
    joined = ac.join(trained(), stream(20), adapter)
    torch.testing.assert_close(joined.predict(stream(3)[2:]), joined.predict(stream(3))[2:], rtol=1e-4, atol=1e-4)
    assert joined(stream(1)).probabilities.shape == (1, 10)


def test_a_guard_of_another_version_is_refused_with_the_remedy(tmp_path):
    live = deployed("tent", guard=True)
    del live.model["reference"]["real"]
    with pytest.raises(RunError, match=r"live\.json: what the guard knows .* another version .* deploy again"):
        ac.load_live(live.save(tmp_path / "old"))
