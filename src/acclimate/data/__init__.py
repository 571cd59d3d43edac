"""Data sets and partitions: what each client trains on, validates on and is tested on."""

from .base import Dataset
from .digits import Digits
from .partition import IID, Dirichlet, Partition, Pathological
from .world import Examples, World

__all__ = ["IID", "Dataset", "Digits", "Dirichlet", "Examples", "Partition", "Pathological", "World"]
