"""Why FedSPL's rows on PACS are 25 to 30 points below the paper: what the stand-in's own features know.

The recipes fine-tune an EfficientNet-Lite0 with ImageNet weights for 20 rounds at the released rate, on 64-pixel images
shown at 128. Here nothing is fine-tuned: a linear classifier is fitted to the frozen features of the same images, by
least squares with a ridge that is chosen on the training domains' validation examples, on the same splits. It has no
rate, no rounds and no augmentation. What it knows more than the fine-tuned model, training has not learned.

    python benchmarks/pacs_probe.py [--seeds 3] [--size 128] [--out results/causes/pacs-probe.json]
    python benchmarks/pacs_probe.py --backbone resnet18@resnet18.pth --size 224 --pixels 64,32 --out FILE

Percent by the domain left out: `validation` is of the three training domains, `unseen` of the one left out. With
several `--pixels` images are read at each of them and shown at the same size: what a domain loses with its pixels.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from harness import environment, integers, parser_of, write
from torch import Tensor

from acclimate.data import PACS, Features
from acclimate.models import Frozen
from acclimate.recipes.federations import PACS4
from acclimate.recipes.fedspl import SPLIT

RIDGES = (1.0, 10.0, 100.0, 1e3, 1e4)
CLASSES = 7


def fitted(x: Tensor, y: Tensor) -> dict[float, Tensor]:
    """Weights of the linear classifier by ridge; the last column of x is one, for its bias."""
    squares, sums = x.T @ x, x.T @ torch.eye(CLASSES, dtype=x.dtype)[y]
    return {
        ridge: torch.linalg.solve(squares + ridge * torch.eye(len(squares), dtype=x.dtype), sums) for ridge in RIDGES
    }


def right(x: Tensor, y: Tensor, w: Tensor) -> float:
    """Accuracy in percent."""
    return 100.0 * float(((x @ w).argmax(-1) == y).double().mean())


def probed(features: Tensor, held: str, seed: int) -> dict[str, float]:
    """A domain left out: the classifier with the ridge that validation prefers."""
    world = PACS4.federation("paper", held, split=SPLIT).world(seed)
    train, y = torch.cat(world.train), world.examples.y
    x = features - features[train].mean(0)
    x = torch.cat([x / features[train].std(0).clamp_min(1e-6), torch.ones(len(x), 1, dtype=x.dtype)], 1)
    tried = fitted(x[train], y[train])
    known = {ridge: fmean(right(x[rows], y[rows], w) for rows in world.val) for ridge, w in tried.items()}
    best = max(known, key=known.__getitem__)
    unseen = right(x[world.held], y[world.held], tried[best])
    return {"ridge": best, "validation": round(known[best], 2), "unseen": round(unseen, 2)}


def encoded(backbone: str, pixels: int, size: int) -> Tensor:
    """The features of all images of PACS, read at so many pixels and shown at this size."""
    images = PACS(size=pixels, domains=tuple(PACS4.domains.values()))
    return Features(data=images, encoder=Frozen((backbone,), size=size)).load().x.double()


def main() -> None:
    """Encode once, probe every domain, and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--pixels", type=integers, default=[PACS4.size])
    parser.add_argument("--out", type=Path, default=Path("results/causes/pacs-probe.json"))
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for side in given.pixels:
        features = encoded(given.backbone, side, given.size)
        own = {held: [probed(features, held, seed) for seed in range(given.seeds)] for held in PACS4.domains}
        for held, tried in own.items():
            print(f"{side} pixels:", held, tried, flush=True)
        found[str(side)] = own
    pixels = given.pixels if len(given.pixels) > 1 else given.pixels[0]
    study = {"backbone": given.backbone, "pixels": pixels, "shown at": given.size, "seeds": given.seeds}
    several = found if len(given.pixels) > 1 else own
    body = {"study": study, "environment": environment(torch.device("cpu")), "left out": several}
    write(given.out, body)


if __name__ == "__main__":
    main()
