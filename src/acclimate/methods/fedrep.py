"""FedRep. Collins et al., ICML 2021, Algorithm 1: many head steps on the received body, then a few body steps.

- Head (private, never sent): `head_work` on the frozen received body. Its features are then fixed, so they are
  computed once, with running batch statistics and without augmentation.
- Body: `work` under the new, frozen head; the difference is averaged.
- `finish_personal` fits the head to the last body once more, as Algorithm 1 would at the start of the next round, but
  with schedules that start anew.

The paper's experiments take ten head epochs, then one body epoch, or five, depending on the data; one is the default
here, and FedTHE's budget is `work=Work(epochs=5)`. FedTHE's released code trains both phases equally long, sends the
head along and averages it, and its personal phase trains the body too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, rng, train, tree
from ..ops.nets import features_of, fit_head, head_of, named
from ..ops.params import merge, private, shared


@dataclass(frozen=True)
class FedRep(Weighted):
    """A shared body and private heads, trained in turns (Collins et al., ICML 2021)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work(epochs=1, clip=10.0)
    """How much the body is trained. Private heads grow round by round, and gradients of the body with them: without a
    bound, training on CIFAR-10 ends in values that are not finite."""
    head_work: Work = Work(epochs=10)
    """How much the head is trained, before the body."""

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), task.head)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": private(task.init(key), task.head)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        mine = self._fit(task, down, mine, data, rng.fold(key, "head"))
        w = train(task.loss, merge(down["vars"], mine["vars"]), data, self.opt, self.work, key, only=task.body)
        return {"delta": tree.sub(shared(w, task.head), down["vars"]), "n": data["n"]}, mine

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return self._fit(task, down, mine, data, key)

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": merge(down["vars"], mine["vars"])}

    def _fit(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        """The private state with its head trained on the frozen received body."""
        whole = merge(down["vars"], mine["vars"])
        head = fit_head(head_of(task, whole), features_of(task, whole, data), data, self.opt, self.head_work, key)
        return {"vars": {**mine["vars"], "params": named(task, head)}}
