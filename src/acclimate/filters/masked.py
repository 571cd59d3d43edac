"""Pairwise masks that cancel in the sum: the server reads the sum of the messages and none of them.

Secure aggregation (Bonawitz et al., CCS 2017, Section 4). Values become fixed-point numbers of 32 bits. Each pair of
clients of the cohort has one mask; the one with the lower number adds it, the other subtracts it, all modulo 2^32.

Without `threshold` masks are derived from the secret, the round and the two numbers. Who cannot read a message: a
server that follows the protocol and does not have the secret. Who can: any client, if the server passes a message on to
it, because all clients share one secret. If a client drops out, the masks of the others stay in the sum; the round is
then refused instead of read wrongly. Every run needs a secret of its own: two messages under one mask give away their
difference.

With `threshold`, in a fleet, masks are of keys that clients agree on for this sum alone (`secure_sum`), and the masks
of those who drop out are taken off with the help of the others, as long as that share of them is left. No client can
read another's message, and nothing is used twice. Elsewhere nobody drops out, and masks are simulated as without it.

Sums that would overflow are refused, and so are cohorts of one, which have no pair: their sum is the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core import Arrived, Filter, Rules, Sender, Sum, Tree, check, rng, tree
from . import chacha, sums
from .secret import secret_key

REAL, WHOLE, CUT = "masked.real", "masked.whole", "masked.cut"
_MODULUS, _HALF = 1 << 32, 1 << 31


@dataclass(frozen=True)
class Masked(Filter):
    """Hides single messages from the server behind masks that cancel in the sum of the cohort, or of a share of it."""

    hides: ClassVar[bool] = True
    needs_sums: ClassVar[bool] = True
    least: ClassVar[int] = 2

    secret: str = ""
    """The environment variable that holds the clients' common secret; empty in simulations, where nothing is hidden."""
    bits: int = 16
    """Binary digits after the point. A sum over the cohort must stay below 2^(31 - bits); integers are exact."""
    threshold: float = check.later(0.0)
    """The share of a round's clients, above a half, that must stay to the end for the sum to be read, in a fleet; 0:
    all of them, with masks of the common secret."""

    def __post_init__(self) -> None:
        check.within(self, "bits", 0, 30)
        if self.threshold and not 0.5 < self.threshold <= 1:
            raise check.FieldError(
                f"Masked: threshold={self.threshold!r} must be 0, or above 0.5 and at most 1", "threshold"
            )

    def refusal(self, rules: Rules) -> str | None:
        return sums.refusal(rules)

    def uplink(self, rules: Rules) -> Rules:
        return {**dict.fromkeys(rules, Sum()), CUT: Sum()}

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        if sender.cohort is None:
            raise ValueError("Masked: the cohort is not known to the client; send it Worker.outgoing(down, cohort)")
        if len(sender.cohort) < self.least:  # the sum of one message is the message
            raise ValueError(f"Masked: a cohort of {len(sender.cohort)} has no pair to mask for; it needs {self.least}")
        most = (_HALF - 1) // len(sender.cohort)  # of one client, so that the sum cannot overflow
        fixed = tree.map(lambda x: self._fixed(x), sums.to_sums(up, sender.rules))
        beyond = [(x.abs() > most).sum() for x in tree.leaves(fixed)]
        fixed = {**fixed, CUT: {WHOLE: torch.stack(beyond).sum()}}
        mask = iter(self._mask(sender, tree.numel(fixed)).split([x.numel() for x in tree.leaves(fixed)]))

        def hidden(x: Tensor) -> Tensor:
            return _wrapped(x.clamp(-most, most) + next(mask).reshape(x.shape)).to(torch.int32)

        out: Tree = tree.map(hidden, fixed)
        return out

    def _fixed(self, x: Tensor) -> Tree:
        if not x.is_floating_point():
            return {WHOLE: x.to(torch.int64)}
        # Towards zero, so that a clipped message does not grow. Not finite is beyond every bound, and so is counted.
        scaled = torch.nan_to_num(x.double() * 2.0**self.bits, nan=2.0**40, posinf=2.0**40, neginf=-(2.0**40))
        return {REAL: scaled.clamp(-(2.0**40), 2.0**40).trunc().to(torch.int64)}

    def _mask(self, sender: Sender, words: int) -> Tensor:
        """The sum of this client's masks with all others; its own would be added to nobody's and is left out."""
        assert sender.cohort is not None
        if sender.mask is not None:
            return sender.mask(words)
        key, me = secret_key(self.secret, "masks"), sender.client
        total = torch.zeros(words, dtype=torch.int64, device=me.device)
        for other in sender.cohort.unbind():
            nonce = (sender.round, torch.minimum(me, other), torch.maximum(me, other))
            total = total + torch.sign(other - me) * chacha.stream(key, nonce, words)
        return total

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        if not self.threshold and arrived.answered != arrived.asked:
            raise ArithmeticError(
                f"Masked: {arrived.answered} of {arrived.asked} clients answered, so the masks do not cancel; "
                "the round cannot be read without the others: raise the deadline, or set threshold"
            )
        plain = self._plain(total)
        if cut := int(plain.pop(CUT)):
            raise ArithmeticError(
                f"Masked: {cut} values were beyond 2^{31 - self.bits} / {arrived.asked} clients; lower "
                f"bits={self.bits}, clip messages, or look for a client whose values are not finite"
            )
        return sums.from_sums(plain, arrived)

    def _plain(self, part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        if REAL in part:
            return (_wrapped(part[REAL]).double() * 2.0**-self.bits).to(torch.float32)
        if WHOLE in part:
            return _wrapped(part[WHOLE])
        return {k: self._plain(v) for k, v in part.items()}

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        if self.threshold:
            return self._agreed_card()
        if not self.secret:
            return {"mechanism": "pairwise masks, simulated", "protects": "nothing: the masks' key is public"}
        return {
            "mechanism": "pairwise masks from a common secret (ChaCha20)",
            "protects": "single messages, against a server that follows the protocol and has no client on its side",
            "assumes": "A server in another process than the clients, without their secret. In one process, as on all "
            "backends but a fleet, it protects nothing: the server there can read the secret, and the messages too.",
        }

    def _agreed_card(self) -> dict[str, Any]:
        known = "that the server cannot put keys of its own in their place" if self.secret else ""
        return {
            "mechanism": "masks of keys that clients agree on for each sum, with secret shares of them (Bonawitz et "
            "al., 2017)" + (", signed with a common secret" if self.secret else ""),
            "protects": f"single messages, against a server that follows the protocol, together with fewer than "
            f"{self.threshold:g} of the clients" + (f"; keys are signed, so {known}" if known else ""),
            "survives": f"clients that drop out or send what cannot be read, as long as {self.threshold:g} are left",
            "not_against": ("" if self.secret else "a server that shows clients other keys than their peers'; ")
            + "clients that send wrong numbers of the right form",
            "assumes": "A fleet, where the server is another process than the clients. On all other backends it is a "
            "rehearsal that protects nothing.",
        }


def _wrapped(x: Tensor) -> Tensor:
    """Modulo 2^32, in [-2^31, 2^31)."""
    return torch.remainder(x + _HALF, _MODULUS) - _HALF
