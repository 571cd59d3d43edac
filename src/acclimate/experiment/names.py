"""What records are called in files and messages, and which classes such a name may stand for.

A record is written by its public name, `package:Class`, as `methods:FedAvg`. Names are looked up in one list of
acclimate's own records, so that a file may move without its runs being lost, and nothing that a file names is ever
imported. A user's own class is written as `module:Class` and read only where the user passed it to acclimate in this
process, or allowed it: `acclimate.allow(MyMethod)`, its name in the environment variable ACCLIMATE_ALLOW, or `trust`.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import importlib
import os
import types
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from .. import adapters, backends, data, filters, methods, models, personal, shifts
from ..core import SGD, Adam, AdamW, Adapter, Constant, Cosine, Personalizer, Protocol, StepDecay, Work
from ..ops.augment import CropJitter, FlipCrop, Views
from ..ops.strong_views import StrongViews

ALLOW = "ACCLIMATE_ALLOW"
"""The environment variable that names a user's own classes, `module:Class`, separated by commas."""
EVERY = "*"
"""In its place, every class may be imported: what `--trust` sets."""
PACKAGES: tuple[types.ModuleType, ...] = (adapters, backends, data, filters, methods, models, personal, shifts)
"""Every record that these export has a public name."""
CORE = (SGD, Adam, AdamW, Adapter, Constant, Cosine, Personalizer, Protocol, StepDecay, Work)
OPS = (CropJitter, FlipCrop, StrongViews, Views)
LATER = {"fleet": "acclimate.fleet.remote", "recipes": "acclimate.recipes"}
"""Modules above this one that have records of their own, which they give to `allow` when they are imported."""

OLD_MODULES = {
    "adapters.atp": "ATP",
    "adapters.bn": "BNStats",
    "adapters.eata": "EATA",
    "adapters.fedtta": "FedTTA",
    "adapters.icon": "ICON",
    "adapters.knn": "KNNPer",
    "adapters.labelshift": "BBSE EM",
    "adapters.mbsl": "MBSL",
    "adapters.memo": "MEMO",
    "adapters.none": "NoAdapt",
    "adapters.odpfl": "ODPFL",
    "adapters.shot": "SHOT",
    "adapters.surgical": "Surgical",
    "adapters.t3a": "T3A",
    "adapters.tent": "Tent",
    "adapters.the": "THE",
    "adapters.theplus": "THEPlus",
    "adapters.tsa": "TSA",
    "adapters.ttt": "TTT",
    "backends": "Auto",
    "backends.flower": "Flower",
    "backends.processes": "Processes",
    "backends.ray": "Ray",
    "backends.serial": "Serial",
    "backends.vmap": "Vmap",
    "config": "Experiment",
    "core.adapter": "Adapter",
    "core.local": "Work",
    "core.optim": "Adam AdamW Constant Cosine SGD StepDecay",
    "core.personal": "Personalizer",
    "core.stream": "Protocol",
    "data.cifar": "CIFAR10 CIFAR100 CIFAR10C CIFAR10_1",
    "data.digit5": "Digit5",
    "data.digits": "Digits",
    "data.domains": "DomainNet OfficeCaltech10 OfficeHome PACS",
    "data.features": "Features",
    "data.groups": "ByDomain BySuperclass NaturalUsers",
    "data.imagenet": "ImageNet32 ImageNetVariant",
    "data.leaf": "FEMNIST",
    "data.mnist": "EMNIST FashionMNIST MNIST",
    "data.noisy": "Noisy",
    "data.own": "Arrays HuggingFace ImageFolder",
    "data.partition": "Dirichlet IID Pathological",
    "data.public": "Public",
    "data.tinyimagenet": "TinyImageNet",
    "data.vision": "STL10 SVHN USPS",
    "filters.clip": "Clip",
    "filters.dp": "CentralDP LocalDP",
    "filters.fp16": "FP16",
    "filters.int8": "Int8",
    "filters.krum": "Krum",
    "filters.masked": "Masked",
    "filters.median": "Median",
    "filters.noise": "Noise",
    "filters.topk": "TopK",
    "filters.trimmed": "TrimmedMean",
    "fleet.remote": "Remote",
    "methods.afl": "AFL",
    "methods.am": "AM",
    "methods.apfl": "APFL",
    "methods.ditto": "Ditto",
    "methods.dsbn": "DSBN",
    "methods.elcfs": "ELCFS",
    "methods.fedadg": "FedADG",
    "methods.fedatp": "FedATP",
    "methods.fedavg": "FedAvg",
    "methods.fedcsa": "FedCSA",
    "methods.fedicon": "FedICON",
    "methods.fednova": "FedNova",
    "methods.fedpcl": "FedPCL",
    "methods.fedproto": "FedProto",
    "methods.fedprox": "FedProx",
    "methods.fedrep": "FedRep",
    "methods.fedrod": "FedRoD",
    "methods.fedsam": "FedSAM",
    "methods.fedspl": "FedSPL",
    "methods.fedsr": "FedSR",
    "methods.fedthe": "FedTHE",
    "methods.fedtta": "FedTTA",
    "methods.fedttt": "FedTTT",
    "methods.ga": "GA",
    "methods.gma": "GMA",
    "methods.harmofl": "HarmoFL",
    "methods.heterofedtta": "HeteroFedTTA",
    "methods.local": "Local",
    "methods.odpfl": "ODPFL",
    "methods.perfedavg": "PerFedAvg",
    "methods.pfedme": "PFedMe",
    "methods.pfl": "PFL",
    "methods.rsc": "RSC",
    "methods.scaffold": "SCAFFOLD",
    "models.cct": "CCT",
    "models.cnn": "CNN",
    "models.frozen": "Frozen Projection",
    "models.mixed": "Mixed",
    "models.mlp": "MLP",
    "models.pretrained": "Pretrained",
    "models.resnet": "ResNet20",
    "models.resnets": "ResNet",
    "models.stacks": "AlexNet VGG11",
    "ops.augment": "FlipCrop",
    "ops.views": "Views",
    "personal": "NoPersonal",
    "personal.confusion": "Confusion",
    "personal.finetune": "FineTune",
    "personal.fisher": "Fisher",
    "personal.memory": "Memory",
    "recipes.few": "Few",
    "recipes.fixed": "FixedHeads",
    "recipes.once": "TentOnce",
    "shifts.brfl": "Corrupted Interleaved Mixture Natural Original OutOfClient",
    "shifts.domains": "NewClients Reduced Rotated UnseenDomain",
    "shifts.drift": "Continual Gradual LabelDrift Recurring",
}
"""Where records stood when files named them by their modules: `methods.fedavg:FedAvg`. This table is never extended."""


def _public(module: str, name: str) -> str:
    package = module.partition(".")[0]
    return f"{'experiment' if package == 'config' else package}:{name}"


OLD = {f"{m}:{c}": _public(m, c) for m, classes in OLD_MODULES.items() for c in classes.split()}
"""Names in files of version 0.1.0.dev0 and earlier, and the public names of the same records."""
FORMER = {public: old for old, public in OLD.items()}
"""The inverse of `OLD`: it makes the hashes by which such files know their training."""

Trust: TypeAlias = bool | Sequence[str]
_trust: contextvars.ContextVar[bool | tuple[str, ...]] = contextvars.ContextVar("trust", default=False)
_records: dict[str, type] = {}
"""Every class that a name in a file may stand for."""


def allow(*classes: type) -> None:
    """Let files name these classes: own methods, adapters, data sets, models and other records.

    What a file names is made with the fields that it gives, so allow classes whose making does no harm.
    """
    for cls in classes:
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise TypeError(f"allow: {cls!r} must be a dataclass: records are frozen dataclasses")
        _records[name_of(cls)] = cls


def name_of(cls: type) -> str:
    """The name by which files call a class: `methods:FedAvg` for acclimate's own, else `module:Class`."""
    package, _, rest = cls.__module__.partition(".")
    return f"{rest.partition('.')[0] if package == 'acclimate' else cls.__module__}:{cls.__qualname__}"


def class_of(name: str) -> type | None:
    """The class that a name in a file stands for; None where it stands for none that is allowed."""
    public = OLD.get(name, name)
    if public not in _records:
        if module := LATER.get(public.partition(":")[0]):
            importlib.import_module(module)
        elif may_import(name):
            module, _, attribute = name.partition(":")
            allow(getattr(importlib.import_module(module), attribute))
    return _records.get(public)


def allowed_names() -> list[str]:
    """A user's own classes that may be imported where a file names them."""
    return [name.strip() for name in os.environ.get(ALLOW, "").split(",") if name.strip()]


def may_import(name: str) -> bool:
    """Whether a class of the user's own may be imported because a file or a message names it, as `module:Class`."""
    trust, listed = _trust.get(), allowed_names()
    named = name in listed or EVERY in listed or trust is True or (not isinstance(trust, bool) and name in trust)
    return named and all(part.isidentifier() for part in name.replace(":", ".").split("."))


@contextlib.contextmanager
def trusting(trust: Trust) -> Iterator[None]:
    """While this lasts, files may name these classes of the user's own, or with True any."""
    token = _trust.set(trust if isinstance(trust, bool) else tuple(trust))
    try:
        yield
    finally:
        _trust.reset(token)


def own_names() -> list[str]:
    """The user's own classes that this process knows: what a process that it starts must be allowed too."""
    own = [name for name, cls in _records.items() if not cls.__module__.startswith("acclimate.")]
    return sorted({*own, *allowed_names()})


def is_known(cls: Any) -> bool:
    """Whether files may name this class."""
    return _records.get(name_of(cls)) is cls


def _exported(package: types.ModuleType) -> list[type]:
    found = [getattr(package, name) for name in package.__all__]
    return [c for c in found if isinstance(c, type) and dataclasses.is_dataclass(c)]


allow(*CORE, *OPS, *(cls for package in PACKAGES for cls in _exported(package)))
