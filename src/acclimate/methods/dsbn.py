"""DSBN, domain-specific batch normalisation. Chang et al., CVPR 2019, in a federation: a client is a domain.

Every client has a branch of its own in all normalisation layers, affine parameters and statistics: private, never sent.
All other layers are shared and averaged by examples. So trained, it is FedBN; what is DSBN's own is that a domain which
comes later opens a new branch and fills it from unlabelled images.

A newcomer's branch has the affine parameters from before training (1 and 0, or those of a checkpoint), and statistics
that know nothing yet: serve it with the adapter `bn` or `tent`, which take those of the batch it asks about. A client
that has trained answers with its own statistics, also on a domain that it has not seen: there, add the same adapters.
FedSPL counts DSBN among the methods that adapt at test time and cites Jiang et al., ECCV 2022, for it, without saying
how it was run; its row here has `bn`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import SGD, Method, Optimizer, Task, Tree, Work, rng, train, tree
from ..ops.params import merge, private, shared


@dataclass(frozen=True)
class DSBN(Method):
    """FedAvg with a branch of every normalisation layer per client, a fresh one for newcomers."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), task.select("norm"))}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        return {"vars": private(task.init(key), task.select("norm"))}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        w = train(task.loss, merge(down["vars"], mine["vars"]), data, self.opt, self.work, key)
        up = {"delta": tree.sub(shared(w, task.norm), down["vars"]), "n": data["n"]}
        return up, {"vars": private(w, task.norm)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": merge(down["vars"], mine["vars"])}
