"""FedPCL. Tan et al., NeurIPS 2022, Algorithm 1: clients share class prototypes, and train against each other's.

- Every client keeps a model of its own (in the paper a projection over frozen backbones, `models.Projection`); nothing
  but its prototypes, the mean representation per class (Eq. 5), is ever sent. The representation is L2-normalised.
- The server pools them into global prototypes, weighted by class counts (Eq. 6), fills the classes that a client lacks
  with the global ones (Eq. 7), and sends the global set and all clients' sets back.
- Local loss: Eq. 10, the contrastive terms against the global set (Eq. 8) and against every client's (Eq. 9), here
  averaged over the batch where the paper sums. In the first round there are no prototypes yet: clients only make them.
- Inference: the class whose local prototype is most similar. Prototypes stand in for the model's head, so adapters and
  personalisers that work on logits, features or the head find them there.

Where the text is silent: clients that took no part in a round keep the set that they sent last; before that they are
left out of Eq. 9's mean. A deployed client answers with the padded set of Eq. 7.

`variant="released"` follows the published code where it differs: no global term, and the sum (not the mean) over
clients of a SupCon-shaped loss with prototypes as anchors and the batch, seen twice, as contrast; global prototypes
that count every owner as one; weight decay also in the first round; the nearest prototype by squared distance, and
classes that a client lacks are never answered. Its cross-entropy is computed there but not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Gather, Loss, Method, Mode, Optimizer, Out, Rules, Task, Tree, Work, check, rng, train, tree
from ..ops.heads import features_of
from ..ops.prototypes import class_means, padded, pooled, prototype_loss, similarities, supervised_contrast


@dataclass(frozen=True)
class FedPCL(Method):
    """Prototypes instead of weights, and contrastive training against all of them (Tan et al., NeurIPS 2022)."""

    opt: Optimizer = SGD(lr=0.005)
    """A tenth of the other methods' rate, because the loss is 1 / tau as steep. The paper trains every method with
    `Adam(lr=1e-3, weight_decay=1e-4)` and `Work(epochs=1)`."""
    work: Work = Work()
    tau: float = 0.07
    """The temperature of similarities."""
    prototypes: Literal["both", "global", "local"] = "both"
    """Which prototypes the contrastive loss sees: Table 6."""
    loss: Literal["prototypes", "ce", "ce+distance", "supcon"] = "prototypes"
    """The local loss, Table 5: the paper's, cross-entropy of the head, the same with FedProto's distance to the global
    prototypes, or supervised contrast within the batch."""
    distance: float = 1.0
    """The weight of the distance in `ce+distance`."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.positive(self, "tau")
        check.at_least(self, "distance", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"prototypes": Gather(), "counts": Gather(), "id": Gather()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        sets = torch.zeros(clients, task.num_classes, task.dim, device=key.device)
        return {"sets": sets, "counts": torch.zeros(clients, task.num_classes, device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        own = torch.zeros(task.num_classes, task.dim, device=key.device)
        counts = torch.zeros(task.num_classes, device=key.device)
        return {"vars": task.init(key), "prototypes": own, "counts": counts}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        who = total["id"]
        sets = server["sets"].index_copy(0, who, total["prototypes"])
        counts = total["counts"].to(server["counts"].dtype)
        return {"sets": sets, "counts": server["counts"].index_copy(0, who, counts)}

    def download(self, task: Task, server: Tree) -> Tree:
        counts = server["counts"]
        weights = (counts > 0).to(counts.dtype) if self.variant == "released" else counts
        common, owners = pooled(server["sets"], weights)
        sets = padded(server["sets"], counts, common)
        return {"global": common, "known": owners, "sets": sets, "seen": (counts.sum(-1) > 0).to(counts.dtype)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        vars = train(self.objective(task, down), mine["vars"], data, self.opt, self.work, key)
        if self.variant == "paper":  # without prototypes there is no loss; weight decay alone would still move weights
            vars = tree.where(self._has_loss(down), vars, mine["vars"])
        mine = self.finish_personal(task, down, {**mine, "vars": vars}, data, key)
        counts = mine["counts"].to(torch.int64)  # whole numbers are book-keeping, floating-point ones parameters
        return {"prototypes": mine["prototypes"], "counts": counts, "id": data["id"]}, mine

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        z = F.normalize(features_of(task, mine["vars"], data), dim=-1)
        own, counts = class_means(z, data["y"][data["rows"]], data["n"], task.num_classes)
        return {**mine, "prototypes": own, "counts": counts}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        """The model with the padded local prototypes as its head, and which classes they know."""
        seen, params = mine["counts"], mine["vars"]["params"]
        head = {task.head_weight: padded(mine["prototypes"], seen, down["global"])}
        if task.head_bias in params:
            head[task.head_bias] = torch.zeros_like(params[task.head_bias])
        known = seen if self.variant == "released" else seen + down["known"]
        return {"vars": {**mine["vars"], "params": {**params, **head}}, "known": (known > 0).to(seen.dtype)}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        z, prototypes = F.normalize(out.features, dim=-1), model["vars"]["params"][task.head_weight]
        logits = similarities(z, prototypes, model["known"], self.tau)
        if self.variant == "released":  # minus the squared distance, but for |z|, which is the same for all classes
            logits = logits - prototypes.square().sum(-1) / (2 * self.tau)
        return Out(logits, z, out.buffers)

    def objective(self, task: Task, down: Tree) -> Loss:
        """The local loss under the prototypes that the server sent."""

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            return self._value(out, batch["y"], down), out.buffers

        return loss

    def _value(self, out: Out, y: Tensor, down: Tree) -> Tensor:
        z = F.normalize(out.features, dim=-1)
        if self.loss == "supcon":
            return supervised_contrast(z, z, y, self.tau)
        if self.loss == "ce":
            return F.cross_entropy(out.logits, y)
        if self.loss == "ce+distance":
            near = (z - down["global"][y]).square().mean(-1) * (down["known"][y] > 0)
            return F.cross_entropy(out.logits, y) + self.distance * near.mean()
        return self._released(z, y, down) if self.variant == "released" else self._contrast(z, y, down)

    def _contrast(self, z: Tensor, y: Tensor, down: Tree) -> Tensor:
        """Eq. 10, or one of its two terms."""
        value = torch.zeros((), device=z.device)
        if self.prototypes != "local":
            value = value + prototype_loss(z, y, down["global"], down["known"], self.tau).mean()
        if self.prototypes != "global":
            each = prototype_loss(z, y, down["sets"], down["known"], self.tau)
            value = value + ((each * down["seen"]).sum(-1) / down["seen"].sum().clamp_min(1.0)).mean()
        return value

    def _released(self, z: Tensor, y: Tensor, down: Tree) -> Tensor:
        twice, labels = torch.cat([z, z]), torch.cat([y, y])  # two views, which in the published code are identical
        anchors = down["sets"][:, labels]
        each = torch.vmap(lambda a: supervised_contrast(a, twice, labels, self.tau))(anchors)
        return (each * down["seen"]).sum()

    def _has_loss(self, down: Tree) -> Tensor:
        return (down["seen"].sum() > 0) if self.loss == "prototypes" else torch.ones_like(down["seen"][0]).bool()
