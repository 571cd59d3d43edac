from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acclimate.core import message, tree
from acclimate.core.message import Gather, Mean, Sum
from acclimate.core.nn import rehearsal
from support import equal

RULES = {"delta": Mean("n"), "n": Sum(), "plain": Mean(), "proto": Mean("count"), "count": Sum(), "each": Gather()}


def replies(clients, seed):
    g = torch.Generator().manual_seed(seed)
    count = torch.randint(0, 3, (clients, 2), generator=g)
    return {
        "delta": {"w": torch.randn(clients, 3, generator=g)},
        "n": torch.randint(1, 50, (clients,), generator=g),
        "plain": torch.randn(clients, 2, 2, generator=g),
        "proto": torch.randn(clients, 2, 4, generator=g),
        "count": count,
        "each": torch.arange(clients).float()[:, None] * 10,
    }


def by_hand(ups):
    n, count = ups["n"].double(), ups["count"].double()
    proto = torch.zeros(2, 4, dtype=torch.float64)
    for k in range(2):
        if count[:, k].sum() > 0:
            proto[k] = (count[:, k, None] * ups["proto"][:, k].double()).sum(0) / count[:, k].sum()
    return {
        "delta": {"w": (n[:, None] * ups["delta"]["w"].double()).sum(0) / n.sum()},
        "n": ups["n"].sum(),
        "plain": ups["plain"].double().mean(0),
        "proto": proto,
        "count": ups["count"].sum(0),
        "each": ups["each"],
    }


@given(st.integers(1, 9), st.integers(0, 10_000), st.data())
def test_any_way_of_cutting_gives_the_same_total(clients, seed, data):
    ups, ids = replies(clients, seed), torch.arange(clients) * 3
    order = torch.tensor(data.draw(st.permutations(range(clients))))
    cuts = sorted(data.draw(st.lists(st.integers(1, clients), max_size=3, unique=True)))
    parts = []
    for rows in order.tensor_split(cuts):
        if len(rows):
            parts.append(message.partial(RULES, ids[rows], tree.take(ups, rows)))
    whole = parts[0]
    for p in parts[1:]:
        whole = message.combine(whole, p)
    total = message.finish(RULES, whole, ids)
    for name, expected in by_hand(ups).items():
        for a, b in zip(tree.leaves(total[name]), tree.leaves(expected), strict=True):
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5)


def test_gathered_rows_follow_the_cohort():
    ups, cohort = replies(4, 0), torch.tensor([7, 2, 9, 4])
    a = message.partial(RULES, cohort[2:], tree.take(ups, torch.tensor([2, 3])))
    b = message.partial(RULES, cohort[:2], tree.take(ups, torch.tensor([0, 1])))
    assert torch.equal(message.finish(RULES, message.combine(a, b), cohort)["each"], ups["each"])


def test_padding_clients_do_not_count_whatever_they_hold():
    ups = replies(5, 1)
    bad = tree.map(lambda x: x.clone(), ups)
    for leaf in tree.leaves(bad):
        leaf[3:] = float("nan") if leaf.is_floating_point() else 10**6
    present = torch.tensor([True, True, True, False, False])
    padded = message.partial(RULES, torch.arange(5), bad, present)
    plain = message.partial(RULES, torch.arange(3), tree.take(ups, slice(3)))
    for name in ("sums", "weights"):
        for x, y in zip(tree.leaves(getattr(padded, name)), tree.leaves(getattr(plain, name)), strict=True):
            torch.testing.assert_close(x, y)


def test_wrong_messages_are_named():
    up = {"delta": {"w": torch.ones(1)}, "n": torch.ones(())}
    message.check_message({"delta": Mean("n"), "n": Sum()}, up, "M")
    with pytest.raises(ValueError, match=r"M: the message lacks \['n'\]"):
        message.check_message({"delta": Mean(), "n": Sum()}, {"delta": up["delta"]}, "M")
    with pytest.raises(ValueError, match=r"M: the message has \['n'\]"):
        message.check_message({"delta": Mean()}, up, "M")
    with pytest.raises(ValueError, match=r"Mean\('k'\) of group 'delta' names no group"):
        message.check_message({"delta": Mean("k"), "n": Sum()}, up, "M")
    with pytest.raises(TypeError, match=r"message\['n'\] must be a tensor"):
        message.check_message({"delta": Mean(), "n": Sum()}, {**up, "n": 3}, "M")


def test_description_counts_bytes():
    parts = message.describe({"delta": {"params": {"w": torch.ones(2, 3)}}, "n": torch.ones((), dtype=torch.int64)})
    assert [(p["group"], p["name"], p["shape"], p["bytes"]) for p in parts] == [
        ("delta", "params/w", [2, 3], 24),
        ("n", "", [], 8),
    ]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_a_mean_of_no_weight_is_zero(kind):
    sums = {"a": torch.tensor([[6, 9], [4, 1], [8, 2]], dtype=kind), "b": torch.tensor([5, 7, 2], dtype=kind)}
    weight = torch.tensor([2.0, 0.0, 1e-50 if kind == torch.float64 else 4.0], dtype=torch.float32)
    part = message.Partial(torch.arange(3), {"g": sums}, {"g": weight}, {})
    found = message.finish({"g": message.Mean("w")}, part, torch.arange(3))["g"]
    last = [0.0, 0.0, 0.0] if kind == torch.float64 else [2.0, 0.5, 0.5]  # 1e-50 is no float32
    assert found["a"].tolist() == [[3.0, 4.5], [0.0, 0.0], last[:2]] and found["b"].tolist() == [2.5, 0.0, last[2]]
    alone = message.Partial(torch.arange(3), {"g": sums["b"]}, {"g": torch.tensor(2.0)}, {})
    assert message.finish({"g": message.Mean("w")}, alone, torch.arange(3))["g"].tolist() == [2.5, 3.5, 1.0]


@pytest.mark.parametrize("rehearsed", [True, False])
def test_a_rehearsal_of_the_sums_meets_what_the_server_does_with_them(monkeypatch, rehearsed):
    """Its kernels are compiled with those of the clients: means of each group, and whether a whole state is finite."""
    ups, ids, divided, looked = replies(4, 0), torch.arange(4), [], []
    ups["delta"]["b"] = torch.ones(4, 1)
    means, finite = message.weighted.means, message.soundness.finite
    monkeypatch.setattr(message.weighted, "means", lambda x, w: divided.append((*x, w)) or means(x, w))
    monkeypatch.setattr(message.soundness, "finite", lambda a: looked.append(a) or finite(a))
    monkeypatch.setattr(rehearsal, "_running", [set()] if rehearsed else [])
    part = message.partial(RULES, ids, ups)
    wanted = [[*tree.leaves(part.sums[name]), part.weights[name]] for name in ("delta", "plain", "proto")]
    assert [len(x) for x in divided] == ([3, 2, 2] if rehearsed else [])
    assert all(map(torch.equal, chain(*divided), chain(*wanted)))
    mean = message.finish(RULES, part, ids)["delta"]
    assert len(looked) == rehearsed and all(equal(each, mean) for each in looked)
