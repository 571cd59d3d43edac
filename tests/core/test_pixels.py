"""Images normalised by one kernel, against torch's own operations: to the bit, with room for a fourth channel.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from acclimate.core import Task
from acclimate.core.nn import kernels, pixels
from acclimate.core.nn.mapping import lowest
from acclimate.models import CNN

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


def images(channels: int) -> Tensor:
    return torch.arange(256).repeat(3).to(torch.uint8)[: 2 * 2 * channels * 5 * 7].view(2, 2, channels, 5, 7)


def task(channels: int, dtype: torch.dtype | None = None) -> Task:
    mean, std = (0.49, 0.48, 0.45)[:channels], (0.2, 0.19, 0.21)[:channels]
    return Task(CNN(widths=(2,), kernel=3, hidden=2), (channels, 5, 7), 3, mean, std, dtype=dtype)


@works
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_numbers_are_those_of_torch_to_the_bit(channels: int, dtype: torch.dtype | None) -> None:
    t, x = task(channels, dtype), images(channels)
    ours = vmap(t._input)(x.to(HERE))
    true = torch.stack([t.normalise(a) for a in x]).to(dtype or torch.float32)
    cut = dtype is not None and kernels.INTERPRETED  # the interpreter cuts numbers off where a GPU rounds them
    torch.testing.assert_close(ours.cpu(), true, rtol=2**-7 if cut else 0, atol=0)
    twice = vmap(vmap(t._input))(x.flatten(0, 1)[None, :, None].to(HERE))
    assert torch.equal(twice.flatten(0, 2), ours.flatten(0, 1))


@works
def test_without_a_mean_pixels_are_scaled_alone() -> None:
    t = Task(CNN(widths=(2,), kernel=3, hidden=2), (3, 5, 7), 3)
    assert torch.equal(vmap(t._input)(images(3).to(HERE)).cpu(), images(3) / 255.0)


@works
def test_the_fourth_channel_is_there_without_a_copy_and_its_gradient_is_left_out() -> None:
    t, x, seen = task(3), images(3).to(HERE), []

    def weighed(w: Tensor, x: Tensor) -> Tensor:
        input = t._input(x)
        wide = pixels.widened(input)
        seen.append((lowest(input), lowest(wide)))
        return (wide * w).sum()

    slope = vmap(grad(weighed), (None, 0))(torch.ones(1, 4, 5, 7, device=HERE), x)
    input, wide = seen[0]
    assert input.untyped_storage().data_ptr() == wide.untyped_storage().data_ptr()
    true = F.pad(torch.stack([t.normalise(a.cpu()) for a in x]), (0, 0, 0, 0, 0, 1)).sum(1)
    torch.testing.assert_close(slope.cpu()[:, 0], true, rtol=1e-6, atol=1e-6)

    def shifted(by: Tensor, x: Tensor) -> Tensor:
        return (pixels.widened(t._input(x) + by) ** 2).sum()  # not marked: it is padded

    by = torch.zeros((), device=HERE)
    doubled = vmap(grad(shifted), (None, 0))(by, x).cpu()
    torch.testing.assert_close(doubled, 2 * torch.stack([t.normalise(a.cpu()).sum() for a in x]), rtol=1e-5, atol=1e-4)


@works
def test_clients_alone_doubles_and_many_channels_go_the_plain_way() -> None:
    x = images(3).to(HERE)
    assert not pixels.serves(x[0])
    for other in (x.double(), torch.zeros(2, 2, 5, 5, 7, dtype=torch.uint8, device=HERE)):
        assert vmap(lambda a: (a, torch.tensor(pixels.serves(a)))[1], out_dims=None)(other) == torch.tensor(False)
