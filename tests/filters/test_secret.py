"""What hides something, by value: the key of a purpose, Box-Muller numbers of ChaCha20, the sign of a mask."""

import hashlib

import numpy as np
import pytest
import torch

from acclimate.core import Mean, Sender, Sum, rng
from acclimate.filters import Masked, chacha, gaussian
from acclimate.filters.masked import CUT, REAL, WHOLE
from acclimate.filters.secret import noise, purpose_key, secret_key

NAME = "SECRET_OF_THIS_TEST"


def key_of(purpose, secret):
    return hashlib.sha256(b"acclimate\0" + purpose.encode() + b"\0" + secret.encode()).digest()


def test_a_key_is_the_hash_of_purpose_and_secret(monkeypatch):
    monkeypatch.setenv(NAME, "s3")
    assert secret_key(NAME, "noise") == key_of("noise", "s3") != secret_key(NAME, "masks") == key_of("masks", "s3")
    assert secret_key("", "noise") == key_of("noise", "a simulation hides nothing")


def test_a_purpose_has_a_key_of_its_own_from_the_run_or_the_environment(monkeypatch):
    run = bytes(range(32))
    assert purpose_key("", run, "noise") == hashlib.sha256(b"acclimate\0noise\0" + run).digest()
    assert purpose_key("", run, "noise") != purpose_key("", run, "cohorts")
    assert purpose_key("", None, "noise") is purpose_key("seed", run, "noise") is None
    monkeypatch.setenv(NAME, "s3")
    assert purpose_key(NAME, run, "noise") == key_of("noise", "s3")


def test_noise_under_a_secret_inverts_the_stream_that_the_whole_key_names():
    """Against SciPy's inverse of the tail, on the grid of a power of two that has 2^20 to 2^21 steps a deviation."""
    stats = pytest.importorskip("scipy.stats")
    key, secret = torch.tensor((7 << 32) + 5), key_of("noise", "s3")
    got = noise(secret, key, torch.empty(3, 5), 0.75, exact=True)
    nonce = [torch.tensor(5), torch.tensor(7), torch.tensor(0)]
    w = chacha.stream(secret, nonce, 60).numpy().reshape(4, 3, 5)
    tail = w[0] / 2**33 + w[1] / 2**65
    want = stats.norm.isf(tail) * 0.75 * np.where(w[3] % 2 == 1, -1, 1)
    np.testing.assert_allclose(got.numpy(), want, atol=2.0**-21)
    assert gaussian.step_of(0.75) == 2.0**-21 and torch.equal(got * 2**21, (got * 2**21).round())
    for other in ((7 << 32) + 6, (8 << 32) + 5):  # both halves of the key count
        assert not torch.equal(noise(secret, torch.tensor(other), torch.empty(3, 5), 0.75, True), got)


def test_noise_without_a_secret_follows_from_the_key_alone():
    torch.testing.assert_close(
        noise(None, rng.key(3), torch.empty(4), 1.0, True), rng.normal(rng.key(3), 4).double(), atol=2.0**-20, rtol=0
    )


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
    whole = {"d": {REAL: sum(s["d"][REAL].to(torch.int64) for s in sent)}}
    least = max(-4096.0, min(4096.0, value))  # what is beyond is sent as the most, so that the sum does not wrap around
    assert Masked()._plain(whole)["d"].item() == pytest.approx(8 * least, abs=8 * 2**-16)


def test_the_card_says_what_a_secret_protects():
    rules = {"d": Mean()}
    assert Masked().card(rules, 1, 4, 4)["mechanism"] == "pairwise masks, simulated"
    card = Masked(secret=NAME).card(rules, 1, 4, 4)
    assert "ChaCha20" in card["mechanism"] and "In one process" in card["assumes"] and "nothing" in card["assumes"]
