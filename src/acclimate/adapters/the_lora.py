"""THE over two LoRAs: the test half of FedTHE (Jiang & Lin, ICLR 2023, Eq. 3-5) on the models of FedDPA.

Where THE weighs a global against a personal head, this weighs the answers of the shared LoRA against those of the
mixture that the local LoRA was trained in. Features and descriptors are those of the shared LoRA. All else is THE's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Predict, Tree
from ..ops.pairs import share_of
from .the import THE


@dataclass(frozen=True)
class THELoRA(THE):
    """Mixes the answers of a shared and a local LoRA, with a weight optimised per unlabelled sample."""

    requires: ClassVar[tuple[str, ...]] = ("share", "descriptors")
    made_by: ClassVar[str] = "method=feddpa-the model=lora-vit-local"

    def _answer(self, predict: Predict, model: Tree, state: Tree, x: Tensor) -> tuple[Tensor, Tree, Tensor, Tensor]:
        out, personal = predict(share_of(model, 0.0), x), predict(model, x).logits
        e, new = self.weigh(model, state, out.features, out.logits, personal)
        return e * out.logits + (1 - e) * personal, new, e, out.features
