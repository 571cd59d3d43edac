"""A data set whose training images carry noise: FedPCL perturbs prototypes or, for comparison, pictures (Table 15)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core import check, rng
from ..ops.noise import Kind, Revision, perturbed
from .world import Examples
from .wrapping import Wrapper


@dataclass(frozen=True)
class Noisy(Wrapper):
    """Another data set whose training images x are (1 - p) x + e, with noise e of scale s; clients are validated and
    tested on images as they are.

    An image has the same noise in every round and every run, while FedPCL's published code draws it anew in every
    round. Images in bytes stay in bytes: what leaves their range is cut off. Of `data` the images are taken, and its
    mean and std where this record has none. Everything else (partition, clients, splits, seed, fraction, angles and so
    on) is set on this record, and refused on `data`. Brightness is counted from 0 to 1, so s = 0.2 is a fifth of the
    range.
    """

    kind: Kind = "laplace"
    s: float = 0.05
    p: float = 0.1
    revision: Revision = field(default=2, kw_only=True)
    """The revision of the noise: in 1 it was p e in place of e, and on all images, those for testing too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)
        check.at_least(self, "s", 0.0)
        check.within(self, "p", 0.0, 1.0)

    def load(self) -> Examples:
        images = super().load()
        return replace(images, x=self._all_noisy(images)) if self.revision == 1 else images

    def for_training(self, examples: Examples, rows: Tensor) -> Examples:
        examples = super().for_training(examples, rows)
        if self.revision == 1:
            return examples
        x = examples.x.clone()
        x[rows] = self._all_noisy(examples)[rows]  # an image's noise does not depend on who trains on what else
        return replace(examples, x=x)

    def _all_noisy(self, examples: Examples) -> Tensor:
        x, key = examples.x, rng.fold(rng.key(0), "noisy", self.kind)
        if x.dtype != torch.uint8 and not x.is_floating_point():
            raise ValueError(f"Noisy: {type(self.data).__name__} holds token ids, which are no numbers to add noise to")
        noisy = torch.cat([self._noisy(part, rng.fold(key, i)) for i, part in enumerate(x.split(1024))])
        if words := [i for i, f in enumerate(examples.features) if not f.measured]:
            noisy[:, words] = x[:, words]  # of a table words stay words, and a mark of what is missing is one
        return noisy

    def _noisy(self, x: Tensor, key: rng.Key) -> Tensor:
        if x.dtype != torch.uint8:
            return perturbed(x, key, self.kind, self.s, self.p, self.revision)
        changed = perturbed(x.to(torch.float32) / 255.0, key, self.kind, self.s, self.p, self.revision)
        return (changed * 255.0).round().clamp(0.0, 255.0).to(torch.uint8)
