"""How good the features of a stand-in for FedPCL's backbone are, without FedPCL: nearest class means.

Ten images of every class give its mean, fifty others are told by the most similar mean (cosine), with features as they
are and cut to 0 and 1. Beside the stand-in of benchmarks/stand_ins.py stands the same network with random weights. The
features of several networks are put side by side, those of each at length one.

    python benchmarks/nearest_means.py --weights stand-ins/drawings.safetensors [MORE.safetensors ...]
        [--side 64] [--data digits office] [--out results/causes/nearest-means.json]

Percent, by network, domain, and `whole` or `cut` features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from torch import Tensor, nn

import acclimate as ac
from acclimate.data.world import Examples
from acclimate.models import checkpoints
from acclimate.models.encoders import IMAGENET, _ResNet18, column, resnet18

TRAIN, TEST, SIDE = 10, 50, 64
DIGITS = ("mnist", "svhn", "usps", "mnistm")
OFFICE = ("amazon", "caltech10")
"""Domains of Office-10 that have enough images."""


def features(nets: Sequence[nn.Module], x: Tensor, side: int = SIDE, cut: bool = False) -> Tensor:
    """What networks make of images, at the side of the published code unless told; `cut`: to 0 and 1."""
    x = F.interpolate(x.float() / 255.0, (side, side), mode="bilinear", align_corners=False)
    with torch.no_grad():
        parts = [net((x - column(IMAGENET[0], x)) / column(IMAGENET[1], x)) for net in nets]
    return torch.cat([F.normalize((z > 0).to(z.dtype) if cut else z, dim=-1) for z in parts], -1)


def accuracy(z: Tensor, y: Tensor) -> float:
    """Percent that nearest means tell right; the first of every class are for training, the rest is for testing."""
    z, place = F.normalize(z, dim=-1), torch.stack([(y[: i + 1] == y[i]).sum() for i in range(len(y))])
    train = place <= TRAIN
    means = torch.stack([z[train & (y == c)].mean(0) for c in y.unique().tolist()])
    said = y.unique()[(z[~train] @ F.normalize(means, dim=-1).T).argmax(-1)]
    return 100.0 * float((said == y[~train]).double().mean())


def domains(kinds: Sequence[str]) -> Iterator[tuple[str, Examples]]:
    """The domains of the data sets that were asked for, by name."""
    if "digits" in kinds:
        yield from ((d, ac.data.Digit5(domains=(d,), part="test").load()) for d in DIGITS)
    if "office" in kinds:
        yield from ((d, ac.data.OfficeCaltech10(domains=(d,), size=64).load()) for d in OFFICE)


def main() -> None:
    """Measure the networks, and as many with random weights, on every domain."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/causes/nearest-means.json"))
    parser.add_argument("--side", type=int, default=SIDE)
    parser.add_argument("--data", nargs="+", choices=("digits", "office"), default=["digits"])
    given = parser.parse_args()
    torch.manual_seed(0)
    seen: list[nn.Module] = [resnet18(w).eval() for w in given.weights]
    widths = [len(net.get_parameter("conv1.weight")) for net in seen]
    nets: dict[str, list[nn.Module]] = {"stand-in": seen, "untrained": [_ResNet18(5, width).eval() for width in widths]}
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in nets}
    for domain, data in domains(given.data):
        rows = torch.cat([(data.y == c).nonzero().flatten()[: TRAIN + TEST] for c in range(10)])
        for name, several in nets.items():
            parts = {how: features(several, data.x[rows], given.side, how == "cut") for how in ("whole", "cut")}
            found[name][domain] = {how: round(accuracy(z, data.y[rows]), 2) for how, z in parts.items()}
            print(name, domain, found[name][domain], flush=True)
    study = {
        "train": TRAIN,
        "test": TEST,
        "side": given.side,
        "digests": [checkpoints.digest(w) for w in given.weights],
    }
    body = {"study": study, "environment": environment(torch.device("cpu")), "accuracy": found}
    write(given.out, body)


if __name__ == "__main__":
    main()
