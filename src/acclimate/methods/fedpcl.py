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
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Gather, Method, Mode, Optimizer, Out, Rules, Task, Tree, Work, check, rng, train, tree
from ..ops import prototypes as proto
from ..ops.nets import head_of, with_head


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

    uplink: ClassVar[Rules] = {"prototypes": Gather(), "counts": Gather(), "id": Gather()}

    def __post_init__(self) -> None:
        check.positive(self, "tau")
        check.at_least(self, "distance", 0.0)
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        counts = torch.zeros(clients, task.num_classes, device=key.device)
        return {"sets": counts.new_zeros(*counts.shape, task.dim), "counts": counts}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        counts = torch.zeros(task.num_classes, device=key.device)
        return {"vars": task.init(key), "prototypes": counts.new_zeros(*counts.shape, task.dim), "counts": counts}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        new = {"sets": total["prototypes"], "counts": total["counts"].to(server["counts"].dtype)}
        return {name: tree.put(server[name], total["id"], new[name]) for name in server}

    def download(self, task: Task, server: Tree) -> Tree:
        counts, sets = server["counts"], server["sets"]
        owned = (counts > 0).to(counts.dtype)
        common, owners = proto.pooled(sets, owned if self.variant == "released" else counts)
        return {"global": common, "known": owners, "sets": proto.padded(sets, counts, common), "seen": owned.amax(-1)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        vars = train(partial(self.objective, task, down), mine["vars"], data, self.opt, self.work, key)
        if self.variant == "paper" and self.loss == "prototypes":  # without them only weight decay acts
            vars = tree.where(down["seen"].sum() > 0, vars, mine["vars"])
        mine = self.finish_personal(task, down, {**mine, "vars": vars}, data, key)
        counts = mine["counts"].to(torch.int64)  # whole numbers are book-keeping, floating-point ones parameters
        return {"prototypes": mine["prototypes"], "counts": counts, "id": data["id"]}, mine

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        own, counts = proto.own_prototypes(task, mine["vars"], data, unit=True)
        return {**mine, "prototypes": own, "counts": counts}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        seen, head = mine["counts"], tree.zeros(head_of(task, mine["vars"]))
        head["weight"] = proto.padded(mine["prototypes"], seen, down["global"])
        known = seen if self.variant == "released" else seen + down["known"]
        return {"vars": with_head(task, mine["vars"], head), "known": (known > 0).to(seen.dtype)}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        z, prototypes = F.normalize(out.features, dim=-1), model["vars"]["params"][task.head_weight]
        logits = proto.similarities(z, prototypes, model["known"], self.tau)
        if self.variant == "released":  # minus the squared distance, but for |z|, which is the same for all classes
            logits = logits - prototypes.square().sum(-1) / (2 * self.tau)
        return Out(logits, z, out.buffers)

    def objective(self, task: Task, down: Tree, vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """The local loss under the prototypes that the server sent."""
        out, y = task.apply(vars, batch["x"], "train", key), batch["y"]
        z = F.normalize(out.features, dim=-1)
        if self.loss == "ce":
            value = F.cross_entropy(out.logits, y)
        elif self.loss == "ce+distance":
            value = proto.pulled(out, z, y, down["global"], down["known"], self.distance)
        elif self.loss == "supcon":
            value = proto.supervised_contrast(z, z, y, self.tau)
        elif self.variant == "released":
            value = proto.released_contrast(z, y, down, self.tau)
        else:
            value = proto.contrast(z, y, down, self.tau, self.prototypes)
        return value, out.buffers
