"""The server steps and answers of adapters that exchange, against values worked out by other means."""

import math

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import FedCTTA, Latte, RunningStats, Tent, Together
from acclimate.adapters.latte import lowest
from acclimate.core import Worker, rng, tree
from acclimate.core.adapter import Exchanging
from acclimate.live import session
from acclimate.methods import FedAvg
from support import equal, task

KEY = rng.key(0)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("centred", [True, False])
def test_similarity_weighs_moves_by_their_cosines(centred):
    moves = {"a": draw(4, 3), "b": draw(4, 2, 2)}
    flat = torch.cat([moves["a"], moves["b"].reshape(4, 4)], 1)
    flat = flat - sum(flat) / 4 if centred else flat
    down = Together(temperature=0.5, centred=centred).exchange(task(), {}, {"move": moves}, KEY)
    for i in range(4):
        weights = [math.exp(float(F.cosine_similarity(flat[i], flat[j], dim=0)) / 0.5) for j in range(4)]
        for name, part in moves.items():
            mean = sum(w * part[j] for j, w in enumerate(weights)) / sum(weights)
            torch.testing.assert_close(down["own"]["move"][name][i], mean)
    still = Together().exchange(task(), {}, {"move": tree.zeros(moves)}, KEY)
    assert all(bool((x == 0).all()) for x in tree.leaves(still["own"]))


def test_a_client_may_count_itself_like_its_nearest_neighbour():
    moves = draw(4, 6)
    flat = moves - sum(moves) / 4
    down = Together(temperature=0.5, itself="nearest").exchange(task(), {}, {"move": {"m": moves}}, KEY)
    for i in range(4):
        near = [float(F.cosine_similarity(flat[i], flat[j], dim=0)) for j in range(4)]
        near[i] = max(c for j, c in enumerate(near) if j != i)
        weights = [math.exp(c / 0.5) for c in near]
        mean = sum(w * m for w, m in zip(weights, moves, strict=True)) / sum(weights)
        torch.testing.assert_close(down["own"]["move"]["m"][i], mean)
    with pytest.raises(ValueError, match="itself="):
        Together(itself="two")


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("metric", ["cosine", "euclid", "kl"])
def test_fedctta_weighs_clients_by_their_answers_to_noise(metric, released):
    answers, moves = draw(3, 5), draw(3, 2)
    p = answers.softmax(-1)

    def alike(i, j):
        if metric == "cosine":
            return float(F.cosine_similarity(answers[i], answers[j], dim=0))
        if metric == "euclid":
            return -float((answers[i] - answers[j]).square().sum().sqrt())
        return -float((p[i] * (p[i] / p[j]).log()).sum())

    sharp = math.exp if released and metric != "euclid" else lambda x: x
    adapter = FedCTTA(metric=metric, released=released, temperature=0.3)
    own = adapter.exchange(task(), {}, {"answer": answers, "move": {"m": moves}}, KEY)["own"]["move"]["m"]
    for i in range(3):
        weights = [math.exp(sharp(alike(i, j)) / 0.3) for j in range(3)]
        torch.testing.assert_close(own[i], sum(w * moves[j] for j, w in enumerate(weights)) / sum(weights))


def test_latte_keeps_the_lowest_entropies_of_every_class():
    a = {"features": draw(2, 3, 4), "entropy": torch.tensor([[0.1, 0.5, 1.0], [0.2, 0.3, 0.4]])}
    b = {"features": draw(2, 2, 4) + 9, "entropy": torch.tensor([[0.05, 0.7], [0.9, 0.25]])}
    kept = lowest(a, b, 3)
    torch.testing.assert_close(kept["entropy"], torch.tensor([[0.05, 0.1, 0.5], [0.2, 0.25, 0.3]]))
    want = torch.stack([b["features"][0, 0], a["features"][0, 0], a["features"][0, 1]])
    assert torch.equal(kept["features"][0], want)


def test_latte_answers_as_a_loop_over_classes_and_entries_does():
    t, latte = task(), Latte(slots=2, neighbours=1, alpha=0.7, beta=3.0, gamma=0.5, scale=4.0)
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    x = (torch.rand(6, 3, 10, 10, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    out = worker.predict()(model, x)
    unit, p = F.normalize(out.features, dim=-1), out.logits.softmax(-1)
    unsure = (-(p * p.log()).sum(-1) / math.log(5)).tolist()
    other = {"features": F.normalize(draw(5, 1, t.dim), dim=-1), "entropy": torch.full((5, 1), 0.01)}
    state = latte.receive(t, model, latte.init(t, model), other)
    logits, new = latte.step(t, worker.predict(), model, state, x, KEY)
    sent = latte.send(t, worker.predict(), model, new, KEY)
    for c in range(5):
        mine = sorted((unsure[i], i) for i in range(6) if int(out.logits[i].argmax()) == c)[:2]
        entries = sorted([(0.01, other["features"][c, 0]), *((h, unit[i]) for h, i in mine)], key=lambda e: e[0])[:2]
        for b in range(6):
            vector = sum(math.exp(3 * (float(unit[b] @ f) - 1) - 0.5 * h) * f for h, f in entries)
            want = out.logits[b, c] + 0.7 * 4.0 * F.cosine_similarity(vector, unit[b], dim=0)
            torch.testing.assert_close(logits[b, c], want)
        if mine:
            weights = [math.exp(-0.5 * h) for h, _ in mine]
            mean = sum(w * unit[i] for w, (_, i) in zip(weights, mine, strict=True))
            torch.testing.assert_close(sent["prototypes"][c], mean / mean.norm())
            spread = sum(w * h for w, (h, _) in zip(weights, mine, strict=True)) / sum(weights)
            assert float(sent["entropy"][c]) == pytest.approx(spread)
        else:
            assert float(sent["entropy"][c]) == 1.0 and bool((sent["prototypes"][c] == 0).all())


def test_latte_starts_with_rows_that_add_nothing():
    t, latte = task(), Latte(slots=3, neighbours=2)
    model = {"vars": t.init(KEY)}
    for name, count in (("own", 3), ("others", 2)):
        part = latte.init(t, model)[name]
        assert part["features"].shape == (t.num_classes, count, t.dim) and not part["features"].any()
        assert part["entropy"].tolist() == [[1.0] * count] * t.num_classes
    few = Latte(slots=3, neighbours=2)
    x = torch.zeros(1, 3, 10, 10, dtype=torch.uint8)
    worker = Worker(t, FedAvg())
    plain = worker.predict()(model, x).logits
    logits, state = few.step(t, worker.predict(), model, few.init(t, model), x, KEY)
    known = int(plain.argmax())
    others = [c for c in range(t.num_classes) if c != known]
    assert torch.equal(logits[0, others], plain[0, others])  # classes without an entry stay as they are
    assert float(logits[0, known]) == pytest.approx(float(plain[0, known]) + few.alpha * few.scale, rel=1e-5)
    unsure = float(-(plain.softmax(-1) * plain.log_softmax(-1)).sum()) / math.log(t.num_classes)
    sent = few.send(t, worker.predict(), model, state, KEY)["entropy"].tolist()
    assert sent[known] == pytest.approx(unsure) and all(sent[c] == 1.0 for c in others)  # rows of zeros do not count


def test_latte_sends_the_nearest_prototypes_of_others_class_by_class():
    total = {"prototypes": F.normalize(draw(4, 2, 3), dim=-1), "entropy": draw(4, 2).abs()}
    own = Latte(neighbours=2).exchange(task(), {}, total, KEY)["own"]
    for i in range(4):
        for c in range(2):
            alike = total["prototypes"][:, c] @ total["prototypes"][i, c]
            near = sorted({0, 1, 2, 3} - {i}, key=lambda j, alike=alike: -float(alike[j]))[:2]
            assert torch.equal(own["features"][i, c], total["prototypes"][near, c])
            assert torch.equal(own["entropy"][i, c], total["entropy"][near, c])
    few = Latte(neighbours=9).exchange(task(), {}, total, KEY)["own"]
    assert few["features"].shape == (4, 2, 9, 3) and bool((few["features"][:, :, 3:] == 0).all())
    assert bool((few["entropy"][:, :, 3:] == 1).all())


def test_running_statistics_move_as_in_training_and_answer():
    t, adapter = task(), RunningStats(speed=2.0)
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    x = (torch.rand(6, 3, 10, 10, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)
    logits, new = adapter.step(t, worker.predict(), model, adapter.init(t, model), x, KEY)
    start, after = model["vars"]["buffers"], t.apply(model["vars"], x, "train").buffers
    assert set(new["params"]) == set(start)
    want = {name: start[name] + 2 * (after[name] - start[name]) for name in start}
    for name, value in want.items():
        torch.testing.assert_close(new["params"][name], value)
    torch.testing.assert_close(logits, t.apply({**model["vars"], "buffers": want}, x).logits)
    up = Together(adapter).send(t, worker.predict(), model, new, KEY)
    torch.testing.assert_close(up["move"], {name: want[name] - start[name] for name in start})
    assert "needs batch norm" in adapter.refusal(task("cnn-group"), model)


def test_a_lone_live_model_exchanges_with_nobody():
    t = task()
    worker, model = Worker(t, FedAvg()), {"vars": t.init(KEY)}
    x = (torch.rand(8, 3, 10, 10, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)

    def answered(adapter):
        state = session.begin(t, adapter, model, 4, torch.uint8)
        out = []
        for part in x.split(4):
            found = session.request(t, worker.predict(), adapter, model, state, part, KEY, torch.tensor(True))
            out, state = [*out, found.logits], found.state
        return {"logits": torch.cat(out), "state": state}

    for adapter in (Together(), Together(weights="uniform"), FedCTTA()):
        assert equal(answered(adapter), answered(Tent()))


def test_fedctta_sends_one_answer_the_mean_over_the_noise():
    t, adapter = task(), FedCTTA(noise=3)
    model = {"vars": t.init(KEY)}
    state = adapter.init(t, model)
    params = {**model["vars"]["params"], **state["params"]}
    noise = rng.uniform(rng.key(adapter.seed), 3, 3, 10, 10)
    seen = [t.apply({**model["vars"], "params": params}, x[None], "eval").logits[0] for x in noise]

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    sent = adapter.send(t, predict, model, state, KEY)
    torch.testing.assert_close(sent["answer"], sum(seen) / 3)


def test_the_base_record_exchanges_nothing():
    base = Exchanging()
    assert base.uplink == {} and base.send(task(), None, {}, {}, KEY) == {} and base.every == 1
    assert base.exchange(task(), {}, {}, KEY) == {} and base.receive(task(), {}, {"a": 1}, {}) == {"a": 1}
