"""Devices that a user names: those that are not there are refused before anything is put on them."""

import re

import pytest
import torch

from acclimate.ops.devices import device_of
from acclimate.serving import checkpoint


@pytest.fixture
def gpus(monkeypatch):
    """Pretends that torch sees so many GPUs."""

    def see(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return see


@pytest.mark.parametrize(
    ("count", "name", "says"),
    [
        (0, "cuda", "device='cuda' but torch sees no CUDA device; use device=cpu, or see `acclimate doctor`"),
        (0, "cuda:9", "device='cuda:9' but torch sees no CUDA device; use device=cpu, or see `acclimate doctor`"),
        (1, "cuda:1", "device='cuda:1' but torch sees 1 CUDA device, cuda:0 alone"),
        (4, "cuda:9", "device='cuda:9' but torch sees 4 CUDA devices, cuda:0 to cuda:3"),
        (1, "tpu", "device='tpu' must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_device_that_is_not_there_is_refused(gpus, count, name, says):
    gpus(count)
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        device_of(name)


def test_devices_that_are_there(gpus):
    gpus(2)
    assert [str(device_of(name)) for name in ("auto", "cuda", "cuda:0", "cuda:1", "cpu")] == [
        "cuda",
        "cuda",
        "cuda:0",
        "cuda:1",
        "cpu",
    ]
    gpus(0)
    assert str(device_of("auto")) == "cpu"


def test_a_server_of_live_models_refuses_it_as_an_option(gpus):
    gpus(1)
    with pytest.raises(ValueError, match="^--device 'cuda:3' but torch sees 1 CUDA device, cuda:0 alone$"):
        checkpoint.on([], "cuda:3")
