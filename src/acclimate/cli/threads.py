"""How many threads the commands that train use on a CPU."""

from __future__ import annotations

import os


def steady() -> None:
    """Half of the cores, unless OMP_NUM_THREADS says otherwise.

    Small models gain little from more, and lose several times over as soon as anything else runs on the machine.
    """
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max((os.cpu_count() or 1) // 2, 1))
