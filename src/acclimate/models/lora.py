"""LoRA. Hu et al., ICLR 2022: a frozen model, and beside each of its linear layers W a product B A of low rank.

A layer gives W x + (alpha / rank) B A x. A starts at random and B at zero, so that training starts from the model
itself. The frozen part, the trunk, is no part of the variables: it is never copied per client, sent or saved, and under
`vmap` all clients' inputs go through one product with it. Only A, B and what `train` names (the head) are a client's
own.

With `private` there is a second, local pair beside the shared one, for methods that keep it at the client: FedDPA, or
FedAvg with `private=("*.local.*",)`.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch.nn.modules.batchnorm import _BatchNorm

from ..core import Model, Task, Tree, check
from ..core.nn.layers import is_norm
from . import low_rank
from .vit import ViT

LOCAL = "*.local.*"
"""The names of the local pairs' parameters, as a pattern."""


@dataclass(frozen=True)
class LoRA:
    """A frozen model with trained products of low rank beside its linear layers (Hu et al., ICLR 2022)."""

    base: Model = ViT()
    """The model whose weights are frozen. Without weights of its own (`base.weights`) it is a random one, drawn with
    seed 0 whatever the experiment's, so that every client and every site has the same."""
    rank: int = 4
    targets: tuple[str, ...] = ("*",)
    """Linear layers that get a pair, by name, last part of a name, or pattern; the head has none."""
    alpha: float = 8.0
    """The product counts alpha / rank."""
    private: int = 0
    """The rank of a second pair in every layer, called `local`; 0: there is none."""
    train: tuple[str, ...] = ("head",)
    """What of the base is trained besides: `head`, `norm`, or patterns. Batch norm is always trained, because its
    statistics follow the data."""

    def __post_init__(self) -> None:
        check.whole(self, "rank", 1)
        check.whole(self, "private", 0)
        check.positive(self, "alpha")
        if not self.targets:
            raise check.FieldError("LoRA: targets=() must name at least one linear layer, or '*' for all", "targets")
        if not isinstance(self.base, Model) or isinstance(self.base, nn.Module | LoRA):
            raise check.FieldError(
                f"LoRA: base={type(self.base).__name__} must be a model record, such as ViT(weights=...); a module "
                "becomes one by Pretrained(backbone=module)",
                "base",
            )

    def for_inputs(self, mean: tuple[float, ...], std: tuple[float, ...]) -> LoRA:
        """The same for inputs that are normalised so, where the base asks."""
        fitting = getattr(self.base, "for_inputs", None)
        return replace(self, base=fitting(mean, std)) if fitting else self

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The frozen model with fresh pairs, and a fresh head where the base has one for other classes."""
        module = self.base.build(shape, num_classes)
        for name in _targets(self, module, getattr(module, "head_name", "head")):
            _adapt(self, name, module.get_submodule(name))
        return OnTrunk(self, module, trunk(self.base, shape, num_classes))


class Trunk:
    """A frozen model's tensors by name: no module, so that they are no variables; one copy per device and precision."""

    def __init__(self, module: nn.Module) -> None:
        tensors = dict(_named(module))
        self.tensors = {n: t.detach() for n, t in tensors.items() if t.is_floating_point()}
        self._placed: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Trunk:
        return self

    def on(self, device: torch.device, dtype: torch.dtype, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Some tensors there and in this precision, copied once."""
        placed = self._placed.setdefault((device, dtype), {})
        with outside_transforms():  # a tensor that is made inside a transform stays wrapped when it is over
            for name in names:
                if name not in placed:
                    placed[name] = self.tensors[name].to(device, dtype)
        return placed


def trunk(base: Model, shape: tuple[int, ...], num_classes: int) -> Trunk:
    """The weights of a base: one copy for all tasks of a process, unless the file that they come from has changed."""
    record: Any = base
    name = str(getattr(record, "weights", ""))
    file = Path(name.rpartition("#")[0] or name).expanduser()
    return _trunk(record, tuple(shape), num_classes, _stamp(file))


def _stamp(file: Path) -> tuple[int, ...]:
    """What changes with a file: also where another took its place within a tick of the clock, or with its old date."""
    if not file.is_file():
        return ()
    there = file.stat()
    return there.st_mtime_ns, there.st_ctime_ns, there.st_size, there.st_ino


@lru_cache(maxsize=4)
def _trunk(base: Any, shape: tuple[int, ...], num_classes: int, written: tuple[int, ...]) -> Trunk:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Trunk(base.build(shape, num_classes))


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, each under every name that it has: a tied weight has several."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


class _Pair(nn.Module):
    """A and B of one layer, and what their product counts."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.a), self.b) * self.scale


class LoRALinear(nn.Linear):
    """A linear layer and its pairs."""

    shared: _Pair
    local: _Pair | None

    def forward(self, input: Tensor) -> Tensor:
        own = self.own()
        if own is None:
            return super().forward(input) + sum(pair(input) for pair in self._pairs())
        return low_rank.linear(input, self.weight, self.bias, *own)

    def own(self) -> low_rank.Own | None:
        """Its pairs as one; None where its weights are trained too, so that each client has others."""
        if "weight" in self._parameters:
            return None
        return low_rank.pairs(*((p.a, p.b, p.scale) for p in self._pairs()))

    def _pairs(self) -> list[_Pair]:
        return [self.shared] if self.local is None else [self.shared, self.local]


class FrozenLinear(nn.Linear):
    """A linear layer whose weights lie in a trunk."""

    def forward(self, input: Tensor) -> Tensor:
        return (
            super().forward(input) if "weight" in self._parameters else low_rank.linear(input, self.weight, self.bias)
        )


class OnTrunk(nn.Module):
    """A module most of whose weights lie in a trunk, and are there only while it runs."""

    def __init__(self, spec: Any, module: nn.Module, source: Trunk) -> None:
        super().__init__()
        head = getattr(module, "head_name", "head")
        self.head_name = f"trunk.{head}"
        free = _free(spec, module, head)
        self.trunk, self.source = module, source
        self.frozen = tuple(n for n in source.tensors if n not in free)
        self._take_out()
        for layer in module.modules():
            if type(layer) is nn.Linear and "weight" not in layer._parameters:
                layer.__class__ = FrozenLinear

    def kept_apart(self) -> dict[str, Tensor]:
        """The frozen tensors, by name, which are no variables."""
        return {name: self.source.tensors[name] for name in self.frozen}

    def _take_out(self) -> None:
        for owner, part, _ in self._places():
            owner._parameters.pop(part, None)
            owner._buffers.pop(part, None)

    def _places(self) -> Iterator[tuple[nn.Module, str, str]]:
        for name in self.frozen:
            place, _, part = name.rpartition(".")
            yield self.trunk.get_submodule(place), part, name

    @contextlib.contextmanager
    def _filled(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        places = list(self._places())
        for owner, part, name in places:
            owner.__dict__[part] = tensors[name]
        try:
            yield
        finally:
            for owner, part, _ in places:
                owner.__dict__.pop(part, None)  # a layer that has two names comes twice

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = x.dtype if x.is_floating_point() else next(self.parameters()).dtype
        with self._filled(self.source.on(x.device, dtype, self.frozen)):
            out: tuple[Tensor, Tensor] = self.trunk(x)
        return out


def _adapt(spec: LoRA, name: str, layer: nn.Module) -> None:
    """Make a linear layer one with pairs, in place."""
    assert isinstance(layer, nn.Linear)
    most = min(layer.in_features, layer.out_features)
    for field in ("rank", "private"):
        if getattr(spec, field) > most:
            raise check.FieldError(
                f"LoRA: {field}={getattr(spec, field)} is more than layer '{name}' has, {layer.in_features} inputs and "
                f"{layer.out_features} outputs; choose at most {most}, or targets without this layer",
                field,
            )
    sizes = (layer.in_features, layer.out_features)
    layer.__class__ = LoRALinear
    layer.shared = _Pair(*sizes, spec.rank, spec.alpha)
    layer.register_module("local", _Pair(*sizes, spec.private, spec.alpha) if spec.private else None)


def _targets(spec: LoRA, module: nn.Module, head: str) -> list[str]:
    """The layers that the patterns name; an error where one of them names none."""
    layers = [n for n, m in module.named_modules() if isinstance(m, nn.Linear) and n != head]
    chosen = {pattern: [n for n in layers if _matches(n, pattern)] for pattern in spec.targets}
    for pattern, found in chosen.items():
        if not found:
            kinds = list(dict.fromkeys(n.rpartition(".")[2] for n in layers))
            near = difflib.get_close_matches(pattern.rpartition(".")[2], kinds, n=1) or kinds[:1]
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise check.FieldError(
                f"LoRA: targets: no linear layer of {type(spec.base).__name__} matches '{pattern}'; {hint}it has "
                + (", ".join(layers[:6]) + (f" and {len(layers) - 6} more" if len(layers) > 6 else "") or "none"),
                "targets",
            )
    return [n for n in layers if any(n in found for found in chosen.values())]


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _free(spec: Any, module: nn.Module, head: str) -> frozenset[str]:
    """The base's own variables that are trained: batch norm, and what `train` names."""
    names = [n for n, _ in _named(module)]
    kinds = dict(module.named_modules(remove_duplicate=False))

    def of(name: str, kind: Any) -> bool:
        return bool(kind(kinds[name.rpartition(".")[0]]))

    free = {n for n in names if of(n, lambda m: isinstance(m, _BatchNorm))}
    for role in spec.train:
        if role == "norm":
            found = {n for n in names if of(n, is_norm)}
        else:
            found = {n for n in names if (n.startswith(f"{head}.") if role == "head" else fnmatchcase(n, role))}
        if not found:
            raise check.FieldError(
                f"{type(spec).__name__}: train: '{role}' names nothing in {type(spec.base).__name__}; "
                "allowed are head, norm, or a pattern over " + ", ".join(names[:4]) + ", ...",
                "train",
            )
        free |= found
    if f"{head}.weight" not in free:
        raise check.FieldError(
            f"{type(spec).__name__}: train={spec.train!r} leaves out the head, which clients train at least; add head",
            "train",
        )
    return frozenset(free)


def merged(task: Task, vars: Tree) -> tuple[Task, Tree]:
    """A model with LoRA as its plain base, every product added to the weight beside it: its task, and variables."""
    spec = task.model
    if not isinstance(spec, LoRA):
        raise ValueError(f"merged: the task's model must be a LoRA, it is a {type(spec).__name__}")
    plain = task.having(spec.base, task.dtype)
    full = trunk(spec.for_inputs(task.mean, task.std).base, task.shape, task.num_classes).tensors
    own = {**vars["params"], **vars["buffers"]}
    device = next(iter(own.values())).device

    def value(name: str) -> Tensor:
        layer = f"trunk.{name.removesuffix('.weight')}"
        out = own.get(f"trunk.{name}", full[name].to(device))
        for pair, rank in (("shared", spec.rank), ("local", spec.private)):
            if name.endswith(".weight") and f"{layer}.{pair}.a" in own:
                out = out + own[f"{layer}.{pair}.b"] @ own[f"{layer}.{pair}.a"] * (spec.alpha / rank)
        return out

    fresh = plain.init(torch.zeros((), dtype=torch.int64))
    for name in [n for n in full if f"trunk.{n.removesuffix('.weight')}.shared.a" in own]:
        if twins := [n for n, t in full.items() if n != name and t.data_ptr() == full[name].data_ptr()]:
            raise ValueError(
                f"merged: '{name}' is one weight with '{twins[0]}', so the product beside it cannot be added to it; "
                "leave this layer out of LoRA's targets, or use the model as it is"
            )
    return plain, {kind: {name: value(name) for name in fresh[kind]} for kind in ("params", "buffers")}
