"""The grids that the papers state, as settings, each with its place.

FedSPL states none: Figure 4 shows test-time rates and batch sizes, and the text prints no value of them. The grids say
what was searched, not on what: data, model and rounds are settings of your own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..experiment import ConfigError
from ..experiment.catalogue import nearest


@dataclass(frozen=True)
class Grid:
    """One method's or adapter's grid in one paper."""

    name: str
    place: str
    settings: tuple[tuple[str, Any], ...]
    """The settings of the search: lists are searched, other values are fixed."""
    found: str = ""
    """The values that the paper chose."""
    note: str = ""
    """How this grid differs from what the paper says."""

    @property
    def size(self) -> int:
        """How many points the grid has."""
        size = 1
        for _, value in self.settings:
            size *= len(value) if isinstance(value, list) else 1
        return size


RATES = [0.001, 0.003, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5]
SERVER_RATES = [0.01, 0.1, 1.0, 1.5, 2.0]
PROX = [0.001, 0.01, 0.1, 1.0]
UPFL, FEDTHE, FEDICON, FEDPCL = (
    "FedTTA, Appendix D",
    "FedTHE, Appendix C.2",
    "FedICON, Appendix A.3",
    "FedPCL, Appendix A.1.4",
)
FEDTTA = (("method.inner_lr", RATES), ("method.opt.lr", RATES), ("method.net_opt.lr", RATES))
LOCAL = ("method.opt.lr", RATES)
SERVER_NOTE = "the server rates are those stated for FedGMA; the paper's choice, 1.5, is among these only"

GRIDS: tuple[Grid, ...] = (
    Grid("fedtta/fedavg", UPFL, (("method", "fedavg"), LOCAL), "0.1; Fashion-MNIST 0.3"),
    Grid("fedtta/fedprox", UPFL, (("method", "fedprox"), LOCAL, ("method.mu", PROX)), "rate 0.1 or 0.3, mu 0.001"),
    Grid(
        "fedtta/scaffold",
        UPFL,
        (("method", "scaffold"), LOCAL, ("method.server_lr", SERVER_RATES)),
        "0.1 and 1.5",
        SERVER_NOTE,
    ),
    Grid(
        "fedtta/afl",
        UPFL,
        (("method", "afl"), LOCAL, ("method.lambda_lr", RATES)),
        "rate 0.1 or 0.3; mixture 0.001, 0.3 or 0.5, by data set",
    ),
    Grid(
        "fedtta/gma",
        UPFL,
        (
            ("method", "gma"),
            LOCAL,
            ("method.server_lr", SERVER_RATES),
            ("method.tau", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
        ),
        "rate 0.1 or 0.3, server 1 or 1.5, tau 0.1",
    ),
    Grid("fedtta/fedadg", UPFL, (("method", "fedadg"), LOCAL), "0.1 or 0.3"),
    Grid("fedtta/fedsr", UPFL, (("method", "fedsr"), LOCAL), "0.05, 0.1 or 0.3"),
    Grid("fedtta/pfl-sampled", UPFL, (("method", "pfl-sampled"), LOCAL), "0.1; Fashion-MNIST 0.3"),
    Grid("fedtta/pfl-ensemble", UPFL, (("method", "pfl-ensemble"), LOCAL), "0.1; Fashion-MNIST 0.3"),
    Grid(
        "fedtta/odpfl",
        UPFL,
        (("method", "odpfl"), LOCAL, ("method.encoder_opt.lr", RATES), ("method.hyper_opt.lr", RATES)),
        "by data set; the hypernetwork 0.5 on all",
    ),
    Grid(
        "fedtta/fedtta",
        UPFL,
        (("method", "fedtta"), ("adapters", "fedtta"), *FEDTTA),
        "CIFAR-10: inner 0.5, outer 0.05, adaptation 0.005",
    ),
    Grid(
        "fedtta/fedtta-prox",
        UPFL,
        (("method", "fedtta-prox"), ("adapters", "fedtta"), *FEDTTA, ("method.mu", PROX)),
        "CIFAR-10: inner 0.3, outer 0.1, adaptation 0.003, mu 0.001",
        "the paper lists mu's grid under FedTTA++, which is FedTTA-Prox with early stopping",
    ),
    Grid(
        "fedtta/patience",
        UPFL,
        (
            ("method", "fedtta-prox"),
            ("adapters", "fedtta"),
            ("adapters.fedtta.steps", 50),
            ("adapters.fedtta.patience", [1, 3, 5]),
        ),
        "1 on MNIST and CIFAR-10, 5 elsewhere",
        "FedTTA++'s patience, with the rates of the training as they are; the most steps, 50, are Figure 2's",
    ),
    Grid(
        "fedthe/gma",
        FEDTHE,
        (("method", "gma"), ("method.tau", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])),
        "0.1",
    ),
    Grid("fedthe/ditto", FEDTHE, (("method", "ditto"), ("method.lam", [0.01, 0.1, 1.0, 5.0])), "1.0"),
    Grid(
        "fedthe/memo",
        FEDTHE,
        (
            ("method", "fedavg+finetune"),
            ("adapters", "memo"),
            ("adapters.memo.views", [16, 32, 48]),
            ("adapters.memo.steps", [1, 2, 3, 4]),
        ),
        "32 and 3",
        "with the personal model of FedAvg+FT; give method=fedavg for the global one",
    ),
    Grid(
        "fedthe/t3a",
        FEDTHE,
        (("method", "fedavg+finetune"), ("adapters", "t3a"), ("adapters.t3a.keep", [1, 5, 20, 50, 100, "none"])),
        "50",
    ),
    Grid(
        "fedthe/ttt",
        FEDTHE,
        (
            ("method", "fedttt"),
            ("adapters", "ttt"),
            ("adapters.ttt.opt.lr", [0.0001, 0.001, 0.01]),
            ("adapters.ttt.steps", [1, 2, 3]),
        ),
        "0.001 and 1",
    ),
    Grid(
        "fedthe/fedthe",
        "FedTHE, Appendix C.2 and E.4 (Figure 16)",
        (
            ("method", "fedthe"),
            ("adapters", "the"),
            ("adapters.the.alpha", [0.05, 0.1, 0.2]),
            ("adapters.the.beta", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ),
        "0.1 and 0.3",
        "an ablation in the paper, and not how its values were chosen",
    ),
    Grid("fedicon/fedprox", FEDICON, (("method", "fedprox"), ("method.mu", PROX)), "0.01"),
    Grid(
        "fedicon/t3a",
        FEDICON,
        (("method", "fedavg"), ("adapters", "t3a"), ("adapters.t3a.keep", [1, 5, 20, 50, 100])),
        "50",
    ),
    Grid(
        "fedpcl/fedpcl",
        FEDPCL,
        (
            ("method", "fedpcl"),
            ("method.opt", "adam"),
            ("method.opt.lr", [0.1, 0.01, 0.001, 0.0001]),
            ("method.opt.weight_decay", [1e-3, 5e-4, 1e-4, 5e-5, 1e-5]),
        ),
        "0.001 and 1e-4",
        "without the output dimension of each backbone (128, 256, 512, 1024), which is a setting of the model",
    ),
)


def grid(name: str) -> Grid:
    """A grid by its name; a paper's name alone is the grid of its own method."""
    full = name if "/" in name else f"{name}/{name}"
    by_name = {g.name: g for g in GRIDS}
    if full not in by_name:
        if full == "fedspl/fedspl":
            raise ConfigError("--grid fedspl: the paper prints no grid (Figure 4's values are not in its text)")
        raise ConfigError(f"--grid {name}: {nearest(full, list(by_name))}")
    return by_name[full]
