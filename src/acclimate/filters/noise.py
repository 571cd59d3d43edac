"""Random noise on what is sent, as FedPCL's Table 15 has it (Tan et al., NeurIPS 2022, Appendix A.2.4).

A value x is sent as (1 - p) x + e, with noise e of scale s (`ops.noise`). This is perturbation without a promise:
nothing bounds what x may be, so no epsilon follows from it. `LocalDP` gives one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..core import Filter, Rules, Sender, Tree, check, rng
from ..core.limits import Limits, Whole
from ..ops.noise import Kind, Revision, perturbed
from .message_parts import chosen, map_keyed, unknown


@dataclass(frozen=True)
class Noise(Filter):
    """Mixes Gaussian or Laplace noise into chosen groups at the client (FedPCL, Table 15). Gives no epsilon."""

    kind: Kind = "laplace"
    s: float = 0.05
    """The noise's scale: the standard deviation of a Gaussian, the scale b of a Laplace distribution."""
    p: float = 0.1
    """The perturbation coefficient: the share of the value that is taken away before the noise is added."""
    groups: tuple[str, ...] = ()
    """The groups that get noise; all, where none is named. Integers (counts) are sent as they are."""
    revision: Revision = field(default=2, kw_only=True)
    """The revision of the noise: in 1 it was p e in place of e."""

    def __post_init__(self) -> None:
        check.choices(self)
        check.at_least(self, "s", 0.0)
        check.within(self, "p", 0.0, 1.0)

    def refusal(self, rules: Rules) -> str | None:
        return unknown(self.groups, rules)

    def limits(self, limits: Limits) -> Limits:
        noisy = self.groups or tuple(limits)
        return {g: Whole(limit) if g in noisy else limit for g, limit in limits.items()}

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        part = chosen(up, self.groups)

        def noisy(x: Tensor, key: rng.Key) -> Tensor:
            return perturbed(x, key, self.kind, self.s, self.p, self.revision)

        return up | {g: map_keyed(noisy, t, rng.fold(key, g)) for g, t in part.items()}
