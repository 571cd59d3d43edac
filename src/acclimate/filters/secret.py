"""Keys that are no part of an experiment, and noise that cannot be taken off without one.

Experiments must be repeatable, so all their randomness follows from a seed that the server knows. What must hide
something from the server, or from other clients, needs a secret: the key that was created with the run, or an
environment variable's value.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import Tree, rng, tree
from ..ops.hashing import content_hash
from . import chacha, gaussian

SIMULATED = "a simulation hides nothing"
SEED = "seed"
"""What a DP filter's `secret` says where all must follow from the seed."""


def secret_key(variable: str, purpose: str) -> bytes:
    """The 32-byte key for one purpose from an environment variable; a public one where no variable is named."""
    secret = os.environ.get(variable, "") if variable else SIMULATED
    if not secret:
        raise ValueError(f"the environment variable '{variable}' must hold the secret of {purpose}; it is not set here")
    return hashlib.sha256(f"acclimate\0{purpose}\0{secret}".encode()).digest()


def purpose_key(secret: str, run: bytes | None, purpose: str) -> bytes | None:
    """The key for one purpose: of the run where `secret` is empty, of the environment variable that it names, or None
    where all follows from the seed."""
    if secret == SEED or (not secret and run is None):
        return None
    if secret:
        return secret_key(secret, purpose)
    assert run is not None
    return hashlib.sha256(b"acclimate\0" + purpose.encode() + b"\0" + run).digest()


def of_seed(key: bytes | None, seed: int) -> bytes | None:
    """The key for one seed of several that share a secret: from the same key all would draw the same clients."""
    return None if key is None else hmac.digest(key, b"seed\0" + str(seed).encode(), "sha256")


def without(key: bytes | None, absent: Sequence[int]) -> bytes | None:
    """The key for the noise of a sum without some clients. A round that is repeated after a crash may lack others than
    before: under one noise, the difference of the two sums would be the message of a client."""
    if key is None or not absent:
        return key
    return hashlib.sha256(key + b"\0without\0" + ",".join(map(str, sorted(absent))).encode()).digest()


def of_sums(key: bytes | None, sums: Tree) -> bytes | None:
    """The key for the noise of these sums alone. A run that goes on from an older checkpoint may repeat a round with
    the same clients and another model: under one noise, the difference of the two sums would be told exactly."""
    if key is None:
        return None
    return hmac.digest(key, b"sums\0" + content_hash(*tree.leaves(sums)).encode(), "sha256")


def noise(secret: bytes | None, key: rng.Key, like: Tensor, std: float, exact: bool) -> Tensor:
    """Gaussian noise of a standard deviation on its grid, in double precision: of ChaCha20 under the secret, or of the
    key alone where there is none."""
    step = gaussian.step_of(std)
    if secret is None:
        return torch.round(rng.normal(key, *like.shape).double() * (std / step)) * step
    nonce = (key, key >> 32, torch.zeros_like(key))
    words = chacha.stream(secret, nonce, gaussian.WORDS * like.numel()).reshape(gaussian.WORDS, *like.shape)
    return gaussian.rounded(words, std / step, exact) * step
