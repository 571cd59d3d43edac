"""The memories of RoTTA and NOTE against plain Python lists, and batch norm over what they hold."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import vmap

from acclimate.core import rng, tree
from acclimate.core.nn.iabn import InstanceAwareBatchNorm
from acclimate.core.nn.layers import PureBatchNorm
from acclimate.ops import memories
from acclimate.ops.memory_norms import MemoryNorm, RobustNorm

CLASSES = 4
TASK = SimpleNamespace(num_classes=CLASSES, head_weight="w", shape=(2,))
MODEL = {"vars": {"params": {"w": torch.zeros(CLASSES, 3)}}}
SHARES = {"uniform": [0.25] * 4, "client": [0.5, 0.28, 0.16, 0.06]}


def stream(count, seed=0):
    """Classes in waves, the last one rare; entropies between 0 and ln C; the sample says when it came."""
    draw = random.Random(seed)
    label = [draw.choice([i // 60 % 3] * 9 + [3] + list(range(4))) for i in range(count)]
    entropy = [draw.random() * math.log(CLASSES) for _ in range(count)]
    x = [[float(i), float(label[i])] for i in range(count)]
    return torch.tensor(x), torch.tensor(label), torch.tensor(entropy)


class TimelyList:
    """RoTTA's memory as a dict of lists of [age, entropy, when it came]."""

    def __init__(self, capacity, share, timeliness, uncertainty):
        self.lists = {c: [] for c in range(CLASSES)}
        self.capacity, self.share, self.weights = capacity, share, (timeliness, uncertainty)

    def score(self, age, entropy):
        timely = 1 / (1 + math.exp(-age / self.capacity))
        return self.weights[0] * timely + self.weights[1] * entropy / math.log(CLASSES)

    def takes_from(self, classes, score):
        worst = max(((self.score(*item[:2]), c, item) for c in classes for item in self.lists[c]), key=lambda t: t[0])
        if worst[0] > score:
            self.lists[worst[1]].remove(worst[2])
            return True
        return False

    def room(self, label, score):
        held = {c: len(items) for c, items in self.lists.items()}
        if held[label] >= self.capacity * self.share[label]:
            return self.takes_from([label], score)
        if sum(held.values()) < self.capacity:
            return True
        fill = {c: n / self.share[c] for c, n in held.items()}
        return self.takes_from([c for c in fill if fill[c] == max(fill.values())], score)

    def add(self, when, label, entropy):
        if self.room(label, self.score(0, entropy)):
            self.lists[label].append([0, entropy, when])
        for items in self.lists.values():
            for item in items:
                item[0] += 1


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize(("capacity", "weights"), [(10, (1.0, 1.0)), (7, (0.3, 2.0)), (30, (1.0, 0.0))])
def test_the_timely_memory_is_that_of_a_python_list_over_500_samples(kind, capacity, weights):
    share = torch.tensor(SHARES[kind])
    x, label, entropy = stream(500)
    ours = memories.empty(TASK, MODEL, capacity, "age", "entropy")
    theirs = TimelyList(capacity, share.tolist(), *weights)
    full = 0
    for at in range(0, 500, 25):  # batches of 20 and 5: the cut does not matter
        for part in (slice(at, at + 20), slice(at + 20, at + 25)):
            ours = memories.add_timely(ours, x[part], label[part], entropy[part], share, *weights)
        for i in range(at, at + 25):
            theirs.add(i, int(label[i]), float(entropy[i]))
        held = ours["held"] > 0
        got = sorted(
            (int(when), int(c), int(age), round(float(h), 5))
            for when, c, age, h in zip(
                ours["x"][held, 0], ours["label"][held], ours["age"][held], ours["entropy"][held], strict=True
            )
        )
        want = sorted((w, c, age, round(h, 5)) for c, items in theirs.lists.items() for age, h, w in items)
        assert got == want
        assert torch.equal(ours["x"][held, 1].long(), ours["label"][held])
        assert ours["x"][held, 0].tolist() == sorted(w for w, *_ in want)  # in the order in which they came
        assert held.tolist() == sorted(held.tolist(), reverse=True)  # free places are the last
        full += int(held.sum()) == capacity
    assert full > 2


def test_of_equal_scores_the_sample_that_is_held_stays():
    share, label = torch.tensor(SHARES["uniform"]), torch.zeros(6, dtype=torch.int64)
    x, entropy = torch.arange(6.0)[:, None].expand(6, 2), torch.full((6,), 0.5)
    memory = memories.empty(TASK, MODEL, 8, "age", "entropy")
    alike = memories.add_timely(memory, x, label, entropy, share, timeliness=0.0)
    assert alike["x"][alike["held"] > 0, 0].tolist() == [0, 1]
    late = memories.add_timely(memory, x, label, entropy, share, timeliness=1.0)  # the older one goes
    assert late["x"][late["held"] > 0, 0].tolist() == [4, 5]


def test_the_balanced_reservoir_is_that_of_a_python_list_over_500_samples():
    capacity, share = 12, torch.tensor(SHARES["uniform"])
    x, label, _ = stream(500, seed=4)
    key = rng.key(7)
    ours = {**memories.empty(TASK, MODEL, capacity), "seen": torch.zeros(CLASSES)}
    places, seen = [], [0] * CLASSES
    keys = rng.rows(key, 500)
    for i in range(500):
        c = int(label[i])
        seen[c] += 1
        held = [sum(1 for _, other in places if other == k) for k in range(CLASSES)]
        draws = rng.uniform(rng.fold(keys[i], "place"), capacity).tolist()
        if len(places) < capacity:
            places.append((i, c))
        else:
            largest = [k for k in range(CLASSES) if held[k] == max(held)]
            wanted = largest if c not in largest else [c]
            at = max((p for p in range(capacity) if places[p][1] in wanted), key=lambda p: draws[p])
            if c not in largest or float(rng.uniform(rng.fold(keys[i], "chance"))) < held[c] / seen[c]:
                places[at] = (i, c)
        if i % 50 == 49:  # a batch of 30 and one of 20
            for start, stop in ((i - 49, i - 19), (i - 19, i + 1)):
                ours = memories.add_balanced(ours, x[start:stop], label[start:stop], share, rng.advance(key, start))
            assert [(int(w), int(k)) for w, k in zip(ours["x"][:, 0], ours["label"], strict=True)] == places
            assert ours["seen"].tolist() == seen
    assert max(held) - min(held) <= 2 < max(seen) / min(seen)  # classes balance, though one is rare


def test_a_reservoir_balances_around_the_shares_it_is_given():
    share = torch.tensor(SHARES["client"])
    ours = {**memories.empty(TASK, MODEL, 20), "seen": torch.zeros(CLASSES)}
    for i in range(8):
        label = torch.arange(40) % CLASSES
        x = torch.stack((label, label), -1).float()
        ours = memories.add_balanced(ours, x, label, share, rng.key(i))
    assert memories.held_per_class(ours, CLASSES).tolist() == pytest.approx([10, 5.6, 3.2, 1.2], abs=1)


def test_a_class_of_the_reservoir_holds_early_and_late_samples_alike():
    """A reservoir of one class keeps every sample with the same chance."""
    share, x = torch.tensor(SHARES["uniform"]), torch.arange(60.0)[:, None].expand(60, 2)
    memory = {**memories.empty(TASK, MODEL, 12), "seen": torch.zeros(CLASSES)}
    label = torch.zeros(60, dtype=torch.int64)
    kept = vmap(lambda k: memories.add_balanced(memory, x, label, share, k)["x"])(rng.rows(rng.key(0), 300))
    total = torch.bincount(kept[..., 0].flatten().long(), minlength=60) / 300
    assert [float(t.mean()) for t in total.split(20)] == pytest.approx([0.2] * 3, abs=0.02)


def test_memories_of_several_clients_fill_side_by_side():
    share = torch.tensor(SHARES["uniform"])
    one = memories.empty(TASK, MODEL, 8, "age", "entropy")
    parts = [stream(40, seed) for seed in (1, 2)]
    alone = [memories.add_timely(one, *p, share) for p in parts]
    both = vmap(lambda m, x, y, h: memories.add_timely(m, x, y, h, share))(
        tree.stack([one, one]), *(torch.stack(t) for t in zip(*parts, strict=True))
    )
    for i in range(2):
        assert all(torch.equal(both[k][i], alone[i][k]) for k in one)
    two = {**memories.empty(TASK, MODEL, 8), "seen": torch.zeros(CLASSES)}
    draws = rng.rows(rng.key(3), 2)
    drawn = vmap(lambda m, x, y, k: memories.add_balanced(m, x, y, share, k))(
        tree.stack([two, two]), *(torch.stack(t) for t in zip(*(p[:2] for p in parts), strict=True)), draws
    )
    for i in range(2):
        lone = memories.add_balanced(two, *parts[i][:2], share, draws[i])
        assert all(torch.equal(drawn[k][i], lone[k]) for k in two)


def test_pixels_are_kept_as_floats_and_steps_come_at_multiples():
    assert memories.pixels(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert memories.pixels(torch.tensor([0.5])).tolist() == [0.5]
    found = [bool(memories.due(torch.tensor(a), n, 64)) for a, n in ((0, 63), (0, 64), (63, 1), (64, 32), (100, 60))]
    assert found == [False, True, True, False, True]
    assert memories.too_small(TASK, 4, "Some") is None
    assert memories.too_small(TASK, 3, "Some") == "Some: capacity=3 must be at least the number of classes, 4"


@pytest.mark.parametrize("kind", [PureBatchNorm, InstanceAwareBatchNorm])
def test_statistics_are_those_of_the_samples_that_are_held(kind):
    g = torch.Generator().manual_seed(2)
    x, held = torch.randn(5, 3, 4, 4, generator=g) * 3 + 1, torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])
    real = x[held > 0].numpy().astype(np.float64)
    mean, var, count = real.mean((0, 2, 3)), real.var((0, 2, 3)), 3 * 16
    old = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, 0.5])

    def layer():
        new = kind(3)
        new.running_mean, new.running_var = (torch.tensor(o, dtype=torch.float32) for o in old)
        return new

    robust = layer()
    got = RobustNorm(0.2, held).normalise(robust, x).detach().numpy()
    used = 0.8 * old[0] + 0.2 * mean, 0.8 * old[1] + 0.2 * var
    np.testing.assert_allclose(robust.running_mean, used[0], rtol=1e-5)
    np.testing.assert_allclose(robust.running_var, used[1], rtol=1e-5)
    shape = (1, 3, 1, 1)
    want = (x.numpy() - used[0].reshape(shape)) / np.sqrt(used[1].reshape(shape) + 1e-5)
    if kind is InstanceAwareBatchNorm:  # its own way with these statistics, in evaluation
        want = robust.eval()(x).detach()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    note = layer()
    got = MemoryNorm(0.2, held).normalise(note, x).detach().numpy()[held > 0]
    unbiased = var * count / (count - 1)
    np.testing.assert_allclose(note.running_mean, 0.8 * old[0] + 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(note.running_var, 0.8 * old[1] + 0.2 * unbiased, rtol=1e-5)
    plain = (real - mean.reshape(shape)) / np.sqrt(unbiased.reshape(shape) + 1e-5)
    if kind is PureBatchNorm:
        np.testing.assert_allclose(got, plain, rtol=1e-4, atol=1e-5)
    else:  # as the layer itself normalises the held samples, in training mode
        np.testing.assert_allclose(got, layer().train()(x[held > 0]).detach(), rtol=1e-4, atol=1e-5)
