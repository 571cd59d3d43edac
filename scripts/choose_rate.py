"""One learning rate for all methods of the first run, by validation data: how it was chosen; and FedTTA's inner rate.

    python scripts/choose_rate.py --rates 0.02 0.05 0.1 0.2 --seeds 3
    python scripts/choose_rate.py --inner 0.005 0.02 0.1 0.5 --seeds 3

The world and the model are those of the first run. A number is the accuracy, without adapter or personaliser, on
clients' own validation rows after the last round; the rate with the best mean over methods is chosen. Test rows are not
read. Fine-tuning and FedTHE's personal heads, which this accuracy does not use, keep their defaults.

`--inner` compares FedTTA's inner rates at the first run's learning rate. FedTTA is meant to answer after its adapter's
step, so both are shown, without and with it, on own validation rows and on those of other clients; the rate with the
best mean of the two with the adapter is chosen.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from statistics import fmean

import acclimate as ac
from acclimate.cli.first import SETTINGS
from acclimate.experiment.settings import expand
from acclimate.running.run import Fit
from acclimate.tuning.trials import validation_world

METHODS = ("fedavg", "fedthe", "fedtta")
WORLD = ("model=mlp", "data.new_clients=5")
INNER = [f"{adapter} {stream}" for adapter in ("none", "fedtta") for stream in ("original", "out-of-client")]


def trained(method: str, seed: int, *settings: str) -> Fit:
    """A method of the first run."""
    (experiment,) = expand([f"method={method}", f"seed={seed}", *settings, *WORLD])
    return ac.train(experiment)


def accuracy(method: str, rate: float, seed: int) -> float:
    """Mean over clients, in percent, on validation rows after the last round."""
    return 100 * trained(method, seed, f"method.opt.lr={rate}").history[-1]["val_accuracy"]


def inner(rate: float, seed: int) -> list[float]:
    """FedTTA's accuracies in the order of `INNER`: streams that are made of validation rows, at the last round."""
    fit = trained("fedtta", seed, f"method.opt.lr={SETTINGS['method.opt.lr']}", f"method.inner_lr={rate}")
    held = replace(fit, world=validation_world(fit.world))
    adapters, streams = [ac.adapters.NoAdapt(), ac.adapters.FedTTA()], [ac.shifts.Original(), ac.shifts.OutOfClient()]
    table = ac.evaluate(held, adapters, streams)
    found = {f"{r['adapter']} {r['stream']}": 100 * r["accuracy"] for r in table.rows if r["selection"] == "last"}
    return [found[name] for name in INNER]


def main() -> None:
    """Print a row per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2])
    parser.add_argument("--inner", type=float, nargs="+", help="compare inner rates of FedTTA instead")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    heads, seeds = INNER if args.inner else METHODS, range(args.seeds)
    print(" rate " + " ".join(f"{m:>8s}" for m in heads) + "    mean", flush=True)
    means = {}
    for rate in args.inner or args.rates:
        if args.inner:
            row = [fmean(column) for column in zip(*(inner(rate, seed) for seed in seeds), strict=True)]
            means[rate] = fmean(row[2:])
        else:
            row = [fmean(accuracy(method, rate, seed) for seed in seeds) for method in METHODS]
            means[rate] = fmean(row)
        widths = (max(8, len(m)) for m in heads)
        print(f"{rate:5g} " + " ".join(f"{a:{w}.1f}" for a, w in zip(row, widths, strict=True)), end="")
        print(f" {means[rate]:7.1f}", flush=True)
    print(f"chosen: {max(means, key=lambda rate: means[rate]):g}")


if __name__ == "__main__":
    main()
