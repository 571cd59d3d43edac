"""FedICON, training half. Tan et al., KDD FL4Data-Mining 2023, Sec. 3.1 (the test half is adapters/icon.py).

- Encoder (everything but the head): contrastive training on two random views of every sample (Eq. 1), samples of one
  class being each other's positives (Eq. 2 and 3). Representations are unit vectors, and the loss is a mean over the
  batch's anchors; the paper's sum would make the step depend on the batch size.
- The server averages encoders by their number of samples. As printed, Eq. 4 divides the weighted mean by the number of
  clients once more, which would shrink the model in every round: a slip; here the weights sum to one.
- Classifier (the head): trained with cross-entropy on the frozen received encoder and averaged along with it, then
  personalised when the last encoder has arrived (`finish_personal`). The paper trains it after the encoder, for an
  unnamed number of rounds: `encoder_rounds` freezes the encoder from that round on. By default both are trained in
  every round, which sends the same and costs no further rounds; no gradient of the classifier reaches the
  encoder either way.

`labels=False` is FedICON-us: the encoder sees no labels, every sample is its own class. Table 8 is `extract` (False:
cross-entropy for the whole model), `share` (False: nothing is sent), and the adapter ICON or none. With
`extract=False` this is FedAvg, and with `share=False` too it is Local. No code came with the paper.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import SGD, Loss, Optimizer, Rules, Task, Tree, Weighted, Work, check, rng, train, tree
from ..ops import requirements
from ..ops.augment import Views
from ..ops.nets import features_of, fit_head, head_of, with_head
from ..ops.prototypes import contrastive


@dataclass(frozen=True)
class FedICON(Weighted):
    """A shared contrastive encoder and a classifier on top of it (Tan et al., 2023)."""

    opt: Optimizer = SGD(lr=0.01, weight_decay=5e-4)
    work: Work = Work()
    """How much the encoder is trained."""
    head_opt: Optimizer = SGD(lr=1.0, weight_decay=5e-4)
    """The optimiser of the classifier, for which the paper names no rate. The contrastive loss leaves features short at
    the encoder's rate, and a step on them grows with the square of their length."""
    head_work: Work = Work()
    """How much the classifier is trained in every round: on features that are computed once, so it costs little."""
    personal_work: Work = Work(epochs=1)
    """How much the classifier is trained when the last encoder has arrived, with schedules that start anew; no epochs
    deploy the federated one."""
    temperature: float = 0.1
    views: Views = Views()
    labels: bool = True
    """Whether the encoder may see labels; False is FedICON-us."""
    extract: bool = True
    """Local invariance extraction; False trains the whole model with cross-entropy."""
    share: bool = True
    """Global invariance sharing; False leaves every client on its own."""
    encoder_rounds: int | None = None
    """Rounds in which the encoder is trained, the classifier alone in the later ones; None: both in all rounds."""
    trains_for = ("icon",)

    def __post_init__(self) -> None:
        check.positive(self, "temperature")
        check.choices(self)
        if self.encoder_rounds is not None:
            check.at_least(self, "encoder_rounds", 0)

    @property
    def uplink(self) -> Rules:
        return super().uplink if self.share else {}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        if self.extract:
            requirements.need(requirements.pixels(task, "FedICON", "take views of"))
        return super().init_server(task, clients, key) if self.share else {}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {} if self.share else {"vars": task.init(key)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        old = (down if self.share else mine)["vars"]
        new = self._trained(task, old, data, key)
        if not self.share:
            return {}, {"vars": new}
        return {"delta": tree.sub(new, old), "n": data["n"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return super().server(task, server, total, key) if self.share else server

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        if not self.extract:
            return mine
        vars = (down if self.share else mine)["vars"]
        return {"vars": self._with_head(task, vars, vars, data, self.personal_work, key)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine.get("vars", down.get("vars"))}

    def _trained(self, task: Task, old: Tree, data: Tree, key: rng.Key) -> Tree:
        """The variables after a client's round."""
        if not self.extract:
            return train(task.loss, old, data, self.opt, self.work, key)
        pairs = data if self.labels else {**data, "y": torch.arange(data["y"].shape[0], device=data["y"].device)}
        new = train(self.contrast(task), old, pairs, self.opt, self.work, rng.fold(key, "encoder"), only=task.body)
        if self.encoder_rounds is not None:
            new = tree.where(data["round"] < self.encoder_rounds, new, old)
        return self._with_head(task, new, old, data, self.head_work, rng.fold(key, "head"))

    def contrast(self, task: Task) -> Loss:
        """The contrastive loss of a batch, whose `y` says what belongs together; two views in one pass."""

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            seen = self.views.several(batch["x"], rng.fold(key, "views"))
            out = task.apply(vars, seen, "train", key)
            return contrastive(out.features.unflatten(0, (2, -1)), batch["y"], self.temperature), out.buffers

        return loss

    def _with_head(self, task: Task, vars: Tree, encoder: Tree, data: Tree, work: Work, key: rng.Key) -> Tree:
        """`vars` with its head trained on the fixed features of `encoder`."""
        head = fit_head(head_of(task, vars), features_of(task, encoder, data), data, self.head_opt, work, key)
        return with_head(task, vars, head)
