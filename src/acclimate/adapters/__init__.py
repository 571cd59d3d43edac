"""Test-time adapters: one file per paper."""

from .atp import ATP
from .bbse import BBSE
from .bn import BNStats
from .eata import EATA
from .em import EM
from .fedctta import FedCTTA
from .fedtta import FedTTA
from .guarded import Guarded
from .icon import ICON
from .knn import KNNPer
from .latte import Latte
from .mbsl import MBSL
from .memo import MEMO
from .none import NoAdapt
from .odpfl import ODPFL
from .running import RunningStats
from .shot import SHOT
from .surgical import Surgical
from .t3a import T3A
from .tent import Tent
from .the import THE
from .theplus import THEPlus
from .together import Together
from .tsa import TSA
from .ttt import TTT

__all__ = [
    "ATP",
    "BBSE",
    "EATA",
    "EM",
    "ICON",
    "MBSL",
    "MEMO",
    "ODPFL",
    "SHOT",
    "T3A",
    "THE",
    "TSA",
    "TTT",
    "BNStats",
    "FedCTTA",
    "FedTTA",
    "Guarded",
    "KNNPer",
    "Latte",
    "NoAdapt",
    "RunningStats",
    "Surgical",
    "THEPlus",
    "Tent",
    "Together",
]
