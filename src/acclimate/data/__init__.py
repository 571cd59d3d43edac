"""Data sets and partitions: what each client trains on, validates on and is tested on."""

from ..core import absent
from .cells import Cells
from .cifar import CIFAR10, CIFAR10_1, CIFAR10C, CIFAR100
from .dataset import Dataset
from .digit5 import Digit5
from .digits import Digits
from .domains import PACS, DomainNet, OfficeCaltech10, OfficeHome
from .features import Encoder, Features
from .fileset import FileDataset
from .group_partitions import ByClient, ByDomain, BySuperclass, NaturalUsers
from .imagenet import ImageNet32, ImageNetVariant
from .leaf import FEMNIST
from .memory import InMemory, of
from .mnist import EMNIST, MNIST, FashionMNIST
from .noisy import Noisy
from .own import Arrays, HuggingFace, ImageFolder
from .partition import IID, Dirichlet, Partition, Pathological
from .phrases import Phrases
from .public_set import Public, PublicWorld
from .splits import BalancedTest, Counted, PerClass, Split, TrainTest
from .tables import Table
from .text import Text
from .tinyimagenet import TinyImageNet
from .vision import STL10, SVHN, USPS
from .windows import Windows
from .world import Examples, Feature, Pool, World

__all__ = [
    "CIFAR10",
    "CIFAR10C",
    "CIFAR10_1",
    "CIFAR100",
    "EMNIST",
    "FEMNIST",
    "IID",
    "MNIST",
    "PACS",
    "STL10",
    "SVHN",
    "USPS",
    "Arrays",
    "BalancedTest",
    "ByClient",
    "ByDomain",
    "BySuperclass",
    "Cells",
    "Counted",
    "Dataset",
    "Digit5",
    "Digits",
    "Dirichlet",
    "DomainNet",
    "Encoder",
    "Examples",
    "FashionMNIST",
    "Feature",
    "Features",
    "FileDataset",
    "HuggingFace",
    "ImageFolder",
    "ImageNet32",
    "ImageNetVariant",
    "InMemory",
    "NaturalUsers",
    "Noisy",
    "OfficeCaltech10",
    "OfficeHome",
    "Partition",
    "Pathological",
    "PerClass",
    "Phrases",
    "Pool",
    "Public",
    "PublicWorld",
    "Split",
    "Table",
    "Text",
    "TinyImageNet",
    "TrainTest",
    "Windows",
    "World",
    "of",
]

absent.explain(__name__)
