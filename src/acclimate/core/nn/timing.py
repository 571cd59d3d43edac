"""How long a function takes on a GPU, and numbers to measure it with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

REPEATS, PASSES, SLEEP, CLOCK = 4, 3, 400_000, 2e9
"""Runs of a measurement, measurements, the device's clocks while which the host at least puts runs into its queue, and
about how many there are in a second."""
PROBE = 2
"""Runs that tell how long the host takes for one: a sleep that is too short is doubled."""
AGAIN = 4
"""How often a measurement is made anew, each time with twice the sleep, because the device awoke too early."""
CLEARLY = 1.5
"""How many times as long as another a function takes that is not worth a second measurement."""
ALIKE = 1.01
"""How many times as long as the shortest of two measurements the other is at most where no third is worth making."""


def made(like: Tensor, clients: int, seed: int) -> Tensor:
    """Random numbers in the shape of this tensor, with fewer clients; a pixel's channels lie side by side."""
    g = torch.Generator(like.device).manual_seed(seed)
    rows, channels, height, width = like.shape[1:]
    made = torch.randn(clients, rows, height, width, channels, generator=g, device=like.device)
    return made.to(like.dtype).permute(0, 1, 4, 2, 3)


def milliseconds(f: Callable[[], Any], beaten: float = math.inf) -> float:
    """The device's time for one run: it sleeps until all of them are in its queue, however busy the host is. So a few
    runs tell it, and most of what a measurement takes is the host's time for them.

    Where another function takes `beaten`, and this one clearly longer, one measurement is enough; and two are where
    they are alike."""
    f()
    began = time.perf_counter()
    for _ in range(PROBE):
        f()
    asleep = max(SLEEP, int(2 * CLOCK * (time.perf_counter() - began) * REPEATS / PROBE))
    took: list[float] = []
    while len(took) < PASSES:
        time_of, asleep = _measured(f, asleep)
        took.append(time_of)
        if took[-1] > CLEARLY * beaten or (len(took) > 1 and max(took) <= ALIKE * min(took)):
            break
    return min(took)


def _measured(f: Callable[[], Any], asleep: int) -> tuple[float, int]:
    """Milliseconds of one run, out of several, and how long the device slept before them: long enough, unless the host
    is too busy to fill its queue in any time."""
    for left in reversed(range(AGAIN + 1)):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(asleep)
        begin.record()
        for _ in range(REPEATS):
            f()
        end.record()
        awake = begin.query()
        end.synchronize()
        if not awake or not left:
            break
        asleep *= 2
    return begin.elapsed_time(end) / REPEATS, asleep
