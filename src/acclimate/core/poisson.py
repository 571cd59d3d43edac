"""Cohorts that nobody can guess: every client takes part by a coin of its own, and the coins follow from a secret.

Privacy is amplified by sampling only as long as an observer does not know who was sampled. Cohorts that follow from an
experiment's seed are known to all who know the seed, so these are drawn from a key instead (SHAKE-256, FIPS 202).
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor


def poisson(key: bytes, clients: int, cohort: int, round: int) -> Tensor:
    """The clients of a round, ascending: each independently with probability `cohort / clients`, so of any number.

    The probability is rounded down to a multiple of 2^-64, so that it is never above what is accounted for.
    """
    if cohort == clients:
        return torch.arange(clients)
    if len(key) != 32:
        raise ValueError(f"poisson: a key of {len(key)} bytes must be 32")
    stream = hashlib.shake_256(b"acclimate\0cohort\0" + key + round.to_bytes(8, "little")).digest(8 * clients)
    drawn = np.frombuffer(stream, dtype="<u8") < np.uint64((cohort << 64) // clients)
    return torch.from_numpy(np.flatnonzero(drawn))
