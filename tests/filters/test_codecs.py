"""Compression: what comes back, what it costs, and that the error is what the format allows."""

import pytest
import torch
from filtered import trained
from torch.func import vmap

from acclimate.core import Mean, Sender, Sum, rng, tree
from acclimate.filters import FP16, Int8, TopK
from acclimate.methods import FedAvg

SENDER = Sender({"delta": Mean("n"), "n": Sum()}, torch.tensor(0), torch.tensor(0))

LARGE = 1.0020020008087158
"""LARGE / (LARGE / 127) is above 127 in single precision."""


def message(seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"delta": {"w": torch.randn(20, 50, generator=g), "b": torch.randn(4, generator=g)}, "n": torch.tensor(9)}


def there_and_back(codec, up):
    sent = codec.client(up, rng.key(3), SENDER)
    return sent, codec.arrive(sent)


def test_fp16_halves_the_bytes():
    up = message()
    sent, back = there_and_back(FP16(), up)
    assert tree.nbytes(sent) == tree.nbytes(up["delta"]) // 2 + 8
    assert torch.equal(back["delta"]["w"], up["delta"]["w"].half().float()) and back["n"] is up["n"]
    overflown = there_and_back(FP16(), {**up, "delta": {"w": torch.tensor([1e5])}})[0]
    assert not tree.finite(overflown)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_int8_is_off_by_at_most_a_step(rounding):
    up = message()
    sent, back = there_and_back(Int8(rounding=rounding), up)
    assert tree.nbytes(sent) == (1000 + 4) + (4 + 4) + 8
    step = up["delta"]["w"].abs().max() / 127
    error = (back["delta"]["w"] - up["delta"]["w"]).abs().max() / step
    assert error <= (1.0 if rounding == "stochastic" else 0.5) + 1e-4
    assert there_and_back(Int8(), {"z": torch.zeros(9)})[1]["z"].tolist() == [0.0] * 9
    assert not tree.finite(Int8().client({"z": torch.full((9,), torch.nan)}, rng.key(0), SENDER))


def test_stochastic_rounding_is_right_on_average():
    x = torch.tensor([1.0, 0.3 / 127, -0.7 / 127, 0.0, 0.5])
    keys = rng.bits(rng.key(1), 20_000)
    codec = Int8()
    mean = vmap(lambda k: codec.decode(codec.encode(x, k)))(keys).mean(0)
    torch.testing.assert_close(mean, x, rtol=0, atol=3 * 0.5 / 127 / 20_000**0.5 + 1e-6)
    nearest = Int8(rounding="nearest")
    assert nearest.decode(nearest.encode(x, rng.key(0)))[1] == 0.0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_entry_never_wraps_to_the_other_sign(sign):
    """In single precision 127 + 0.9999999 is 128 and x / (|x| / 127) may lie above 127, so codes must be bounded."""
    x = sign * torch.full((1 << 20,), LARGE)
    pieces = Int8().encode(x, rng.key(2))
    assert pieces["int8.codes"].unique().tolist() == [int(127 * sign)]
    assert float(pieces["int8.scale"]) == pytest.approx(LARGE / 127)


def test_small_tensors_are_sent_as_they_are_where_codes_would_not_save_a_byte():
    for size, smaller in ((1, False), (2, True)):  # 4 bytes against 1 + 4; 8 against 2 + 4
        x = torch.ones(size)
        assert (Int8().encode(x, rng.key(0)) is not x) == smaller
    half, more = (
        torch.ones(4, dtype=torch.float16),
        torch.ones(5, dtype=torch.float16),
    )  # 8 against 4 + 4, 10 against 5 + 4
    assert Int8().encode(half, rng.key(0)) is half and Int8().encode(more, rng.key(0)) is not more
    assert FP16().encode(half, rng.key(0)) is half


def test_top_k_sends_places_and_values():
    up = message()
    sent, back = there_and_back(TopK(share=0.05), up)
    assert tree.nbytes(sent) == 50 * 8 + 1 * 8 + 8  # index and value of 50 of 1000 and of 1 of 4, and the count
    kept = back["delta"]["w"] != 0
    assert kept.sum() == 50 and torch.equal(back["delta"]["w"][kept], up["delta"]["w"][kept])
    assert up["delta"]["w"].abs()[kept].min() >= up["delta"]["w"].abs()[~kept].max()
    assert back["delta"]["w"].shape == (20, 50)


def test_top_k_sends_tensors_whole_where_that_is_smaller():
    up = message()
    sent, back = there_and_back(TopK(share=0.5), up)
    assert sent["delta"]["w"] is up["delta"]["w"] and back["delta"]["w"] is up["delta"]["w"]


@pytest.mark.parametrize(
    ("size", "share", "dtype", "sent"),
    [
        (15, 0.45, torch.float32, 7),  # 7 * 8 bytes against 60
        (16, 0.5, torch.float32, None),  # 8 * 8 against 64
        (31, 0.33, torch.float16, None),  # 11 * 6 against 62
        (31, 0.32, torch.float16, 10),  # 10 * 6 against 62
        (1000, 0.3, torch.float32, 300),  # 0.3 * 1000 is above 300 in floating point, and no entry more is sent
    ],
)
def test_top_k_sends_places_where_they_and_the_values_are_smaller(size, share, dtype, sent):
    x = torch.arange(size).to(dtype)
    got = TopK(share=share).encode(x, rng.key(0))
    assert got is x if sent is None else got["topk.value"].sort().values.tolist() == list(range(size - sent, size))


def test_codecs_stack_and_groups_can_be_chosen():
    up = message()
    sent = Int8().client(TopK(share=0.05).client(up, rng.key(0), SENDER), rng.key(1), SENDER)
    assert tree.nbytes(sent) < 50 * 4 + 50 + 40
    back = TopK(share=0.05).arrive(Int8().arrive(sent))
    assert (back["delta"]["w"] != 0).sum() <= 50 and back["delta"]["w"].shape == (20, 50)
    assert there_and_back(FP16(groups=("n",)), up)[0]["delta"]["w"] is up["delta"]["w"]


def test_training_goes_on_with_fewer_bytes():
    plain = trained(FedAvg(), ())
    for codec, share, lost in ((FP16(), 0.51, 1e-3), (Int8(), 0.32, 2e-2), (TopK(), 0.27, 1.0)):
        small = trained(FedAvg(), (codec,))
        assert small.cost["up"] <= share * plain.cost["up"], codec
        pairs = zip(tree.leaves(plain.server), tree.leaves(small.server), strict=True)
        assert max(float((a - b).abs().max()) for a, b in pairs) < lost, codec
        assert small.cost["up"] == 2 * 5 * sum(part["bytes"] for part in small.cost["message"]), codec
