"""Secrets that filters read from the environment, and noise that cannot be taken off without one.

Experiments must be repeatable, so all their randomness follows from a seed that the server knows. What must hide
something from the server, or from other clients, needs a secret that is no part of the experiment.
"""

from __future__ import annotations

import hashlib
import os

import torch
from torch import Tensor

from ..core import rng
from . import chacha

SIMULATED = "a simulation hides nothing"


def secret_key(variable: str, purpose: str) -> bytes:
    """The 32-byte key for one purpose from an environment variable; a public one where no variable is named."""
    secret = os.environ.get(variable, "") if variable else SIMULATED
    if not secret:
        raise ValueError(f"the environment variable '{variable}' must hold the secret of {purpose}; it is not set here")
    return hashlib.sha256(f"acclimate\0{purpose}\0{secret}".encode()).digest()


def normal(variable: str, key: rng.Key, like: Tensor) -> Tensor:
    """Standard normal numbers: of the key alone in simulations, otherwise of ChaCha20 under the secret (Box-Muller)."""
    if not variable:
        return rng.normal(key, *like.shape).to(like.dtype)
    nonce = (key, key >> 32, torch.zeros_like(key))
    words = chacha.stream(secret_key(variable, "noise"), nonce, 2 * like.numel())
    u, v = ((words >> 8).to(torch.float32) * 2.0**-24).reshape(2, *like.shape)
    return (torch.sqrt(-2.0 * torch.log1p(-u)) * torch.cos(2.0 * torch.pi * v)).to(like.dtype)
