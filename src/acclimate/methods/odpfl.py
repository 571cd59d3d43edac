"""ODPFL-HN, training half. Amosy, Eyal & Chechik, 'Late to the party?', 2021 (the test half is adapters/odpfl.py).

- An encoder turns a client's unlabelled samples into a description: the mean over samples of a small network's outputs.
  A hypernetwork turns the description into the parameters of that client's model.
- A client trains its model from there; encoder and hypernetwork move so that they would have given the trained one:
  their gradients are those of <theta, theta - theta_trained> with the difference held fixed, averaged over clients.
- A client that joins later sends its description alone (`adapters.ODPFL`).

In the paper the hypernetwork stays at the server, and a round has two exchanges: description up and model down, then
difference up and the description's gradient down. Here a round has one: the hypernetwork travels to the client, at a
cost in bytes that the paper does not have, and description, difference and the encoder's gradient travel back, of which
the server computes the same gradients. Pixels are encoded by a perceptron, on samples thinned to `samples` per client.

At rate r, the hypernetwork moves client i's model by r times the mean over clients j of (1 + h_i h_j) missed_j
(and the trunk's part), where h are its hidden units. Training makes descriptions longer, and h with them: from
r (1 + |h|^2) = 2 on, models are thrown past the trained ones. So `work.clip` bounds both means too, each on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Gather, Mean, Method, Optimizer, Rules, Task, Tree, Work, check, rng, train, tree
from ..core.gradient import grad
from ..core.local import clip
from ..ops import hyper, nets, requirements
from ..ops.masks import real_rows


@dataclass(frozen=True)
class ODPFL(Method):
    """A hypernetwork that makes a model of a description of unlabelled data (Amosy et al., 2021)."""

    size: int = 32
    """Numbers in a client's description."""
    hidden: int = 100
    """Hidden units of encoder and hypernetwork."""
    opt: Optimizer = SGD(lr=0.05)
    """The optimiser of local training: eta_local."""
    encoder_opt: Optimizer = SGD(lr=0.1)
    hyper_opt: Optimizer = SGD(lr=0.5)
    work: Work = Work(clip=10.0)
    """Local training; `clip` also bounds the gradients of encoder and hypernetwork. Without, CIFAR-10, and MNIST with
    the rates that FedTTA's authors print, end within ten rounds in values that are not finite."""
    samples: int = 256
    """How many of its samples a training client describes itself with at most."""

    trains_for = ("odpfl",)
    uplink: ClassVar[Rules] = {"encoder": Mean(), "missed": Gather(), "description": Gather(), "buffers": Mean()}

    def __post_init__(self) -> None:
        check.steady(self, "encoder_opt", "hyper_opt")
        check.at_least(self, "size", 1)
        check.at_least(self, "hidden", 1)
        check.at_least(self, "samples", 1)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        requirements.need(requirements.numbers(task, "ODPFL", "describe a client by"))
        vars, widths = task.init(key), (hyper.inputs(task), self.hidden, self.size)
        server = {
            "encoder": nets.init(rng.fold(key, "encoder"), widths),
            "hyper": hyper.init(rng.fold(key, "hyper"), vars["params"], self.size, self.hidden),
            "buffers": vars["buffers"],
            "description": torch.zeros(self.size, device=key.device),
        }
        return {**server, "opt": {name: opt.init(server[name]) for name, opt in self._opts.items()}}

    @property
    def _opts(self) -> dict[str, Optimizer]:
        return {"encoder": self.encoder_opt, "hyper": self.hyper_opt}

    def download(self, task: Task, server: Tree) -> Tree:
        return tree.drop(server, ("opt",))

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        x, real = self._sampled(data)
        params = hyper.model(down, task, x, real)
        new = train(task.loss, {"params": params, "buffers": down["buffers"]}, data, self.opt, self.work, key)
        missed = tree.sub(params, new["params"])

        def gap(encoder: Tree) -> tuple[Tensor, Tensor]:
            description = hyper.describe(encoder, task, x, real)
            return tree.dot(hyper.generate(down["hyper"], description), missed), description

        encoder, description = grad(gap, has_aux=True)(down["encoder"])
        buffers = tree.sub(new["buffers"], down["buffers"])
        return {"encoder": encoder, "missed": missed, "description": description, "buffers": buffers}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        pulls = {
            "encoder": total["encoder"],
            "hyper": hyper.pull(server["hyper"], total["description"], total["missed"]),
        }
        new: Tree = {"opt": {}}
        for name, opt in self._opts.items():
            pull = pulls[name] if self.work.clip is None else clip(pulls[name], self.work.clip)
            new[name], new["opt"][name] = opt.update(pull, server["opt"][name], server[name])
        new["buffers"] = tree.add(server["buffers"], total["buffers"])
        new["description"] = total["description"].mean(0)
        return {name: new[name] for name in server}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        x, real = self._sampled(data)
        return {"description": hyper.describe(down["encoder"], task, x, real)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        # a newcomer that has not described itself is given the mean client's model
        described = mine["description"] if "description" in mine else down["description"]
        vars = {"params": hyper.generate(down["hyper"], described), "buffers": down["buffers"]}
        return {"vars": vars, "encoder": down["encoder"], "hyper": down["hyper"]}

    def _sampled(self, data: Tree) -> tuple[Tensor, Tensor]:
        rows = data["rows"][: self.samples]
        return data["x"][rows], real_rows(rows.shape[0], data["n"])
