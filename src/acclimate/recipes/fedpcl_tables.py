"""FedPCL's tables and figures. Tan et al., NeurIPS 2022: projections and prototypes over frozen backbones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..data import Features
from ..filters import Noise
from ..models.frozen import Frozen
from ..shifts import Original
from .federations import DIGIT5, RESNET18, small_cnn
from .fedpcl import (
    BACKBONES,
    BESIDE,
    KINDS,
    KITS,
    LONGER,
    OPT,
    ORDINARY,
    RELEASED,
    ROUNDS,
    ROWS,
    SHIFTS,
    SIDES,
    TEN,
    FrozenFederation,
    Shift,
    TableVersion,
    taking,
)
from .record import SMOKE_ROUNDS, Cell, Derived, Named, Recipe, Scale, Training, key

TEST = Original(batch=256)
Cells = Iterator[Cell | Derived]


def losses(rows: Mapping[str, Named]) -> dict[str, Named]:
    """Table 5: of its first two the paper prints what it prints of FedAvg and FedProto in Table 11."""
    made = {"Cross Entropy": rows["FedAvg"], "Cross Entropy + ProtoDist": rows["FedProto"]}
    made |= {"Supervised Contrastive": rows["FedPCL"].but(loss="supcon"), "FedPCL": rows["FedPCL"]}
    return made | {f"FedPCL, {loss}": rows["FedPCL"].but(loss=loss) for loss in ("ce", "ce+distance")}


def _cell(row: str, column: str, trained: Training, place: Any, measure: str = "accuracy") -> Cell:
    return Cell(row, column, trained, stream=TEST, measure=measure, key=place)


def table1(scale: Scale) -> Cells:
    """FedAvg from scratch, and on one or three frozen backbones."""
    paper = scale == "paper"
    own: dict[str, Any] = {"part": "test", "split": TEN} if paper else {}
    images = DIGIT5.federation(scale, **own)
    model, rounds = (RESNET18, ROUNDS) if paper else (small_cnn("batch"), SMOKE_ROUNDS)
    scratch = Training(ROWS["FedAvg"].at(scale), images, model, rounds)
    modes = {"Training from scratch": scratch}
    for count, printed in ((1, "Using 1 pre-trained model"), (3, "Using 3 pre-trained models")):
        setting = FrozenFederation(shift="feature", backbones=tuple(range(count)))
        modes[printed] = setting.training(ROWS["FedAvg"], scale, rounds=rounds)
    quantities = {"parameters": "trained", "time per round": "seconds", "test accuracy": "accuracy"}
    for mode, trained in modes.items():
        for quantity, measure in quantities.items():
            yield _cell(mode, quantity, trained, key(mode=mode, quantity=quantity), measure)


def table2(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Feature shift on Digit-5: every domain, and what a client sends; Office-10, which the paper does not have."""
    names = DIGIT5.names(scale)
    for backbone, count in KINDS.items():
        for row, trained in {**version.rows, **version.beside}.items():
            printed = row.replace("Per-FedAvg", "PerFedAvg")
            setting = version.at(shift="feature", backbones=count)
            training = setting.training(trained, scale)
            shared = {"method": printed, "backbone": backbone}
            for domain, own in names.items():
                place = key(**shared, domain=domain, quantity="test accuracy")
                yield _cell(row, f"{backbone} {domain}", training, place, f"domain:{own}")
            place, columns = key(**shared, domain="Avg"), tuple(f"{backbone} {domain}" for domain in names)
            yield Derived(row, f"{backbone} Avg", columns, key=place)
            if row != "Solo":
                place = key(**shared, quantity="parameters sent per client and round")
                yield _cell(row, f"{backbone} sent", training, place, "sent")
            if scale == "paper" and not version.released:
                other = replace(setting, data="Office-10").training(trained, scale)
                yield _cell(row, f"{backbone} Office-10", other, None)


def table3(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Office-10 under both shifts, DomainNet's Real under label shift."""
    cases: tuple[tuple[str, Shift], ...] = (("Office-10", "both"), ("DomainNet", "label"))
    for row, trained in version.rows.items():
        for data, shift in cases[: 1 if version.released else 2]:
            place = key(method=row, dataset=data)
            yield _cell(row, data, version.at(data, shift).training(trained, scale), place)


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
            setting = FrozenFederation(data, "both", (number,))
            training = setting.training(ROWS["FedPCL"], scale)
            if scale == "paper":
                assert isinstance(training.data, Features)
                side = SIDES[data] if row == "EfficientNets" else 224
                encoder = Frozen(names, size=side, width=512)
                training = replace(training, data=replace(training.data, encoder=encoder))
            yield _cell(row, data, training, key(backbones=printed, dataset=data))


def table5(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Local losses. The paper's first two rows are its FedAvg and FedProto; FedPCL with their losses stands beside."""
    for row, trained in losses(version.rows).items():
        place = key(method=row) if not row.startswith("FedPCL,") else None
        yield _cell(row, "accuracy", version.at().training(trained, scale), place)


def table6(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Global prototypes, local ones, and both; by the equations, as the published code has no such choice."""
    for row, kinds in (("global only", "global"), ("local only", "local"), ("both", "both")):
        on = {"global_prototypes": kinds != "local", "local_prototypes": kinds != "global"}
        for shift, printed in SHIFTS.items():
            training = version.at(shift=shift).training(version.plain.but(prototypes=kinds), scale)
            yield _cell(row, f"{shift} shift", training, key(**on, shift=printed))


def table11(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Seven methods under label shift and under both shifts, with one and with three backbones."""
    shifts: tuple[Shift, ...] = ("label", "both")
    for shift in shifts:
        for backbone, count in KINDS.items():
            for data in list(KITS)[: 2 if version.released else 3] if scale == "paper" else ("Digit-5",):
                for row, trained in {**version.rows, **version.beside}.items():
                    training = version.at(data, shift, count).training(trained, scale)
                    place = key(method=row, shift=SHIFTS[shift], backbone=backbone, dataset=data)
                    yield _cell(row, f"{shift} shift {backbone} {data}", training, place)


def _single(**changes: Any) -> Callable[[Scale], Cells]:
    """Tables 2 and 11 with one backbone, and other features or layers; tested on clients' own classes, as measured."""

    def make(scale: Scale) -> Cells:
        for data in ("Office-10", "Digit-5") if scale == "paper" else ("Digit-5",):
            for shift, printed in SHIFTS.items():
                for row, trained in {**ROWS, **BESIDE}.items():
                    setting = FrozenFederation(data, shift, (0,), balanced=False, **changes)
                    training = setting.training(trained, scale)
                    place = key(method=row, shift=printed, backbone="single", dataset=data)
                    cell = _cell(row, f"{shift} shift {data}", training, place)
                    # the paper's average has SynthDigits in it, and an ordinary network
                    yield replace(cell, key=None) if shift == "feature" else cell

    return make


LEARNING_RATES = (1e-4, 1e-3, 1e-2)
"""The paper's, without its largest."""


def tuning(scale: Scale) -> Cells:
    """Validation accuracy of every row at several learning rates, along the rounds."""
    last, step = (30, 5) if scale == "paper" else (SMOKE_ROUNDS, SMOKE_ROUNDS // 2)
    for row, named in {**ROWS, **BESIDE}.items():
        for rate in LEARNING_RATES if scale == "paper" else LEARNING_RATES[1:]:
            tuned = named.but(opt=replace(OPT, lr=rate))
            made = FrozenFederation(backbones=(0,), balanced=False).training(tuned, scale, every=step)
            for point in range(step, last + 1, step):
                training, measure = replace(made, rounds=last), f"validation:{point}"
                yield _cell(f"{row}, lr {rate:g}", f"round {point}", training, None, measure)


FAIRNESS = {"Average": "accuracy", "Worst 10%": "worst10", "Worst 20%": "worst20", "Worst 40%": "worst40"}
FAIRNESS |= {"Best 10%": "best10", "Variance": "std"}


def fairness(clients: int) -> Callable[..., Cells]:
    """Tables 12 and 13: so many clients of MNIST-M, from the worst served to the best."""

    def make(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
        for row in ("FedAvg", "FedPCL"):
            many = clients if scale == "paper" else clients // 4
            training = version.at(shift="label", clients=many).training(version.rows[row], scale)
            for quantity, measure in FAIRNESS.items():
                yield _cell(row, quantity, training, key(method=row, quantity=quantity), measure)

    return make


def table14(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """One, two and three backbones: what is trained, what is fixed, and what it gives."""
    quantities = {"training parameters": "trained", "fixed parameters": "fixed", "test accuracy": "accuracy"}
    for count in (1, 2, 3):
        training = version.at(backbones=count).training(version.rows["FedPCL"], scale)
        for quantity, measure in quantities.items():
            yield _cell(f"{count} backbones", quantity, training, key(backbones=count, quantity=quantity), measure)


def table15(scale: Scale, version: TableVersion = ORDINARY) -> Cells:
    """Noise on what is sent, or on the images."""
    plain, rows = version.at("Office-10", "label"), version.rows
    for row in ("FedRep", "FedPCL"):
        yield _cell(row, "accuracy", plain.training(rows[row], scale), key(method=row, noise_on=None))
    for where, s in (("Prototype", 0.05), ("Image", 0.2)):
        for p in (0.1, 0.2):
            for printed in ("Laplace", "Gaussian"):
                kind: Any = printed.lower()
                if where == "Prototype":
                    noise = Noise(kind, s, p, groups=("prototypes",))
                    training = plain.training(rows["FedPCL"], scale, filters=(noise,))
                else:
                    training = replace(plain, noise=(kind, s, p)).training(rows["FedPCL"], scale)
                place = key(method="FedPCL", noise_on=where, noise=printed, perturbation=p)
                yield _cell(f"{where.lower()}s, {printed}, p = {p:g}", "accuracy", training, place)


def figure2(scale: Scale) -> Cells:
    """From strong to weak label shift, and from few to many clients."""
    for row in ("FedPCL", "FedRep", "Solo"):
        for alpha in (0.5, 1.0, 2.0, 5.0, 10.0):
            setting = FrozenFederation(shift="label", clients=10, alpha=alpha)
            yield _cell(row, f"alpha {alpha:g}", setting.training(ROWS[row], scale), None)
    for row in ("FedPCL", "FedAvg"):
        for clients in (5, 10, 20, 40, 80) if scale == "paper" else (5, 10):
            training = FrozenFederation(shift="label", clients=clients).training(ROWS[row], scale)
            for quantity, measure in FAIRNESS.items():
                yield _cell(row, f"{clients} clients, {quantity}", training, None, measure)


def figure3(scale: Scale) -> Cells:
    """How near each backbone's prototypes are to the fused ones, for every client."""
    for data in ("Digit-5", "Office-10"):
        fused = FrozenFederation(data, "feature").training(ROWS["FedPCL"], scale)
        for number, name in enumerate(BACKBONES):
            single = FrozenFederation(data, "feature", (number,)).training(ROWS["FedPCL"], scale)
            for domain, own in KITS[data].names(scale).items():
                measure = f"similarity:{own}"
                yield Cell(name, f"{data} {domain}", single, stream=TEST, measure=measure, against=fused)


STAND_IN = "EfficientNet-Lites trained on ImageNet stand in for the paper's ResNet-18s, 512 random directions of each."
CONVERGED = (
    f"FedAvg has {LONGER['fedavg']} rounds, Solo {LONGER['local']}, FedPCL {ROUNDS}, as in the published scripts; the "
    f"others, which have none, {ROUNDS}. The paper trains until the loss converges."
)
NOTES = (STAND_IN, CONVERGED)
BESIDE_NOTE = f"`{RELEASED}` is not in the paper: FedPCL as its code has it."
SMOKE_NOTE = "At smoke scale Digit-5 alone."
WHOLE = (
    "DomainNet is read whole, 345 classes; the paper's layer has ten outputs and its clients about a hundred examples "
    "each, of classes that it does not name. Expect other numbers in that column."
)
APART = "No column needs another's data: without DomainNet's files, which no recipe fetches, the others run."
RECIPES: tuple[Recipe, ...] = (
    Recipe("fedpcl/table1", "From scratch against frozen backbones", table1, "fedpcl/table1", NOTES),
    Recipe("fedpcl/table2", "Feature shift on Digit-5, by domain", table2, "fedpcl/table2", (*NOTES, BESIDE_NOTE)),
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
        "fedpcl/table11",
        "Label shift, and both shifts",
        table11,
        "fedpcl/table11",
        (*NOTES, BESIDE_NOTE, WHOLE, APART, SMOKE_NOTE),
    ),
    Recipe("fedpcl/table12", "Fairness over 40 clients", fairness(40), "fedpcl/table12", NOTES),
    Recipe("fedpcl/table13", "Fairness over 80 clients", fairness(80), "fedpcl/table13", NOTES),
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
        "fedpcl/released",
        "Tables 2 and 11 with the published code's classifier",
        _single(head="released"),
        "fedpcl/table11",
        ("The paper describes a plain layer.", BESIDE_NOTE, *NOTES),
    ),
    Recipe(
        "fedpcl/bits",
        "Tables 2 and 11 with the published code's classifier and features that are 0 or 1",
        _single(head="released", bits=True),
        "fedpcl/table11",
        ("In the published code every feature is divided by its own absolute value.", BESIDE_NOTE, *NOTES),
    ),
    Recipe(
        "fedpcl/norm",
        "Tables 2 and 11 with batch norm after the projection",
        _single(norm="batch"),
        "fedpcl/table11",
        ("Table 7 has the layer; the numbers of parameters in Tables 2 and 14 have not.", BESIDE_NOTE, *NOTES),
    ),
    Recipe(
        "fedpcl/tuning",
        "Learning rates, by validation accuracy on Digit-5 under both shifts",
        tuning,
        None,
        ("Numbers of ours alone: the paper has no such table.", STAND_IN),
    ),
)
RECIPES = tuple(taking(replace(recipe, pace=0.1)) for recipe in RECIPES)  # features are computed once
OMITTED = {
    "fedpcl/table7": "the layers of the projection, no number; `acclimate show projection` has them",
    "fedpcl/table8": "sizes of the federation under feature shift: settings, not results",
    "fedpcl/table9": "sizes of the federation under label shift: settings, not results",
    "fedpcl/table10": "sizes of the federation under both: settings, not results",
    "fedpcl/figure1": "a drawing of the framework",
    "fedpcl/figure4": "a picture of the partitions; `acclimate data preview` draws one",
    "fedpcl/figure5": "example images",
    "fedpcl/figure6": "rows of fedpcl/table15; the text says that noise on images costs about 2 points at p = 0.2",
}
