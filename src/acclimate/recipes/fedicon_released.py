"""FedICON's tables as two pieces of released code have them together: their data, their test images, their averages.

FedICON's own code was not released. The loader of FedPCL, by the same first author, reads files of 743 digits per
client, all 74 of a class at most, and scales them to -1..1; the corruptions that FedTHE released, which FedICON names,
wrap such images around and leave them in 0..1 (`wrapped`). An unseen domain comes through the loader alone, so Table 7
has other training data and the same test images. That loader does not scale Office-10, so its column of Table 9 is
that of the paper's recipe. The code around the loader averages models without weights, which matters where clients
differ in size: in Tables 2 and 5, of Office-10. All else is as in the recipes of the paper's text (`fedicon`), also its
test images: 200 of a class, drawn by the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..data import Digit5, PerClass
from ..shifts import Corrupted
from . import fedicon
from .record import Cell, Derived, Recipe, Scale
from .wrapped import WrappedBytes

WHOLE = PerClass(train=74)
"""All training images of a class that a file of the loader has."""
OFFICE = "Office-10"
"""The column of Table 9 whose images the loader does not scale."""
NOTES = (
    "Clients train on 74 images of a class, all that a file of the loader has which the first author released.",
    "Corrupted test images wrap around and stay in 0..1, as FedTHE's corruptions leave them behind that loader.",
)
ALIKE = (
    "All clients count one in an average, as in the code that the first author released with FedPCL; they have from "
    "125 to 898 training images.",
)


def _loaded(cell: Cell) -> Cell:
    """With the data and the test images of released code."""
    if cell.column == OFFICE:
        return cell
    data = cell.training.data
    whole = replace(data, split=WHOLE) if isinstance(data, Digit5) else data
    stream = WrappedBytes() if cell.stream == Corrupted() else cell.stream
    return replace(cell, training=replace(cell.training, data=whole), stream=stream)


def _alike(cell: Cell) -> Cell:
    """With averages in which every client counts one."""
    method = cell.training.method
    if not hasattr(method.record, "weights"):
        return cell
    return replace(cell, training=replace(cell.training, method=method.but(weights="uniform")))


TABLES: dict[str, tuple[Callable[[Cell], Cell], tuple[str, ...]]] = {
    "table1": (_loaded, NOTES),
    "table2": (_alike, ALIKE),
    "table5": (_alike, ALIKE),
    "table7": (_loaded, NOTES[:1]),
    "table8": (_loaded, NOTES),
    "table9": (_loaded, (*NOTES, "Office-10 is as in Table 9.")),
}


def _made(recipe: Recipe, change: Callable[[Cell], Cell], notes: tuple[str, ...]) -> Recipe:
    def make(scale: Scale) -> Iterator[Cell | Derived]:
        return (change(cell) if isinstance(cell, Cell) else cell for cell in recipe.make(scale))

    name, title = recipe.name.replace("/", "/released-"), f"{recipe.title}, as released code"
    return replace(recipe, name=name, title=title, make=make, notes=(*notes, *recipe.notes))


_OWN = {recipe.name: recipe for recipe in fedicon.RECIPES}
RECIPES: tuple[Recipe, ...] = tuple(_made(_OWN[f"fedicon/{table}"], *how) for table, how in TABLES.items())
