"""Federated training methods: one file per paper, both halves in it."""

from .afl import AFL
from .apfl import APFL
from .ditto import Ditto
from .fedadg import FedADG
from .fedatp import FedATP
from .fedavg import FedAvg
from .fedicon import FedICON
from .fedpcl import FedPCL
from .fedproto import FedProto
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedRoD
from .fedspl import FedSPL
from .fedsr import FedSR
from .fedthe import FedTHE
from .fedtta import FedTTA
from .fedttt import FedTTT
from .gma import GMA
from .local import Local
from .odpfl import ODPFL
from .perfedavg import PerFedAvg
from .pfedme import PFedMe
from .pfl import PFL
from .scaffold import SCAFFOLD

__all__ = [
    "AFL",
    "APFL",
    "GMA",
    "ODPFL",
    "PFL",
    "SCAFFOLD",
    "Ditto",
    "FedADG",
    "FedATP",
    "FedAvg",
    "FedICON",
    "FedPCL",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSPL",
    "FedSR",
    "FedTHE",
    "FedTTA",
    "FedTTT",
    "Local",
    "PFedMe",
    "PerFedAvg",
]
