"""FedPCL's lightweight framework: several frozen encoders side by side, and a small trained network on their features.

Tan et al., NeurIPS 2022, Sec. 3. Encoders are no part of a model's variables: they are never trained, never sent, and
there is one copy of each, however many clients there are.

Two ways to use them. `data.Features(data=..., encoder=Frozen(...))` computes the features of a data set once and keeps
them on disk; any model on vectors, such as `Projection`, then trains on them in seconds. As a model (`model=Frozen()`)
the encoders run inside it: slower, but test streams may change the images.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

from ..core import Model, Task, Tree, check, rng
from ..ops.hashing import SCALARS, fingerprint
from . import encoders
from .encoders import Backbone, column
from .norms import norm_layer


@dataclass(frozen=True)
class Projection:
    """One linear layer with ReLU onto the representation, and a linear head: what FedPCL's clients train (Table 7).

    Without biases and batch norm, as the numbers of parameters in the paper's tables imply; its Table 7 has batch norm
    after the ReLU (`norm="batch"`).
    """

    width: int = 256
    """Width of the representation, in which prototypes are compared."""
    norm: Literal["none", "batch"] = "none"
    bias: bool = False
    """Whether the two linear layers have biases."""
    head: Literal["linear", "released"] = "linear"
    """What the classifier gives: logits, or as in the published code their positive part, scaled to length one (L2),
    from a representation of length one. Such logits lie between 0 and 1, so a softmax of them is never sure."""

    def __post_init__(self) -> None:
        check.at_least(self, "width", 1)
        check.choices(self)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for vectors of this length."""
        return _Projection(self, torch.Size(shape).numel(), num_classes)


class _Projection(nn.Module):
    def __init__(self, spec: Projection, inputs: int, num_classes: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, spec.width, bias=spec.bias)
        self.norm = nn.Sequential(*norm_layer(spec.norm, spec.width, 1, flat=True))
        self.head = nn.Linear(spec.width, num_classes, bias=spec.bias)
        self.bounded = spec.head == "released"

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.norm(F.relu(self.project(x.flatten(1))))
        if not self.bounded:
            return features, self.head(features)
        features = F.normalize(features, dim=-1)
        return features, F.normalize(F.relu(self.head(features)), dim=-1)


@dataclass(frozen=True)
class Frozen:
    """K frozen encoders whose features are concatenated (Eq. 2), and the model that is trained on top of them."""

    backbones: tuple[str | nn.Module, ...] = ("efficientnet-lite0",)
    """Names (see models/encoders.py), or modules from pixels in 0..1 to features or a tuple that starts with them."""
    size: int | None = None
    """Side to which images are resized (bilinear) before they are encoded; None leaves them as they are."""
    width: int | None = None
    """Features per backbone: those of the encoder times a fixed random matrix (the paper has 512); None keeps all."""
    top: Model = Projection()
    """The model that is trained on the features."""
    mean: tuple[float, ...] = ()
    """The data set's own mean, which a model puts back before its encoders see the pixels; empty takes the task's."""
    std: tuple[float, ...] = ()
    """The data set's own deviation, likewise."""

    def __post_init__(self) -> None:
        if not self.backbones:
            raise ValueError("Frozen: backbones=() must name at least one")
        for name in ("size", "width"):
            if getattr(self, name) is not None:
                check.at_least(self, name, 1)
        if len(self.mean) != len(self.std):
            raise check.FieldError(
                f"Frozen: mean={self.mean} and std={self.std} need one entry per channel each", "mean", "std"
            )

    def for_inputs(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Frozen:
        """The same for inputs that are normalised so, unless it says otherwise."""
        return self if self.mean else replace(self, mean=mean, std=std)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The encoders with a fresh `top`, for images of this shape."""
        bank = _Bank(self)
        with torch.no_grad():
            width = bank(torch.zeros(2, *shape)).shape[-1]
        return _Fused(bank, self.top.build((width,), num_classes))

    def parts(self) -> tuple[tuple[str, Callable[[Tensor], Tensor]], ...]:
        """For every encoder, a name that tells it from all others and its features as a function of uint8 images."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return tuple(self._part(backbone, device) for backbone in self.backbones)

    def _part(self, backbone: str | nn.Module, device: torch.device) -> tuple[str, Callable[[Tensor], Tensor]]:
        encoder = _encoder(backbone)
        name = f"{_identity(backbone, encoder)} size={self.size} on {device.type}"
        here = encoder._replace(module=_copy(encoder.module, device))

        def encode(x: Tensor) -> Tensor:
            with torch.no_grad():
                return _features(here, _pixels(x.to(device)), self.size).cpu()

        return name, encode

    def fuse(self, parts: Sequence[Tensor]) -> Tensor:
        """The encoders' features as one representation: narrowed to `width` each, and concatenated (Eq. 2)."""
        if self.width is not None:
            parts = [p @ _directions(i, p.shape[-1], self.width, p.device) for i, p in enumerate(parts)]
        return torch.cat(list(parts), -1)

    def fixed_parameters(self) -> int:
        """How many numbers the encoders hold: what a client stores, and never trains or sends (Table 14)."""
        return sum(p.numel() for b in self.backbones for p in _encoder(b).module.parameters())


class _Bank:
    """The encoders of a model: no module, so that their weights are no variables; one copy per device."""

    def __init__(self, spec: Frozen) -> None:
        self.spec = spec
        self.encoders = {torch.device("cpu"): [_encoder(b) for b in spec.backbones]}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Bank:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        if x.device not in self.encoders:
            with outside_transforms():
                self.encoders[x.device] = [e._replace(module=_copy(e.module, x.device)) for e in self._first()]
        if self.spec.mean:
            x = x * column(self.spec.std, x) + column(self.spec.mean, x)
        return self.spec.fuse([_features(e, x, self.spec.size) for e in self.encoders[x.device]]).detach()

    def _first(self) -> list[Backbone]:
        return self.encoders[torch.device("cpu")]


class _Fused(nn.Module):
    def __init__(self, bank: _Bank, top: nn.Module) -> None:
        super().__init__()
        self.bank, self.top = bank, top
        self.head_name = f"top.{getattr(top, 'head_name', 'head')}"

    def kept_apart(self) -> dict[str, Tensor]:
        """The encoders' tensors, by number and name, which are no variables."""
        found = enumerate(e.module.state_dict() for e in self.bank._first())
        return {f"backbones.{i}.{name}": tensor for i, own in found for name, tensor in own.items()}

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = self.top(self.bank(x))
        return out


class _Normalised(nn.Module):
    """A module behind the normalisation that it was trained with."""

    def __init__(self, module: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.module, self.mean, self.std = module, mean, std

    def forward(self, x: Tensor) -> Any:
        return self.module((x - column(self.mean, x)) / column(self.std, x) if self.mean else x)


def encoder_of(task: Task, vars: Tree) -> nn.Module:
    """A trained model as a backbone: its features, from pixels in 0..1. For encoders trained with acclimate itself."""
    if not isinstance(task.model, Model):
        raise ValueError(f"encoder_of: the task's model must be a model record, it is a {type(task.model).__name__}")
    fitting = getattr(task.model, "for_inputs", None)  # a model that undoes the task's normalisation must know it
    model = fitting(task.mean, task.std) if fitting else task.model
    module = model.build(task.shape, task.num_classes)
    module.load_state_dict({**vars["params"], **vars["buffers"]}, strict=False)
    return _Normalised(module, task.mean, task.std).eval()


def _encoder(backbone: str | nn.Module) -> Backbone:
    return _named(backbone) if isinstance(backbone, str) else _ready(Backbone(copy.deepcopy(backbone)))


@lru_cache(maxsize=8)
def _named(name: str) -> Backbone:
    return _ready(encoders.load(name))


def _ready(encoder: Backbone) -> Backbone:
    encoder.module.eval().requires_grad_(False)
    return encoder


def _copy(module: nn.Module, device: torch.device) -> nn.Module:
    """The module on a device: itself on the CPU, where all of them start."""
    return module if device.type == "cpu" else copy.deepcopy(module).to(device)


@lru_cache(maxsize=16)
def _directions(part: int, inputs: int, width: int, device: torch.device) -> Tensor:
    """Random directions that keep lengths on average: the same for every client, run and machine."""
    with outside_transforms():
        return (rng.normal(rng.fold(rng.key(0), "directions", part), inputs, width) / width**0.5).to(device)


def _identity(backbone: str | nn.Module, encoder: Backbone) -> str:
    """A hash over architecture, weights, preprocessing, and what else decides how an encoder computes.

    That is the name of a published one, and the settings and code of any other's layers, without the functions that
    they call. Where a layer keeps something that cannot be looked into, the encoder has another name every time.
    """
    if isinstance(backbone, str):
        return _hash(encoder, backbone.partition("@")[0])  # weights tell one file from another, wherever it lies
    again = copy.deepcopy(encoder.module)  # what counts by its place in memory has another one there
    own, copied = (_hash(encoder._replace(module=m), _layers(m)) for m in (encoder.module, again))
    return own if own == copied else secrets.token_hex()


def _hash(encoder: Backbone, how: Any) -> str:
    weights = {**dict(encoder.module.named_buffers()), **encoder.module.state_dict()}
    about = (repr(encoder.module), weights, encoder.mean, encoder.std, how)
    return fingerprint(SimpleNamespace(about=about))  # a bare tuple would count by its place in memory


def _layers(module: nn.Module) -> list[Any]:
    """What architecture and weights do not say of a module: what its layers keep, their hooks, and their code."""
    layers = list(module.modules())
    kinds = dict.fromkeys(kind for layer in layers for kind in type(layer).__mro__ if not _of_torch(kind))
    return [*(_kept(layer) for layer in layers), *((kind, _written(kind)) for kind in kinds)]


def _of_torch(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


_EVERY = frozenset(vars(nn.Module()))
"""What any module keeps: its weights, its parts, its hooks and its mode."""


def _kept(layer: nn.Module) -> tuple[dict[str, Any], list[Any]]:
    """A layer's own attributes, and its hooks. Those that torch's layers hide follow from the others."""
    own = {k: v for k, v in vars(layer).items() if k not in _EVERY and not (k[0] == "_" and _of_torch(type(layer)))}
    places = (torch.device, torch.dtype)  # these are what their text says
    hooks = [*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()]
    return {k: str(v) if isinstance(v, places) else v for k, v in own.items()}, hooks


def _written(kind: type) -> dict[str, Any]:
    """The functions and constants of a class. One that was edited has the same name as before."""
    members = {k: getattr(v, "__func__", getattr(v, "fget", v)) for k, v in vars(kind).items()}
    constants = (*SCALARS, tuple, list, dict, Tensor)
    return {
        k: v
        for k, v in members.items()
        if isinstance(v, FunctionType) or (isinstance(v, constants) and not k.startswith("__"))
    }


def _pixels(x: Tensor) -> Tensor:
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def _features(encoder: Backbone, x: Tensor, size: int | None) -> Tensor:
    """Features [B, d] of pixels in 0..1; grey images are shown as RGB."""
    if encoder.mean and x.shape[-3] == 1 != len(encoder.mean):
        x = x.expand(*x.shape[:-3], len(encoder.mean), *x.shape[-2:])
    if size is not None and x.shape[-2:] != (size, size):
        x = F.interpolate(x, (size, size), mode="bilinear", align_corners=False, antialias=size < x.shape[-1])
    if encoder.mean:
        x = (x - column(encoder.mean, x)) / column(encoder.std, x)
    out = encoder.module(x)
    features: Tensor = out[0] if isinstance(out, tuple | list) else out
    if features.dim() != 2:
        raise ValueError(
            f"backbone {type(encoder.module).__name__} must give features [batch, width], for images "
            f"{tuple(x.shape)} it gives {tuple(features.shape)}"
        )
    return features
