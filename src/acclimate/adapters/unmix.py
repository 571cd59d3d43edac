"""UnMix-TNS. Tomar et al., ICLR 2024, Sec. 3: statistics for streams whose batches hold few classes.

Every batch norm over feature maps keeps K components (mu_k, var_k). An instance belongs to component k by the share
p_k = softmax_k(cos(its channel means m, mu_k) / 0.07). Each component is mixed with the instance's own statistics by
that share, and the instance is normalised with mean and variance of the even mixture of all K. Then the components
follow the instances: mu_k by momentum times the batch mean of p_k (m - mu_k), and var_k alike. They start around the
training statistics, at random (`seed`), such that their mixture has those. No gradient; one sample is enough.

Where the paper has one momentum, the released code scales it to the batch: 1 - (1 - momentum)^(B / 64), which is the
default (`full=64`; `full=None` is the paper's). One component is instance normalisation. Batch norm over features
without places keeps the training statistics, as released.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops import requirements
from ..ops.statistics import Unmix, components, running_of, with_buffers


@dataclass(frozen=True)
class UnMixTNS(Adapter):
    """Normalises each instance with un-mixed statistics of the stream; no gradient step (Tomar et al., ICLR 2024)."""

    components: int = 16
    """K; the paper has 16, and 128 for streams that mix shifts."""
    temperature: float = 0.07
    full: int | None = 64
    """The batch size with which components move by the layer's own momentum; None: with any."""
    seed: int = 0
    """Of the components' start."""

    def __post_init__(self) -> None:
        check.whole(self, "components", 1)
        check.positive(self, "temperature")
        if self.full is not None:
            check.whole(self, "full", 1)

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.batch_statistics(task, "UnMixTNS", maps=True) or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        key = rng.key(self.seed, model["vars"]["params"][task.head_weight].device)
        running = running_of(task, model["vars"]["buffers"])
        return {"buffers": components(running, self.components, rng.fold(key, "unmix"))}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(with_buffers(model, state["buffers"]), x, Unmix(self.temperature, self.full))
        return out.logits, {"buffers": running_of(task, out.buffers)}
