"""A stream for what must be done while a graph is recorded, and must not be part of it: trials, measurements, copies.

torch hands out its streams in turn and has 32 of a kind, so that a new one may be that of the recording. Nobody else
asks for one of high priority, and this one is asked for once. So it also finds its memory again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_own: dict[torch.device, Any] = {}


@contextmanager
def unrecorded(device: torch.device) -> Iterator[None]:
    """As long as this lasts, what is done on this GPU is part of no recording."""
    if device not in _own:
        _own[device] = torch.cuda.Stream(device, priority=-1)
    with torch.cuda.device(device), torch.cuda.stream(_own[device]):
        yield


def recording(device: torch.device) -> bool:
    """Whether what is done on this device is recorded."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
