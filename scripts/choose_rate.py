"""One learning rate for all methods of the first run, by validation data: how it was chosen.

    python scripts/choose_rate.py --rates 0.02 0.05 0.1 0.2 --seeds 3

The world and the model are those of the first run. A number is the accuracy, without adapter or personaliser, on
clients' own validation rows after the last round; the rate with the best mean over methods is chosen. Test rows are not
read. Fine-tuning and FedTHE's personal heads, which this accuracy does not use, keep their defaults.
"""

from __future__ import annotations

import argparse
from statistics import fmean

import acclimate as ac
from acclimate.experiment.settings import expand

METHODS = ("fedavg", "fedthe", "fedtta")
WORLD = ("model=mlp", "data.new_clients=5")


def accuracy(method: str, rate: float, seed: int) -> float:
    """Mean over clients, in percent, on validation rows after the last round."""
    (experiment,) = expand([f"method={method}", f"seed={seed}", f"method.opt.lr={rate}", *WORLD])
    return 100 * ac.train(experiment).history[-1]["val_accuracy"]


def main() -> None:
    """Print a row per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print(" rate " + " ".join(f"{m:>8s}" for m in METHODS) + "    mean", flush=True)
    means = {}
    for rate in args.rates:
        row = [fmean(accuracy(method, rate, seed) for seed in range(args.seeds)) for method in METHODS]
        means[rate] = fmean(row)
        print(f"{rate:5g} " + " ".join(f"{a:8.1f}" for a in row) + f" {means[rate]:7.1f}", flush=True)
    print(f"chosen: {max(means, key=lambda rate: means[rate]):g}")


if __name__ == "__main__":
    main()
