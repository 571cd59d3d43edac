"""What FedTHE's row "+ EM" may be: readings of its test phase, answering with the same two heads.

The recipe minimises the entropy of the mixed logits (Eq. 3), and finds the personal head nearly always; the published
row lies between the two heads. `--world paper` trains FedTHE as the recipe does, for a GPU. `--world pooled` is for a
CPU: a part of CIFAR-10 is dealt as BRFL deals it, body and global head of a smaller CNN are trained on the pooled
training data, and every client's personal head on its own, on the frozen body. So it shows how readings differ, not the
paper's numbers.

    python benchmarks/fedthe_readings.py --root DATA [--world pooled] [--alphas 0.1] [--seeds 0] [--device cpu]
        [--fraction 0.2] [--epochs 12] [--trainings FOLDER] [--out results/causes/fedthe-readings.json]

Percent, mean over clients and seeds, by skew, reading and stream; the paper's rows lie beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
import torch.nn.functional as F
from harness import environment, integers, parser_of, trained, write
from torch import Tensor, nn

import acclimate as ac
from acclimate.adapters import THE
from acclimate.core import Adapter, Tree, rng
from acclimate.core.gradient import grad
from acclimate.data import CIFAR10, Dirichlet
from acclimate.experiment.names import allow
from acclimate.ops.devices import device_of
from acclimate.ops.losses import entropy
from acclimate.recipes.adapters import FixedHeads
from acclimate.recipes.brfl import LINES, LabelSkew
from acclimate.shifts import Corrupted, Original, OutOfClient

STREAMS = {"original": Original(), "corrupted": Corrupted(), "out-of-client": OutOfClient()}
Form = Literal["highest", "free", "probabilities"]
Found = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Reading(THE):
    """Another objective for the weight of the global head."""

    form: Form = "highest"
    """The highest entropy, a weight without bounds, or the entropy of the heads' mixed probabilities."""

    def weigh(
        self, model: Tree, state: Tree, features: Tensor, generic: Tensor, personal: Tensor
    ) -> tuple[Tensor, Tree]:
        def objective(free: Tree) -> Tensor:
            e = free["w"] if self.form == "free" else free["w"].softmax(-1)[:, :1]
            if self.form == "probabilities":
                p = e * generic.softmax(-1) + (1 - e) * personal.softmax(-1)
                return -(p * p.clamp_min(1e-12).log()).sum()
            each = entropy(e * generic + (1 - e) * personal)
            return -each.sum() if self.form == "highest" else each.sum()

        rows = features.shape[0] if self.per == "sample" else 1
        start = features.new_full((rows, 1), 0.5) if self.form == "free" else features.new_ones((rows, 2))
        free = {"w": start}
        moments = self.opt.init(free)
        for _ in range(self.steps):
            free, moments = self.opt.update(grad(objective)(free), moments, free)
        e = free["w"] if self.form == "free" else free["w"].softmax(-1)[:, :1]
        return e.expand(features.shape[0], 1), state


@dataclass(frozen=True)
class Smoothed(THE):
    """Eq. 5 with a feature that is smoothed again in every step, as in the released code: it soon is the history."""

    def _smooth(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        return THE(alpha=self.alpha, beta=0.0)._smooth(features, state)


allow(Reading, Smoothed)
READINGS: dict[str, Adapter] = {
    "global head": FixedHeads(1.0),
    "personal head": FixedHeads(0.0),
    "5: half of each head": THE(steps=0),
    "6: alignment": THE(loss="fa"),
    "7: lowest entropy": THE(loss="em"),
    "highest entropy": Reading(form="highest"),
    "lowest, one weight per batch": THE(loss="em", per="batch"),
    "highest, one weight per batch": Reading(form="highest", per="batch"),
    "lowest, weight without bounds": Reading(form="free"),
    "lowest, of mixed probabilities": Reading(form="probabilities"),
    "8: half of each loss": THE(loss="sum"),
    "9: FedTHE": THE(),
    "FedTHE, smoothed in every step": Smoothed(),
}


class Net(nn.Module):
    """A small CNN without biases, of the form of the paper's."""

    def __init__(self, width: int = 16, dim: int = 64):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, width, 3, bias=False), nn.Conv2d(width, 2 * width, 3, bias=False)
        self.body, self.head = nn.Linear(2 * width * 36, dim, bias=False), nn.Linear(dim, 10, bias=False)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        return F.relu(self.body(F.max_pool2d(F.relu(self.two(x)), 2).flatten(1)))


def pooled(alpha: float, seed: int, given: Any) -> Found:
    """Accuracy of every reading with a body of pooled data and personal heads of clients."""
    torch.manual_seed(seed)
    data = CIFAR10(Dirichlet(alpha, "brfl"), 20, (0.6, 0.2, 0.2), fraction=given.fraction, root=given.root)
    world = data.world(seed)
    x, y = world.examples.x, world.examples.y
    rows = torch.cat(world.train)
    net = _body(scaled(x[rows]), y[rows], given.epochs)
    with torch.no_grad():
        own = [(net.features(scaled(x[r])), y[r]) for r in world.train]
    heads = [_head(features, labels) for features, labels in own]
    overall = torch.stack([features.mean(0) for features, _ in own]).mean(0)
    found: Found = {name: {} for name in READINGS}
    for stream, shift in STREAMS.items():
        shards = shift.build(world, rng.fold(rng.key(seed), "streams")).shards
        right: dict[str, list[float]] = {name: [] for name in READINGS}
        for client, head in enumerate(heads):
            at = shards.rows[client][: int(shards.n[client])]
            with torch.no_grad():
                features = net.features(scaled(shards.x[at]))
                generic, personal = net.head(features), features @ head
            model = {"descriptors": {"global": overall, "local": own[client][0].mean(0)}}
            for name, adapter in READINGS.items():
                e = _weights(adapter, model, features, generic, personal)
                mixed = e * generic + (1 - e) * personal
                right[name].append(float((mixed.argmax(1) == shards.y[at]).float().mean()))
        for name, accuracies in right.items():
            found[name][stream] = 100 * fmean(accuracies)
        print(stream, {name: round(own[stream], 1) for name, own in found.items()}, flush=True)
    return found


def scaled(x: Tensor) -> Tensor:
    """Bytes as numbers around zero."""
    return (x.float() / 255 - 0.47) / 0.25


def _body(x: Tensor, y: Tensor, epochs: int, batch: int = 32) -> Net:
    net = Net()
    opt = torch.optim.SGD(net.parameters(), 0.05, weight_decay=5e-4)
    for epoch in range(epochs):
        right = 0
        for at in torch.randperm(len(y)).split(batch):
            inputs = x[at].flip(3) if torch.rand(()) < 0.5 else x[at]
            logits = net.head(net.features(inputs))
            right += int((logits.argmax(1) == y[at]).sum())
            opt.zero_grad()
            F.cross_entropy(logits, y[at]).backward()
            opt.step()
        print("epoch", epoch, round(right / len(y), 3), flush=True)
    return net


def _head(features: Tensor, y: Tensor, epochs: int = 100, rate: float = 0.01) -> Tensor:
    """A linear head by SGD on cross-entropy, batches of 32."""
    head, target = torch.randn(features.shape[1], 10) / features.shape[1] ** 0.5, F.one_hot(y, 10).float()
    for _ in range(epochs):
        for at in torch.randperm(len(y)).split(32):
            error = (features[at] @ head).softmax(1) - target[at]
            head = head - rate * (features[at].T @ error / len(at) + 5e-4 * head)
    return head


def _weights(adapter: Any, model: Tree, features: Tensor, generic: Tensor, personal: Tensor) -> Tensor:
    """The weight of the global head for every sample of a stream, in batches of 32."""
    if isinstance(adapter, FixedHeads):
        return features.new_full((len(features), 1), adapter.e)
    zero = torch.zeros_like(features[0])
    state: Tree = {"history": zero, "last": zero, "started": torch.zeros(())}
    found = []
    for parts in zip(features.split(32), generic.split(32), personal.split(32), strict=True):
        e, state = adapter.weigh(model, state, *parts)
        found.append(e)
    return torch.cat(found)


def as_printed(alpha: float, seed: int, given: Any) -> Found:
    """Accuracy of every reading with FedTHE's training at paper scale."""
    training = LabelSkew(alpha).training(LINES["fedthe"].method, "paper")
    training = replace(training, data=replace(training.data, root=given.root))  # type: ignore[call-arg]
    fit = trained(training.experiment(seed, given.device), given.trainings)
    table = ac.evaluate(fit, adapters=tuple(READINGS.values()), streams=tuple(STREAMS.values()))
    rows = [row["accuracy"] for row in table.rows if row["selection"] == "last"]
    places = [(name, stream) for name in READINGS for stream in STREAMS]
    found: Found = {name: {} for name in READINGS}
    for (name, stream), accuracy in zip(places, rows, strict=True):
        found[name][stream] = 100 * accuracy
    return found


WORLDS: dict[str, Callable[[float, int, Any], Found]] = {"pooled": pooled, "paper": as_printed}


def published() -> Found:
    """The paper's rows of Table 3, which is of Dir(0.1)."""
    cells = json.loads(Path("results/fedthe/table3-paper.json").read_text())["cells"]
    found: Found = {}
    for cell in (c for c in cells if c["published"] and c["column"] in STREAMS):
        found.setdefault(cell["row"], {})[cell["column"]] = cell["published"]["mean"]
    return found


def main() -> None:
    """Train, answer by every reading, and write what was found after every training."""
    parser = parser_of(__doc__)
    parser.add_argument("--root", default="")
    parser.add_argument("--world", choices=tuple(WORLDS), default="pooled")
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=integers, default=[0])
    parser.add_argument("--fraction", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trainings", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/causes/fedthe-readings.json"))
    given = parser.parse_args()
    study = {k: getattr(given, k) for k in ("world", "alphas", "seeds")}
    if given.world == "pooled":
        study |= {"fraction": given.fraction, "epochs": given.epochs}
    runs: dict[str, list[Found]] = {}
    for seed in given.seeds:
        for alpha in given.alphas:
            runs.setdefault(f"dir({alpha:.1f})", []).append(WORLDS[given.world](alpha, seed, given))
            means = {at: mean_of(done) for at, done in runs.items()}
            body = {"study": study, "environment": environment(device_of(given.device))}
            write(given.out, {**body, "accuracy": means, "published": {"dir(0.1)": published()}})


def mean_of(done: list[Found]) -> Found:
    """Means over seeds."""
    return {name: {s: round(fmean(run[name][s] for run in done), 2) for s in STREAMS} for name in READINGS}


if __name__ == "__main__":
    main()
