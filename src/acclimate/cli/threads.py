"""How many threads the commands that train use on a CPU."""

from __future__ import annotations

import os


def use_half_of_the_cores() -> None:
    """Let torch use half of the cores, unless OMP_NUM_THREADS says otherwise.

    Small models gain little from more cores, and become several times slower as soon as another program needs them.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max((os.cpu_count() or 1) // 2, 1))
