"""Federated training methods: one file per paper, both halves in it."""

from ..core import absent
from .afl import AFL
from .am import AM
from .apfl import APFL
from .ccvr import CCVR
from .cfl import CFL
from .ditto import Ditto
from .dsbn import DSBN
from .elcfs import ELCFS
from .fedadg import FedADG
from .fedala import FedALA
from .fedas import FedAS
from .fedatp import FedATP
from .fedavg import FedAvg
from .fedcsa import FedCSA
from .feddecorr import FedDecorr
from .feddpa import FedDPA
from .feddpa_the import FedDPATHE
from .feddyn import FedDyn
from .fedem import FedEM
from .fedfomo import FedFomo
from .fedicon import FedICON
from .fedlc import FedLC
from .fednova import FedNova
from .fedntd import FedNTD
from .fedpac import FedPAC
from .fedpcl import FedPCL
from .fedproto import FedProto
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrod import FedRoD
from .fedsam import FedSAM
from .fedspl import FedSPL
from .fedsr import FedSR
from .fedthe import FedTHE
from .fedtta import FedTTA
from .fedttt import FedTTT
from .ga import GA
from .gma import GMA
from .harmofl import HarmoFL
from .heterofedtta import HeteroFedTTA
from .ifca import IFCA
from .local import Local
from .moon import MOON
from .odpfl import ODPFL
from .perfedavg import PerFedAvg
from .pfedme import PFedMe
from .pfl import PFL
from .rsc import RSC
from .scaffold import SCAFFOLD

__all__ = [
    "AFL",
    "AM",
    "APFL",
    "CCVR",
    "CFL",
    "DSBN",
    "ELCFS",
    "GA",
    "GMA",
    "IFCA",
    "MOON",
    "ODPFL",
    "PFL",
    "RSC",
    "SCAFFOLD",
    "Ditto",
    "FedADG",
    "FedALA",
    "FedAS",
    "FedATP",
    "FedAvg",
    "FedCSA",
    "FedDPA",
    "FedDPATHE",
    "FedDecorr",
    "FedDyn",
    "FedEM",
    "FedFomo",
    "FedICON",
    "FedLC",
    "FedNTD",
    "FedNova",
    "FedPAC",
    "FedPCL",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSAM",
    "FedSPL",
    "FedSR",
    "FedTHE",
    "FedTTA",
    "FedTTT",
    "HarmoFL",
    "HeteroFedTTA",
    "Local",
    "PFedMe",
    "PerFedAvg",
]

absent.explain(__name__)
