"""A client's deployed model as a plain `nn.Module`: a batch of inputs as a user has them in, logits out.

It answers as the method's `predict` does: as the client does with the adapter `none`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..core import Method, Personalizer, Shards, Tree, Worker, tree
from ..data import World


class PlainModule(nn.Module):
    """A network behind its normalisation. `network` is the architecture's own module, of ordinary layers."""

    mean: Tensor
    std: Tensor

    def __init__(self, worker: Worker, vars: Tree) -> None:
        super().__init__()
        task = worker.task
        shape = (-1, *[1] * (len(task.shape) - 1))
        self.network = task.module(vars)
        self.register_buffer("mean", torch.tensor(task.mean or (0.0,)).view(shape))
        self.register_buffer("std", torch.tensor(task.std or (1.0,)).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of uint8 pixels, of floats in 0..1, or of token ids."""
        if x.dtype == torch.uint8:
            x = x.to(torch.float32) / 255.0
        logits: Tensor = self.network((x - self.mean) / self.std if x.is_floating_point() else x.to(torch.int64))[1]
        return logits


class WrappedModule(nn.Module):
    """A model whose method predicts in a way of its own: `network` has the weights, buffers hold all else."""

    def __init__(self, worker: Worker, model: Tree) -> None:
        super().__init__()
        self.worker = worker
        self.network = worker.task.module(model["vars"])
        rest = tree.drop(model, ("vars",))
        self.names = _names(rest)
        for name, value in zip(tree.leaves(self.names), tree.leaves(rest), strict=True):
            self.register_buffer(str(name), value.detach().cpu().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes] of uint8 pixels, or of floats in 0..1."""
        buffers = {n: b for n, b in self.network.named_buffers() if b.is_floating_point()}
        vars = {"params": dict(self.network.named_parameters()), "buffers": buffers}
        return self.worker.predict()({"vars": vars, **tree.map(self.get_buffer, self.names)}, x).logits


def _names(a: Mapping[str, Any], prefix: str = "") -> Tree:
    """A tree of the names of buffers for its leaves; such a name may have no dot."""
    words = {k: prefix + k.replace(".", ":") for k in a}
    return {k: _names(v, f"{words[k]}/") if isinstance(v, Mapping) else words[k] for k, v in a.items()}


def module_of(worker: Worker, model: Tree) -> nn.Module:
    """A deployed model as a module in eval mode, on the CPU, with weights of its own."""
    plain = type(worker.method).predict is Method.predict
    return (PlainModule(worker, model["vars"]) if plain else WrappedModule(worker, model)).eval()


def personalised(
    worker: Worker, world: World, client: int, down: Tree, mine: Tree, personal: Personalizer, device: torch.device
) -> Tree:
    """One client's live model, as an engine's `deploy` makes it for all."""
    rows = world.train[client]
    examples = world.examples
    own = Shards.of(examples.x[rows], examples.y[rows].to(torch.int64), [torch.arange(len(rows))]).to(device)
    who, when = (torch.full((), v, dtype=torch.int64, device=device) for v in (client, 0))
    data = own.tree(own.own(0), own.n[0], who, when, ragged=False)
    return worker.personalise(tree.to(down, device), tree.to(mine, device), data, personal)
