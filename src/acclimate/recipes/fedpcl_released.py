"""FedPCL's tables as its published code has them.

As there, in all points that are known: features cut to 0 and 1; classifiers that give the softmax the positive part of
their logits, scaled to length one; images of 64 pixels, dealt and tested on as by its loader; FedPCL with the loss and
the answers of the code; means in which clients count alike. `weights=FOLDER` brings ResNet-18s in the paper's place,
`drawings`, `machines` and `animals`, each as NAME.safetensors; benchmarks/stand_ins.py trains some. Without it the
EfficientNets of the other recipes are taken. Coverage counts the tables with an ordinary classifier (fedpcl_tables.py):
the paper's weights are not here, and the stand-in that was trained gives poorer features of digits than random weights.

What is known and differs: SynthDigits is not among our files; the code makes prototypes without a client's last,
smaller batch, and starts every client of Solo and FedPCL from weights of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from .fedpcl import PLAIN, STAND_INS, released
from .fedpcl_tables import Cells, fairness, table2, table3, table5, table6, table11, table14, table15
from .record import Recipe, Scale

AS_RELEASED = (
    "As the published code: features are 0 or 1, classifiers end in ReLU and length one, images have 64 pixels and are "
    "dealt and tested on as by its loader, clients count alike."
)
WEIGHTS_NOTE = (
    f"weights=FOLDER brings {', '.join(STAND_INS)} (NAME.safetensors, of benchmarks/stand_ins.py) in place of the "
    "paper's ResNet-18s; without it EfficientNet-Lites stand in."
)
ROUNDS_NOTE = (
    "FedAvg has 200 rounds, Solo 100, FedPCL 50 on Digit-5 under one shift and 100 elsewhere, as in the published "
    "scripts; the others, which have none, 50."
)
NOTES = (AS_RELEASED, WEIGHTS_NOTE, ROUNDS_NOTE)
BESIDE_NOTE = f"`FedPCL` is that of the published code; `{PLAIN}`, which is not in the paper, that of its equations."
ABLATION_NOTE = "The code cannot choose prototypes: all rows are by the paper's equations."
TABLES: dict[str, tuple[str, Callable[..., Cells], tuple[str, ...]]] = {
    "table2": ("Feature shift on Digit-5, by domain", table2, (BESIDE_NOTE,)),
    "table3": ("Office-10", table3, ()),
    "table5": ("Four local losses", table5, ()),
    "table6": ("Global and local prototypes", table6, (ABLATION_NOTE,)),
    "table11": ("Label shift, and both shifts", table11, (BESIDE_NOTE,)),
    "table12": ("Fairness over 40 clients", fairness(40), ()),
    "table13": ("Fairness over 80 clients", fairness(80), ()),
    "table14": ("One, two and three backbones", table14, ()),
    "table15": ("Noise on prototypes and on images", table15, ()),
}


def _made(table: Callable[..., Cells]) -> Callable[..., Cells]:
    def make(scale: Scale, backbones: tuple[str, ...] = ()) -> Cells:
        return table(scale, released(backbones))

    return make


RECIPES: tuple[Recipe, ...] = tuple(
    Recipe(
        f"fedpcl/released-{name}",
        f"{title}, as the published code",
        _made(table),
        f"fedpcl/{name}",
        (*NOTES, *more),
        pace=0.1,
        starts=True,
        takes=STAND_INS,
    )
    for name, (title, table, more) in TABLES.items()
)
