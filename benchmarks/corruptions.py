"""Speed of the image corruptions: images per second by kind, and the mean over the 15 common kinds.

python benchmarks/corruptions.py [--side 32] [--batch 256] [--threads 1] [--severity 5] [--device cpu]
The mean is taken over the times per image, so a slow kind counts as it would in a run that uses all kinds alike.
"""

from __future__ import annotations

import argparse
import time

import torch

from acclimate.core import rng
from acclimate.shifts.corruptions import COMMON, EXTRA, corrupt


def seconds(kind: str, severity: int, x: torch.Tensor, keys: torch.Tensor, repeats: int) -> float:
    """The median time of one call on the batch, after a call that fills the caches."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        corrupt(x, kind, severity, keys)
        if x.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[repeats // 2]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--channels", type=int, default=3, choices=(1, 3))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--severity", type=int, default=0, help="1 to 5; 0 (default) averages over all five")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="severity 5 only, one repeat")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.quick:
        args.severity, args.repeats = 5, 1
    torch.set_num_threads(args.threads)
    keys = rng.fold(rng.key(0, args.device), torch.arange(args.batch, device=args.device))
    x = torch.vmap(lambda k: rng.randint(k, 0, 256, args.channels, args.side, args.side))(keys).to(torch.uint8)
    severities = [args.severity] if args.severity else [1, 2, 3, 4, 5]
    cost = {}
    for kind in COMMON + EXTRA:
        cost[kind] = sum(seconds(kind, s, x, keys, args.repeats) for s in severities) / len(severities) / args.batch
        print(f"{kind:20} {1 / cost[kind]:12,.0f} images/s", flush=True)
    mean = sum(cost[kind] for kind in COMMON) / len(COMMON)
    print(f"{'mean of the 15':20} {1 / mean:12,.0f} images/s")


if __name__ == "__main__":
    main()
