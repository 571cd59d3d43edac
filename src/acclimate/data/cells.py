"""The embedded table: 569 samples of breast tissue, 30 measurements of their cell nuclei each. No download."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from ..core import check
from .dataset import Inputs
from .fitting import Measured
from .world import Examples, Feature

_MEASURED = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave-points",
    "symmetry",
    "fractal-dimension",
)
COLUMNS = tuple(f"{how}-{what}" for how in ("mean", "error", "worst") for what in _MEASURED)
"""The measurements: of ten properties the mean over a sample's nuclei, its standard error, and the worst three."""


@dataclass(frozen=True)
class Cells(Measured):
    """scikit-learn's table of the Wisconsin diagnostic breast cancer data (UCI): is a tumour malignant or benign?

    The data names no clinics. Here a clinic is a range of one measurement: with five clients, the first has the fifth
    of the samples with the lowest values, the last the fifth with the highest. So clients differ in their inputs and,
    as far as the measurement goes with the diagnosis, in their class mix.
    """

    clients: int = 5
    by: str = "mean-radius"
    """The measurement that tells clinics apart; another partition than by-client deals the samples instead."""

    def __post_init__(self) -> None:
        check.one_of(self, "by", COLUMNS)
        check.whole(self, "clients", 1)
        super().__post_init__()

    def inputs(self) -> Inputs:
        return "vectors"

    def load(self) -> Examples:
        x, y, classes = _table()
        order = np.argsort(x[:, COLUMNS.index(self.by)], kind="stable")
        count = self.clients + self.new_clients
        users = np.empty(len(y), np.int64)
        users[order] = np.arange(len(y)) * count // len(y)
        names = tuple(Feature(c) for c in COLUMNS)
        domain = torch.zeros(len(y), dtype=torch.int64)
        parts = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y), classes, domain, ("cells",)
        return Examples(*parts, torch.from_numpy(users), None, names)


def _table() -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Measurements, labels and their names; the file is read as it is, as importing scikit-learn takes long."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("The cells are part of scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "breast_cancer.csv"
    with path.open(encoding="utf-8") as file:
        rows, width, *classes = file.readline().strip().split(",")
        table = np.loadtxt(file, delimiter=",")
    if table.shape != (int(rows), int(width) + 1) or int(width) != len(COLUMNS):
        raise ValueError(f"{path}: has {table.shape} cells, not {rows} rows of {len(COLUMNS)} measurements and a label")
    return table[:, :-1], table[:, -1].astype(np.int64), tuple(classes)
