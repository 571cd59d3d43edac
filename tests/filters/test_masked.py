"""Pairwise masks: the cipher, the exact sum, what the server sees, and every reason to refuse a round."""

import pytest
import torch
from filtered import trained
from torch.func import vmap

from acclimate.core import Arrived, Gather, Mean, Sender, Sum, message, rng, tree
from acclimate.filters import Masked, chacha, sums
from acclimate.filters.masked import CUT, REAL
from acclimate.methods import SCAFFOLD, FedAvg
from support import gap

RULES = {"delta": Mean("n"), "n": Sum(), "plain": Mean()}
COHORT = torch.tensor([3, 0, 7, 12])


def ups(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "delta": {"w": torch.randn(4, 3, 5, generator=g)},
        "n": torch.tensor([5, 40, 7, 11]),
        "plain": torch.randn(4, 6, generator=g),
    }


def sent(record, up, round=2, cohort=COHORT):
    def one(up, who):
        return record.client(up, rng.key(0), Sender(RULES, who, torch.tensor(round), cohort))

    return vmap(one)(up, cohort)


def summed(record, masked, count=4, expected=4):
    part = message.partial(record.uplink(RULES), COHORT, masked)
    total = message.finish(record.uplink(RULES), part, COHORT)
    return record.server(total, rng.key(0), Arrived(RULES, count, expected))


def test_the_stream_is_chacha20_of_rfc_8439():
    key = bytes(range(32))
    nonce = [torch.tensor(int.from_bytes(bytes.fromhex(h), "little")) for h in ("00000009", "0000004a", "00000000")]
    block = chacha.stream(key, nonce, 16, counter=1)  # Section 2.3.2
    assert [f"{w:08x}" for w in block.tolist()[:5]] == ["e4e7f110", "15593bd1", "1fdd0f50", "c47120a3", "c7f4d1c7"]
    assert [f"{w:08x}" for w in block.tolist()[-2:]] == ["e883d0cb", "4e3c50a2"]
    long = chacha.stream(key, nonce, 37)
    assert torch.equal(long[16:32], block) and len(long) == 37


def test_the_sum_is_exact_to_the_quantisation():
    up = ups()
    part = message.partial(RULES, COHORT, up)
    plain = message.finish(RULES, part, COHORT)
    got = summed(Masked(), sent(Masked(), up))
    assert got["n"].item() == 63
    assert gap(plain["delta"], got["delta"]) < 4 * 2**-16 / 63 + 1e-6  # a step at most per client, over the weights
    assert gap(plain["plain"], got["plain"]) < 2**-16 + 1e-6
    coarse = summed(Masked(bits=4), sent(Masked(bits=4), up))
    assert 1e-3 < gap(plain["plain"], coarse["plain"]) < 2**-4


def test_the_server_sees_noise_in_every_single_message():
    up = tree.map(lambda x: x[:, None].expand(4, 4000).clone(), {"delta": torch.ones(4), "plain": torch.ones(4)})
    masked = sent(Masked(), {**up, "n": torch.ones(4, dtype=torch.int64)})
    words = masked["plain"][REAL].double()
    assert words.dtype == torch.float64 and masked["plain"][REAL].dtype == torch.int32
    assert float(words.std() / 2**32) == pytest.approx(12**-0.5, rel=0.03)  # uniform over all 32-bit numbers
    assert abs(float(torch.corrcoef(words)[0, 1])) < 0.06
    assert not torch.equal(masked["plain"][REAL], sent(Masked(), {**up, "n": torch.ones(4)}, round=3)["plain"][REAL])


def test_messages_take_four_bytes_a_number():
    up = ups()
    assert tree.nbytes(sent(Masked(), up)) // 4 == 4 * (15 + 1 + 6 + 1)


def test_a_lost_client_is_refused():
    with pytest.raises(ArithmeticError, match="3 of 4 clients answered, so the masks do not cancel"):
        summed(Masked(), sent(Masked(), ups()), count=3)


def test_a_cohort_of_one_has_nobody_to_mask_with():
    one = {"delta": {"w": torch.ones(1, 3)}, "n": torch.tensor([5]), "plain": torch.ones(1, 6)}
    with pytest.raises(ValueError, match="Masked: a cohort of 1 has no pair to mask for; it needs 2"):
        sent(Masked(), one, cohort=COHORT[:1])


@pytest.mark.parametrize("value", [1e9, -1e9, 1e30, -1e30, torch.nan, torch.inf, -torch.inf])
def test_what_would_overflow_is_refused_and_counted(value):
    up = ups()
    up["plain"][1, :2] = value
    with pytest.raises(ArithmeticError, match=r"2 values were beyond 2\^15 / 4 clients; lower bits=16"):
        summed(Masked(), sent(Masked(), up))


def test_a_secret_that_is_not_set_is_named_and_two_secrets_make_two_masks(monkeypatch):
    record = Masked(secret="MASK_SECRET_OF_THIS_TEST")
    with pytest.raises(ValueError, match="MASK_SECRET_OF_THIS_TEST"):
        sent(record, ups())
    masks = []
    for secret in ("a", "b"):
        monkeypatch.setenv("MASK_SECRET_OF_THIS_TEST", secret)
        masks.append(sent(record, ups())["plain"][REAL])
    assert not torch.equal(*masks)
    assert (
        "nothing" in Masked().card(RULES, 1, 4, 4)["protects"] and "server" in record.card(RULES, 1, 4, 4)["protects"]
    )


def test_a_message_of_one_number_is_a_sum_too():
    rules = {"d": Sum()}
    sent = [
        Masked().client({"d": torch.tensor(0.5 * i)}, rng.key(0), Sender(rules, c, torch.tensor(0), COHORT))
        for i, c in enumerate(COHORT)
    ]
    total = tree.map(lambda *x: sum(t.to(torch.int64) for t in x), *sent)
    assert Masked().server(total, rng.key(0), Arrived(rules, 4, 4))["d"].item() == 3.0
    assert sums.from_sums({"d": torch.tensor(6.0)}, Arrived({"d": Mean()}, 4, 4))["d"].item() == 1.5


def test_only_sums_can_be_hidden():
    assert "['each'] are gathered" in Masked().refusal({"each": Gather()})
    assert "whose own rule must be Sum()" in Masked().refusal({"d": Mean("n"), "n": Mean()})
    assert CUT in Masked().uplink(RULES)


@pytest.mark.parametrize("method", [FedAvg(), SCAFFOLD()], ids=lambda m: type(m).__name__)
def test_training_under_masks_is_training(method):
    plain, hidden = trained(method, ()), trained(method, (Masked(bits=18),))
    assert gap(plain.server, hidden.server) < 1e-4
