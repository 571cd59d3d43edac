"""What the corruptions do to a known model: accuracy of a CIFAR-10 ResNet-20 under each type, plain and adapted.

    ACCLIMATE_DATA=... python scripts/corruption_accuracy.py --weights cifar10_resnet20.th

The checkpoint is the widely used ResNet-20 with 91.73 % on the CIFAR-10 test set (ImageNet mean and deviation on pixels
in 0..1). `batch statistics` is the same model with batch norm statistics of the test batch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from acclimate import store
from acclimate.core import Mode, Task, rng
from acclimate.data import CIFAR10
from acclimate.models import ResNet20
from acclimate.shifts.corruptions import COMMON, EXTRA, corrupt, frost_textures

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def accuracy(task: Task, x: torch.Tensor, y: torch.Tensor, mode: Mode) -> float:
    """Share of right answers, in batches of 200."""
    vars = task.init(rng.key(0))
    hits = [
        (task.apply(vars, a, mode).logits.argmax(-1) == b).float().sum()
        for a, b in zip(x.split(200), y.split(200), strict=True)
    ]
    return float(torch.stack(hits).sum() / len(y))


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--frost", type=Path, help="a data root with the folder frost/ (default: synthesised textures)")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = CIFAR10(part="test").load()
    x, y = data.x[: args.images], data.y[: args.images]
    task = Task(ResNet20(norm="batch", weights=args.weights), (3, 32, 32), 10, MEAN, STD)
    textures, source = frost_textures(args.frost)
    clean = {"plain": accuracy(task, x, y, "eval"), "batch statistics": accuracy(task, x, y, "adapt")}
    print(f"{'clean':18s} {clean['plain']:7.1%} {clean['batch statistics']:7.1%}   ({len(y)} images, frost {source})")
    rows = {}
    for kind in (*COMMON, *EXTRA):
        keys = rng.fold(rng.key(0), torch.arange(len(y)))
        shown = corrupt(x, kind, args.severity, keys, frost=textures)
        rows[kind] = (accuracy(task, shown, y, "eval"), accuracy(task, shown, y, "adapt"))
        print(f"{kind:18s} {rows[kind][0]:7.1%} {rows[kind][1]:7.1%}")
    means = [sum(rows[k][i] for k in COMMON) / len(COMMON) for i in (0, 1)]
    print(f"{'mean of the 15':18s} {means[0]:7.1%} {means[1]:7.1%}")
    if args.out:
        body = {
            "command": store.command_line(),
            "environment": store.environment(torch.device("cpu")),
            "images": len(y),
            "severity": args.severity,
            "frost": source,
            "clean": clean,
            "kinds": rows,
            "mean": means,
        }
        store.write(args.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
