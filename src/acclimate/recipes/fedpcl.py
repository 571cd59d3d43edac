"""FedPCL's tables and figures. Tan et al., NeurIPS 2022: projections and prototypes over frozen backbones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core import Adam, Work
from ..data import ByDomain, Dataset, Dirichlet, Features, Noisy, Partition
from ..filters import Noise
from ..models.frozen import Frozen, Projection
from ..ops.noise import Kind
from ..shifts import Original
from .federations import DIGIT5, DOMAINNET, OFFICE10, RESNET18, small_cnn
from .record import SMOKE_ROUNDS, Cell, Derived, Named, Recipe, Scale, Training, key, method

OPT, WORK, ROUNDS = Adam(lr=1e-3, weight_decay=1e-4), Work(epochs=1, batch=32), 50
BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
TEST = Original(batch=256)
Shift = Literal["feature", "label", "both"]
Cells = Iterator[Cell | Derived]
KITS = {"Digit-5": DIGIT5, "Office-10": OFFICE10, "DomainNet": DOMAINNET}
SIDES = {"Digit-5": 64, "Office-10": 128, "DomainNet": 128}
"""Pixels that the backbones see."""
ALONE = {"Digit-5": "MNIST-M", "Office-10": "Caltech", "DomainNet": "Real"}
"""The one domain of label shift."""
SHIFTS: dict[Shift, str] = {
    "feature": "feature shift non-IID",
    "label": "label shift non-IID",
    "both": "feature & label shift non-IID",
}
KINDS = {"single": 1, "multi": 3}


def _method(name: str, **changes: Any) -> Named:
    """Every method has the paper's optimiser and local work."""
    return method(name, opt=OPT, work=WORK, **changes)


ROWS: dict[str, Named] = {
    "FedAvg": _method("fedavg"),
    "pFedMe": _method("pfedme", eta=0.05),
    "Per-FedAvg": _method("perfedavg"),
    "FedRep": _method("fedrep"),
    "FedProto": _method("fedproto"),
    "Solo": _method("local"),
    "FedPCL": _method("fedpcl"),
}
LOSSES = {"Cross Entropy": "ce", "Cross Entropy + ProtoDist": "ce+distance", "Supervised Contrastive": "supcon"}


class _Stub(nn.Module):
    """A backbone of smoke scale: fixed random filters, other ones for every number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(number)
        self.conv = nn.Conv2d(3, 8, 5, stride=2)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randn(self.conv.weight.shape, generator=g) / 5)
            self.conv.bias.zero_()  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(self.conv(x).relu(), 4).flatten(1)


@lru_cache(maxsize=4)
def _stub(number: int) -> nn.Module:
    return _Stub(number)


@dataclass(frozen=True)
class Setting:
    """One of the paper's federations: a data set, a kind of shift, and which frozen backbones see its images."""

    data: str = "Digit-5"
    shift: Shift = "both"
    backbones: tuple[int, ...] = (0, 1, 2)
    clients: int | None = None
    """Under label shift: how many; None: 5."""
    alpha: float = 1.0
    noise: tuple[Kind, float, float] | None = None
    """On the images: kind, scale and share."""

    def training(self, trained: Named, scale: Scale, **fields: Any) -> Training:
        """One training of this setting, on features that are computed once."""
        kit, label = KITS[self.data], self.shift == "label"
        only = (ALONE[self.data],) if label else ()
        part: dict[str, Any] = {"part": "test"} if scale == "paper" and self.data == "Digit-5" else {}
        images: Dataset = kit.federation(scale, only=only, **part)
        partition, clients, split = self._dealt(images.clients, scale)
        images = replace(images, fraction=1.0, partition=ByDomain(), clients=1)
        if self.noise is not None:
            kind, s, p = self.noise
            images = Noisy(data=images, kind=kind, s=s, p=p)
        data = Features(
            partition, clients, split, fraction=self._share(scale), data=images, encoder=self.encoder(scale)
        )
        rounds = ROUNDS if scale == "paper" else SMOKE_ROUNDS
        return Training(trained.at(scale), data, Projection(), rounds, **fields)

    def encoder(self, scale: Scale) -> Frozen:
        """The frozen backbones."""
        if scale == "smoke":
            return Frozen(tuple(_stub(b) for b in self.backbones))
        return Frozen(tuple(BACKBONES[b] for b in self.backbones), size=SIDES[self.data], width=512)

    def _share(self, scale: Scale) -> float:
        many = (self.clients or 0) > 20
        return 1.0 if scale == "paper" or many else 0.5

    def _dealt(self, domains: int, scale: Scale) -> tuple[Partition, int, tuple[float, float, float]]:
        """Who gets what: about a hundred training examples per client, most of the rest for testing."""
        if self.shift == "label" and self.clients is None:
            floor = 110 if scale == "paper" else 20
            return Dirichlet(self.alpha, "natural", floor=floor), 5, (0.3, 0.05, 0.65)
        if self.shift == "label":
            return Dirichlet(self.alpha), self.clients or 5, (0.4, 0.05, 0.55)
        small, large = (0.06, 0.04, 0.9), (0.25, 0.05, 0.7)
        if scale == "smoke":
            small = large = (0.3, 0.1, 0.6)
        feature = small if self.data == "Digit-5" else large
        return ByDomain(alpha=None if self.shift == "feature" else 1.0), domains, feature


def _cell(row: str, column: str, trained: Training, place: Any, measure: str = "accuracy") -> Cell:
    return Cell(row, column, trained, stream=TEST, measure=measure, key=place)


# --- tables ---------------------------------------------------------------------------------------------------------


def table1(scale: Scale) -> Cells:
    """FedAvg from scratch, and on one or three frozen backbones."""
    images = DIGIT5.federation(scale)
    model, rounds = (RESNET18, ROUNDS) if scale == "paper" else (small_cnn("batch"), SMOKE_ROUNDS)
    scratch = Training(ROWS["FedAvg"].at(scale), images, model, rounds)
    modes = {"Training from scratch": scratch}
    for count, printed in ((1, "Using 1 pre-trained model"), (3, "Using 3 pre-trained models")):
        setting = Setting(shift="feature", backbones=tuple(range(count)))
        modes[printed] = setting.training(ROWS["FedAvg"], scale)
    quantities = {"parameters": "trained", "time per round": "seconds", "test accuracy": "accuracy"}
    for mode, trained in modes.items():
        for quantity, measure in quantities.items():
            yield _cell(mode, quantity, trained, key(mode=mode, quantity=quantity), measure)


def table2(scale: Scale) -> Cells:
    """Feature shift on Digit-5: every domain, and what a client sends."""
    names = DIGIT5.names(scale)
    for backbone, count in KINDS.items():
        for row, trained in ROWS.items():
            printed = row.replace("Per-FedAvg", "PerFedAvg")
            training = Setting(shift="feature", backbones=tuple(range(count))).training(trained, scale)
            shared = {"method": printed, "backbone": backbone}
            for domain, own in names.items():
                place = key(**shared, domain=domain, quantity="test accuracy")
                yield _cell(row, f"{backbone} {domain}", training, place, f"domain:{own}")
            place, columns = key(**shared, domain="Avg"), tuple(f"{backbone} {domain}" for domain in names)
            yield Derived(row, f"{backbone} Avg", columns, key=place)
            if row != "Solo":
                place = key(**shared, quantity="parameters sent per client and round")
                yield _cell(row, f"{backbone} sent", training, place, "sent")


def table3(scale: Scale) -> Cells:
    """Office-10 under both shifts, DomainNet's Real under label shift."""
    cases: tuple[tuple[str, Shift], ...] = (("Office-10", "both"), ("DomainNet", "label"))
    for row, trained in ROWS.items():
        for data, shift in cases:
            place = key(method=row, dataset=data)
            yield _cell(row, data, Setting(data, shift).training(trained, scale), place)


SETS = {
    "EfficientNets": (BACKBONES, 0, ["ResNet18-QuickDraw", "ResNet18-Aircraft", "ResNet18-Birds"]),
    "AlexNet, VGG": (
        ("torchvision:alexnet", "torchvision:vgg11"),
        1,
        ["MLP-ImageNet", "AlexNet-ImageNet", "VGG11-ImageNet"],
    ),
    "ViTs": (
        tuple(f"timm:vit_{size}_patch16_224" for size in ("tiny", "small", "base")),
        2,
        ["tiny-ViT-ImageNet", "small-ViT-ImageNet", "base-ViT-ImageNet"],
    ),
}
"""Table 4's sets of backbones: names, a stand-in for smoke scale, and as printed."""


def table4(scale: Scale) -> Cells:
    """FedPCL on backbones of different architectures."""
    for row, (names, number, printed) in SETS.items():
        for data in ("Digit-5", "Office-10"):
            setting = Setting(data, "both", (number,))
            training = setting.training(ROWS["FedPCL"], scale)
            if scale == "paper":
                assert isinstance(training.data, Features)
                side = SIDES[data] if row == "EfficientNets" else 224
                encoder = Frozen(names, size=side, width=512)
                training = replace(training, data=replace(training.data, encoder=encoder))
            yield _cell(row, data, training, key(backbones=printed, dataset=data))


def table5(scale: Scale) -> Cells:
    """Local losses."""
    for row, loss in LOSSES.items():
        yield _cell(row, "accuracy", Setting().training(ROWS["FedPCL"].but(loss=loss), scale), key(method=row))
    yield _cell("FedPCL", "accuracy", Setting().training(ROWS["FedPCL"], scale), key(method="FedPCL"))


def table6(scale: Scale) -> Cells:
    """Global prototypes, local ones, and both."""
    for row, kinds in (("global only", "global"), ("local only", "local"), ("both", "both")):
        on = {"global_prototypes": kinds != "local", "local_prototypes": kinds != "global"}
        for shift, printed in SHIFTS.items():
            training = Setting(shift=shift).training(ROWS["FedPCL"].but(prototypes=kinds), scale)
            yield _cell(row, f"{shift} shift", training, key(**on, shift=printed))


def table11(scale: Scale) -> Cells:
    """Seven methods under label shift and under both shifts, with one and with three backbones."""
    shifts: tuple[Shift, ...] = ("label", "both")
    for shift in shifts:
        for backbone, count in KINDS.items():
            for data in KITS if scale == "paper" else ("Digit-5",):
                for row, trained in ROWS.items():
                    training = Setting(data, shift, tuple(range(count))).training(trained, scale)
                    place = key(method=row, shift=SHIFTS[shift], backbone=backbone, dataset=data)
                    yield _cell(row, f"{shift} shift {backbone} {data}", training, place)


FAIRNESS = {"Average": "accuracy", "Worst 10%": "worst10", "Worst 20%": "worst20", "Worst 40%": "worst40"}
FAIRNESS |= {"Best 10%": "best10", "Variance": "std"}


def _fairness(clients: int) -> Callable[[Scale], Cells]:
    def make(scale: Scale) -> Cells:
        for row in ("FedAvg", "FedPCL"):
            many = clients if scale == "paper" else clients // 4
            training = Setting(shift="label", clients=many).training(ROWS[row], scale)
            for quantity, measure in FAIRNESS.items():
                yield _cell(row, quantity, training, key(method=row, quantity=quantity), measure)

    return make


def table14(scale: Scale) -> Cells:
    """One, two and three backbones: what is trained, what is fixed, and what it gives."""
    quantities = {"training parameters": "trained", "fixed parameters": "fixed", "test accuracy": "accuracy"}
    for count in (1, 2, 3):
        training = Setting(backbones=tuple(range(count))).training(ROWS["FedPCL"], scale)
        for quantity, measure in quantities.items():
            place = key(backbones=count, quantity=quantity)
            yield _cell(f"{count} backbones", quantity, training, place, measure)


def table15(scale: Scale) -> Cells:
    """Noise on what is sent, or on the images."""
    plain = Setting("Office-10", "label")
    for row in ("FedRep", "FedPCL"):
        yield _cell(row, "accuracy", plain.training(ROWS[row], scale), key(method=row, noise_on=None))
    for where, s in (("Prototype", 0.05), ("Image", 0.2)):
        for p in (0.1, 0.2):
            for printed in ("Laplace", "Gaussian"):
                kind: Any = printed.lower()
                if where == "Prototype":
                    noise = Noise(kind, s, p, groups=("prototypes",))
                    training = plain.training(ROWS["FedPCL"], scale, filters=(noise,))
                else:
                    training = replace(plain, noise=(kind, s, p)).training(ROWS["FedPCL"], scale)
                place = key(method="FedPCL", noise_on=where, noise=printed, perturbation=p)
                yield _cell(f"{where.lower()}s, {printed}, p = {p:g}", "accuracy", training, place)


# --- figures --------------------------------------------------------------------------------------------------------


def figure2(scale: Scale) -> Cells:
    """From strong to weak label shift, and from few to many clients."""
    for row in ("FedPCL", "FedRep", "Solo"):
        for alpha in (0.5, 1.0, 2.0, 5.0, 10.0):
            setting = Setting(shift="label", clients=10, alpha=alpha)
            yield _cell(row, f"alpha {alpha:g}", setting.training(ROWS[row], scale), None)
    for row in ("FedPCL", "FedAvg"):
        for clients in (5, 10, 20, 40, 80) if scale == "paper" else (5, 10):
            setting = Setting(shift="label", clients=clients)
            yield _cell(row, f"{clients} clients", setting.training(ROWS[row], scale), None)


def figure3(scale: Scale) -> Cells:
    """How near each backbone's prototypes are to the fused ones, for every client."""
    for data in ("Digit-5", "Office-10"):
        fused = Setting(data, "feature").training(ROWS["FedPCL"], scale)
        for number, name in enumerate(BACKBONES):
            single = Setting(data, "feature", (number,)).training(ROWS["FedPCL"], scale)
            for domain, own in KITS[data].names(scale).items():
                measure = f"similarity:{own}"
                yield Cell(name, f"{data} {domain}", single, stream=TEST, measure=measure, against=fused)


def figure6(scale: Scale) -> Cells:
    """What noise on the images costs."""
    plain = Setting("Office-10", "label")
    for printed in ("Gaussian", "Laplace"):
        kind: Any = printed.lower()
        yield _cell(printed, "no noise", plain.training(ROWS["FedPCL"], scale), None)
        for p in (0.1, 0.2):
            training = replace(plain, noise=(kind, 0.2, p)).training(ROWS["FedPCL"], scale)
            yield _cell(printed, f"p = {p:g}", training, None)
        yield Derived(printed, "change at p = 0.2", ("no noise", "p = 0.2"), "difference")


STAND_IN = "EfficientNet-Lites trained on ImageNet stand in for the paper's ResNet-18s, 512 random directions of each."
CONVERGED = f"{ROUNDS} rounds; the paper trains until the loss converges."
NOTES = (STAND_IN, CONVERGED)
SMOKE_NOTE = "At smoke scale Digit-5 alone."
WHOLE = (
    "DomainNet is read whole, 345 classes; the paper's layer has ten outputs and its clients about a hundred examples "
    "each, of classes that it does not name. Expect other numbers in that column."
)
APART = "No column needs another's data: without DomainNet's files, which no recipe fetches, the others run."
RECIPES: tuple[Recipe, ...] = (
    Recipe("fedpcl/table1", "From scratch against frozen backbones", table1, "fedpcl/table1", NOTES),
    Recipe("fedpcl/table2", "Feature shift on Digit-5, by domain", table2, "fedpcl/table2", NOTES),
    Recipe("fedpcl/table3", "Office-10 and DomainNet", table3, "fedpcl/table3", (*NOTES, WHOLE, APART)),
    Recipe(
        "fedpcl/table4",
        "Backbones of other architectures",
        table4,
        "fedpcl/table4",
        (*NOTES, "The paper's small CNN has no published weights: AlexNet and VGG-11 alone."),
    ),
    Recipe("fedpcl/table5", "Four local losses", table5, "fedpcl/table5", NOTES),
    Recipe("fedpcl/table6", "Global and local prototypes", table6, "fedpcl/table6", NOTES),
    Recipe(
        "fedpcl/table11", "Label shift, and both shifts", table11, "fedpcl/table11", (*NOTES, WHOLE, APART, SMOKE_NOTE)
    ),
    Recipe("fedpcl/table12", "Fairness over 40 clients", _fairness(40), "fedpcl/table12", NOTES),
    Recipe("fedpcl/table13", "Fairness over 80 clients", _fairness(80), "fedpcl/table13", NOTES),
    Recipe("fedpcl/table14", "One, two and three backbones", table14, "fedpcl/table14", NOTES),
    Recipe("fedpcl/table15", "Noise on prototypes and on images", table15, "fedpcl/table15", NOTES),
    Recipe(
        "fedpcl/figure2",
        "Label skew, and the number of clients",
        figure2,
        None,
        ("The figure prints no numbers; the text has FedPCL about 15 points above FedAvg.", *NOTES),
    ),
    Recipe(
        "fedpcl/figure3",
        "Each backbone's part in the fused prototypes",
        figure3,
        None,
        ("Cosines, not normalised; of the figure's numbers the text gives one.", *NOTES),
    ),
    Recipe(
        "fedpcl/figure6",
        "What noise on the images costs",
        figure6,
        None,
        ("The figure shows images; the text says about 2 points at p = 0.2.", *NOTES),
    ),
)
RECIPES = tuple(replace(recipe, pace=0.1) for recipe in RECIPES)  # features are computed once
OMITTED = {
    "fedpcl/table7": "the layers of the projection, no number; `acclimate show projection` has them",
    "fedpcl/table8": "sizes of the federation under feature shift: settings, not results",
    "fedpcl/table9": "sizes of the federation under label shift: settings, not results",
    "fedpcl/table10": "sizes of the federation under both: settings, not results",
    "fedpcl/figure1": "a drawing of the framework",
    "fedpcl/figure4": "a picture of the partitions; `acclimate data preview` draws one",
    "fedpcl/figure5": "example images",
}
