"""Test-time adapters: one file per paper."""

from .atp import ATP
from .bbse import BBSE
from .bn import BNStats
from .cotta import CoTTA
from .eata import EATA
from .em import EM
from .fedtta import FedTTA
from .guarded import Guarded
from .icon import ICON
from .knn import KNNPer
from .lame import LAME
from .mbsl import MBSL
from .memo import MEMO
from .none import NoAdapt
from .note import NOTE
from .odpfl import ODPFL
from .rotta import RoTTA
from .sar import SAR
from .shot import SHOT
from .surgical import Surgical
from .t3a import T3A
from .tent import Tent
from .the import THE
from .theplus import THEPlus
from .tsa import TSA
from .ttt import TTT

__all__ = [
    "ATP",
    "BBSE",
    "EATA",
    "EM",
    "ICON",
    "LAME",
    "MBSL",
    "MEMO",
    "NOTE",
    "ODPFL",
    "SAR",
    "SHOT",
    "T3A",
    "THE",
    "TSA",
    "TTT",
    "BNStats",
    "CoTTA",
    "FedTTA",
    "Guarded",
    "KNNPer",
    "NoAdapt",
    "RoTTA",
    "Surgical",
    "THEPlus",
    "Tent",
]
