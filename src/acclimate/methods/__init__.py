"""Federated training methods: one file per paper, both halves in it."""

from .apfl import APFL
from .ditto import Ditto
from .fedavg import FedAvg
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedRoD
from .fedspl import FedSPL
from .fedthe import FedTHE
from .fedttt import FedTTT
from .gma import GMA
from .local import Local
from .perfedavg import PerFedAvg
from .scaffold import SCAFFOLD

__all__ = [
    "APFL",
    "GMA",
    "SCAFFOLD",
    "Ditto",
    "FedAvg",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSPL",
    "FedTHE",
    "FedTTT",
    "Local",
    "PerFedAvg",
]
