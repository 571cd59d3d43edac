"""How good the features of a stand-in for FedPCL's backbone are, without FedPCL: nearest class means.

Ten images of every class give its mean, fifty others are told by the most similar mean (cosine), with features as they
are and cut to 0 and 1. Beside the stand-in of benchmarks/stand_ins.py stands the same network with random weights.

    python benchmarks/nearest_means.py --weights stand-ins/drawings.safetensors
        [--side 64] [--out results/causes/nearest-means.json]

Percent, by network, domain, and `whole` or `cut` features.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from torch import Tensor, nn

import acclimate as ac
from acclimate.models.encoders import IMAGENET, _ResNet18, column, resnet18

TRAIN, TEST, SIDE = 10, 50, 64
DIGITS = ("mnist", "svhn", "usps", "mnistm")


def features(net: nn.Module, x: Tensor, side: int = SIDE) -> Tensor:
    """What the network makes of images, at the side of the published code unless told."""
    x = F.interpolate(x.float() / 255.0, (side, side), mode="bilinear", align_corners=False)
    with torch.no_grad():
        out: Tensor = net((x - column(IMAGENET[0], x)) / column(IMAGENET[1], x))
    return out


def accuracy(z: Tensor, y: Tensor) -> float:
    """Percent that nearest means tell right; the first of every class are for training, the rest is for testing."""
    z, place = F.normalize(z, dim=-1), torch.stack([(y[: i + 1] == y[i]).sum() for i in range(len(y))])
    train = place <= TRAIN
    means = torch.stack([z[train & (y == c)].mean(0) for c in y.unique().tolist()])
    said = y.unique()[(z[~train] @ F.normalize(means, dim=-1).T).argmax(-1)]
    return 100.0 * float((said == y[~train]).double().mean())


def main() -> None:
    """Measure both networks on every domain."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/causes/nearest-means.json"))
    parser.add_argument("--side", type=int, default=SIDE)
    given = parser.parse_args()
    torch.manual_seed(0)
    seen = resnet18(given.weights).eval()
    nets = {"stand-in": seen, "untrained": _ResNet18(5, len(seen.conv1.weight)).eval()}  # type: ignore[arg-type]
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in nets}
    for domain in DIGITS:
        data = ac.data.Digit5(domains=(domain,), part="test").load()
        rows = torch.cat([(data.y == c).nonzero().flatten()[: TRAIN + TEST] for c in range(10)])
        for name, net in nets.items():
            z = features(net, data.x[rows], given.side)
            parts = {"whole": z, "cut": (z > 0).to(z.dtype)}
            found[name][domain] = {how: round(accuracy(part, data.y[rows]), 2) for how, part in parts.items()}
            print(name, domain, found[name][domain], flush=True)
    study = {"train": TRAIN, "test": TEST, "side": given.side}
    body = {"study": study, "environment": environment(torch.device("cpu")), "accuracy": found}
    write(given.out, body)


if __name__ == "__main__":
    main()
