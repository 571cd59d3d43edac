"""What hides something, by value: the key of a purpose, Box-Muller numbers of ChaCha20, the sign of a mask."""

import hashlib

import numpy as np
import pytest
import torch

from acclimate.core import Mean, Sender, Sum, rng
from acclimate.filters import Masked, chacha
from acclimate.filters.masked import CUT, REAL, WHOLE
from acclimate.filters.secret import normal, secret_key

NAME = "SECRET_OF_THIS_TEST"


def key_of(purpose, secret):
    return hashlib.sha256(b"acclimate\0" + purpose.encode() + b"\0" + secret.encode()).digest()


def test_a_key_is_the_hash_of_purpose_and_secret(monkeypatch):
    monkeypatch.setenv(NAME, "s3")
    assert secret_key(NAME, "noise") == key_of("noise", "s3") != secret_key(NAME, "masks") == key_of("masks", "s3")
    assert secret_key("", "noise") == key_of("noise", "a simulation hides nothing")


def test_noise_under_a_secret_is_box_muller_of_the_stream_that_the_whole_key_names(monkeypatch):
    monkeypatch.setenv(NAME, "s3")
    key = torch.tensor((7 << 32) + 5)
    got = normal(NAME, key, torch.empty(3, 5))
    nonce = [torch.tensor(5), torch.tensor(7), torch.tensor(0)]
    words = chacha.stream(key_of("noise", "s3"), nonce, 30).numpy()
    u, v = (words // 256 / 2**24).reshape(2, 3, 5)
    want = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-5)
    for other in ((7 << 32) + 6, (8 << 32) + 5):  # both halves of the key count
        assert not torch.equal(normal(NAME, torch.tensor(other), torch.empty(3, 5)), got)
    assert normal(NAME, key, torch.empty(3, dtype=torch.float64)).dtype == torch.float64


def test_noise_without_a_secret_follows_from_the_key_alone():
    assert torch.equal(normal("", rng.key(3), torch.empty(4)), rng.normal(rng.key(3), 4))


@pytest.mark.parametrize(("me", "sign"), [(2, 1), (9, -1)])
def test_the_lower_number_adds_the_mask_and_the_higher_one_subtracts_it(me, sign):
    rules = {"d": Sum(), "n": Sum()}
    sender = Sender(rules, torch.tensor(me), torch.tensor(6), torch.tensor([9, 2]))
    up = {"d": torch.tensor([1.5, -2.25, 0.3]), "n": torch.tensor(11)}
    sent = Masked(bits=8).client(up, rng.key(0), sender)
    nonce = [torch.tensor(6), torch.tensor(2), torch.tensor(9)]
    mask = chacha.stream(key_of("masks", "a simulation hides nothing"), nonce, 5)
    plain = torch.tensor([384, -576, 76, 11, 0])  # 0.3 * 256 towards zero; the count of values that were cut comes last
    flat = torch.cat([sent["d"][REAL], sent["n"][WHOLE].reshape(1), sent[CUT][WHOLE].reshape(1)]).to(torch.int64)
    assert torch.equal((flat - plain - sign * mask) % 2**32, torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize(("value", "cut"), [(4095.99, 0), (4096.1, 1), (-4095.99, 0), (-4096.1, 1)])
def test_a_client_may_use_its_share_of_the_range_and_no_more(value, cut):
    """Of 2^31 / 2^16 over eight clients: 4096 each."""
    cohort = torch.arange(8)
    senders = [Sender({"d": Sum()}, c, torch.tensor(0), cohort) for c in cohort]
    sent = [Masked().client({"d": torch.tensor([value])}, rng.key(0), s) for s in senders]
    total = sum(s[CUT][WHOLE].to(torch.int64) for s in sent) % 2**32
    assert total.item() == 8 * cut
    if not cut:
        whole = {"d": {REAL: sum(s["d"][REAL].to(torch.int64) for s in sent)}}
        assert Masked()._plain(whole)["d"].item() == pytest.approx(8 * value, abs=8 * 2**-16)


def test_the_card_says_what_a_secret_protects():
    rules = {"d": Mean()}
    assert Masked().card(rules, 1, 4, 4)["mechanism"] == "pairwise masks, simulated"
    assert "ChaCha20" in Masked(secret=NAME).card(rules, 1, 4, 4)["mechanism"]
