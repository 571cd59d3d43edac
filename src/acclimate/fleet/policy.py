"""What a site demands of every request: a file of its own, which no request can weaken.

`policy.json` in the site's state folder may say

    {"least_noise": 2.0, "must_mask": true, "allowed_methods": ["fedavg"]}

`least_noise`: messages must pass a LocalDP filter with at least this `noise`, from the site's own key. `must_mask`: the
last filter must be Masked, with a secret of the sites or a threshold. `allowed_methods`: no other method trains here. A
request that asks for less is refused with the name of the rule. No file: no demands.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ..experiment import Experiment
from ..filters import LocalDP, Masked
from ..store import RunError, read_json

POLICY = "policy.json"


class PolicyRefusal(PermissionError):
    """A request that the site's policy forbids; names the rule."""


@dataclass(frozen=True)
class Policy:
    """A site's demands."""

    least_noise: float = 0.0
    must_mask: bool = False
    allowed_methods: tuple[str, ...] = ()

    @classmethod
    def load(cls, site: Path) -> Policy:
        """The policy of a site. A file that cannot be understood is an error, and then nothing is answered."""
        path = site / POLICY
        if not path.exists():
            return cls()
        body = read_json(path)
        if odd := sorted(set(body) - {f.name for f in fields(cls)}):
            raise RunError(f"{path}: {odd} must be least_noise, must_mask or allowed_methods")
        noise, mask, methods = (
            body.get("least_noise", 0.0),
            body.get("must_mask", False),
            body.get("allowed_methods", []),
        )
        if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < float("inf"):
            raise RunError(f"{path}: least_noise={noise!r} must be a number of at least 0")
        if not isinstance(mask, bool):
            raise RunError(f"{path}: must_mask={mask!r} must be true or false")
        if not isinstance(methods, list) or not all(isinstance(m, str) for m in methods):
            raise RunError(f"{path}: allowed_methods={methods!r} must be a list of names")
        return cls(float(noise), mask, tuple(m.lower() for m in methods))

    def check(self, experiment: Experiment) -> None:
        """Raise `PolicyRefusal` where an experiment asks for less than this policy demands."""
        if reason := self.refusal(experiment):
            raise PolicyRefusal(f"this site's policy refuses the request: {reason}")

    def refusal(self, experiment: Experiment) -> str | None:
        """Why, in a sentence that begins with the rule, or None."""
        method, filters = type(experiment.method).__name__, experiment.filters
        if self.allowed_methods and method.lower() not in self.allowed_methods:
            return f"allowed_methods: method={method} is not among {', '.join(self.allowed_methods)}"
        own = [f for f in filters if type(f) is LocalDP and not f.secret]  # a secret of the server's choice is none
        if self.least_noise and max((f.noise for f in own), default=0.0) < self.least_noise:
            return f"least_noise: messages need LocalDP with noise={self.least_noise} or more and the site's own key"
        last = filters[-1] if filters else None
        if self.must_mask and not (type(last) is Masked and (last.secret or last.threshold)):
            return "must_mask: the last filter must be Masked, with a secret of the sites or a threshold"
        return None
