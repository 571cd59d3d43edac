"""The embedded digits in small: naturally shifted test sets for smoke scale, no larger than the clients' own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core import check
from ..data import Dataset, Digits, Examples
from ..experiment.names import allow


@dataclass(frozen=True)
class Few(Dataset):
    """Every `step`-th example of the embedded digits, in one style."""

    style: str = "sketch"
    step: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(self, "step", 1)

    def load(self) -> Examples:
        found = Digits(domains=(self.style,)).load()
        return replace(found, x=found.x[:: self.step], y=found.y[:: self.step], domain=found.domain[:: self.step])


allow(Few)
