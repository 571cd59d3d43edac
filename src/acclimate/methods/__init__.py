"""Federated training methods: one file per paper, both halves in it."""

from .fedavg import FedAvg
from .fedprox import FedProx
from .fedthe import FedTHE
from .local import Local
from .scaffold import SCAFFOLD

__all__ = ["SCAFFOLD", "FedAvg", "FedProx", "FedTHE", "Local"]
