"""Federations over domains, at paper and at smoke scale: a client per domain, or all but one and that one held out.

Smoke scale has the embedded digits, in styles that stand for domains; `Few` of them stand for a naturally shifted set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core import Model, check
from ..data import (
    PACS,
    ByDomain,
    Dataset,
    Digit5,
    Digits,
    DomainNet,
    Examples,
    OfficeCaltech10,
    OfficeHome,
    Partition,
    Split,
)
from ..data.domain_folders import Domains
from ..experiment.names import allow
from ..models import CNN, ResNet
from .record import Scale

RESNET18 = ResNet(depth=18)
RESNET_NOTE = "The ResNet starts from random weights; the paper's from ImageNet's, which acclimate does not bring."
SMOKE_SHARE = 0.15
"""How much of the embedded digits smoke scale uses."""


@dataclass(frozen=True)
class Kit:
    """A set with domains: its record, the papers' names of its domains, and the styles that stand in at smoke scale."""

    record: type[Domains]
    domains: Mapping[str, str]
    """As a paper prints them -> as acclimate calls them."""
    styles: tuple[str, ...]
    size: int = 32
    mirrored: bool = True
    """Whether images may be mirrored: a mirrored digit is no digit."""
    split: Split | None = None
    """How clients' examples are cut at paper scale; None cuts them 60/20/20."""

    def names(self, scale: Scale) -> dict[str, str]:
        """Printed names, and how the domains are called at this scale."""
        return dict(self.domains) if scale == "paper" else dict(zip(self.domains, self.styles, strict=True))

    def left_out(self, scale: Scale) -> list[str]:
        """The domains that are left out in turn; at smoke scale the last one alone."""
        return list(self.domains) if scale == "paper" else list(self.domains)[-1:]

    def federation(
        self,
        scale: Scale,
        held: str | None = None,
        per_domain: int = 1,
        partition: Partition = ByDomain(),
        only: tuple[str, ...] = (),
        **fields: Any,
    ) -> Dataset:
        """A client (or several) per domain; `held` (as printed) is left out, `only` are all that is read."""
        names = {n: d for n, d in self.names(scale).items() if not only or n in only}
        out = (names[held],) if held else ()
        clients = (len(names) - len(out)) * per_domain
        shared: dict[str, Any] = {"domains": tuple(names.values()), "held_out": out, **fields}
        if scale == "paper":
            own = {"split": self.split} if self.split else {}
            return self.record(partition, clients, size=self.size, **own | shared)
        return Digits(partition, clients, fraction=SMOKE_SHARE, **shared)


DIGIT5 = Kit(
    Digit5,
    {"MNIST": "mnist", "SVHN": "svhn", "USPS": "usps", "Synth": "syn", "MNIST-M": "mnistm"},
    ("plain", "clutter", "inverted", "faded", "textured"),
    mirrored=False,
)
OFFICE10 = Kit(
    OfficeCaltech10,
    {"Amazon": "amazon", "Caltech": "caltech10", "DSLR": "dslr", "Webcam": "webcam"},
    ("plain", "clutter", "faded", "sketch"),
)
DOMAINNET = Kit(
    DomainNet,
    {
        "Clipart": "clipart",
        "Infograph": "infograph",
        "Painting": "painting",
        "Quickdraw": "quickdraw",
        "Real": "real",
        "Sketch": "sketch",
    },
    ("inverted", "clutter", "textured", "faded", "plain", "sketch"),
    size=64,
)
PACS4 = Kit(
    PACS,
    {"Photo": "photo", "Art": "art_painting", "Cartoon": "cartoon", "Sketch": "sketch"},
    ("plain", "textured", "inverted", "sketch"),
    size=64,
)
OFFICEHOME = Kit(
    OfficeHome,
    {"Product": "product", "Art": "art", "Clipart": "clipart", "Real": "real_world"},
    ("plain", "textured", "sketch", "clutter"),
    size=64,
)


def small_cnn(norm: Any = "none") -> Model:
    """The CNN of smoke scale."""
    return CNN((4, 8), 16, 3, norm=norm)


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
