"""Test-time adapters: one file per paper."""

from ..core import absent
from .atp import ATP
from .bbse import BBSE
from .bn import BNStats
from .bn_together import BNTogether
from .cotta import CoTTA
from .deyo import DeYO
from .dpa import DPA
from .eata import EATA
from .em import EM
from .fedctta import FedCTTA
from .fedtsa import FedTSA
from .fedtta import FedTTA
from .guarded import Guarded
from .icon import ICON
from .knn import KNNPer
from .lame import LAME
from .latte import Latte
from .mbsl import MBSL
from .memo import MEMO
from .neo import NEO
from .none import NoAdapt
from .note import NOTE
from .odpfl import ODPFL
from .roid import ROID
from .rotta import RoTTA
from .running import RunningStats
from .santa import SANTA
from .sar import SAR
from .shot import SHOT
from .surgical import Surgical
from .t3a import T3A
from .tent import Tent
from .the import THE
from .the_lora import THELoRA
from .theplus import THEPlus
from .together import Together
from .tsa import TSA
from .ttt import TTT
from .unmix import UnMixTNS

__all__ = [
    "ATP",
    "BBSE",
    "DPA",
    "EATA",
    "EM",
    "ICON",
    "LAME",
    "MBSL",
    "MEMO",
    "NEO",
    "NOTE",
    "ODPFL",
    "ROID",
    "SANTA",
    "SAR",
    "SHOT",
    "T3A",
    "THE",
    "TSA",
    "TTT",
    "BNStats",
    "BNTogether",
    "CoTTA",
    "DeYO",
    "FedCTTA",
    "FedTSA",
    "FedTTA",
    "Guarded",
    "KNNPer",
    "Latte",
    "NoAdapt",
    "RoTTA",
    "RunningStats",
    "Surgical",
    "THELoRA",
    "THEPlus",
    "Tent",
    "Together",
    "UnMixTNS",
]

absent.explain(__name__)
