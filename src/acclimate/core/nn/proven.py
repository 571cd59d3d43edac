"""Whether the kernels that take all leaves at once work on a device: they are tried there once, before any recording.

One that does not compile, or has other numbers than torch's operations, is left out with a warning: then torch's
operations do the work of all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

from . import kernels, rehearsal

log = logging.getLogger("acclimate")

Trial: TypeAlias = Callable[[torch.device], bool]
"""Whether a kernel's numbers on a device are those of torch's operations."""
_trials: list[Trial] = []
_found: dict[torch.device, bool] = {}
_expected: set[torch.device] = set()


def trial(of: Trial) -> Trial:
    """Mark the trial of a kernel."""
    _trials.append(of)
    return of


def expect(device: torch.device) -> None:
    """Say that these kernels will be wanted: a rehearsal takes them for proven there, and `settle` tries them."""
    there = torch.empty(0, device=device).device  # with its number, as the tensors have it that lie there
    if there.type == "cuda" and there not in _found:
        _expected.add(there)


def trials() -> list[Callable[[], bool]]:
    """What is left to try where these kernels are expected: work to rehearse."""
    return [partial(_alone, each, device) for device in _expected - set(_found) for each in _trials]


def settle() -> None:
    """Try these kernels where they are expected: before anything is recorded."""
    for device in sorted(_expected, key=str):
        on(device)
    _expected.clear()


def on(device: torch.device) -> bool:
    """Whether these kernels are for tensors of a device. Nothing is tried in a recording or a rehearsal: until then
    torch's operations serve, or in a rehearsal what is expected."""
    if device.type != "cuda":
        return kernels.INTERPRETED
    if device not in _found:
        if rehearsal.running() or torch.cuda.is_current_stream_capturing():
            return rehearsal.running() and device in _expected
        rehearsal.rehearse(*(partial(_alone, each, device) for each in _trials))
        _found[device] = all(_works(each, device) for each in _trials)
    return _found[device]


def _alone(of: Trial, device: torch.device) -> bool:
    """What a trial says, whatever is going on around it."""
    with outside_transforms(), torch.no_grad():
        return of(device)


def _works(of: Trial, device: torch.device) -> bool:
    try:
        reason = None if _alone(of, device) else "its numbers are not those of torch's operations"
    except Exception as error:  # whatever a compiler says
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if reason is not None:
        log.warning("kernels for all leaves at once are left out on %s: %s: %s", device, of.__module__, reason)
    return reason is None


def sample(device: torch.device, *shape: int) -> Tensor:
    """Numbers to try a kernel with, the same every time."""
    count = torch.Size(shape).numel()
    return torch.linspace(-1.0, 2.0, count, device=device).view(shape)


def near(found: Tensor, expected: Tensor) -> bool:
    """Whether numbers differ by no more than rounding."""
    return torch.allclose(found.float(), expected.float(), rtol=1e-6, atol=1e-6)
