"""A model and its loss as pure functions of an explicit tree of variables."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch.func import functional_call

from . import rng, tree
from .nn.layers import NORM_LAYERS, PureBatchNorm, purify
from .tree import Tree


@dataclass(frozen=True)
class Blend:
    """The mode `adapt`, with batch statistics mixed with the running ones, which count for `prior` samples."""

    prior: float


Mode: TypeAlias = Literal["train", "eval", "adapt"] | Blend
"""`train`: batch statistics, dropout. `eval`: running statistics. `adapt`: eval, but with batch statistics."""


Changes: TypeAlias = Mapping[str, Callable[[Tensor], Tensor | None]]
"""Functions of the outputs of named modules."""


class Out(NamedTuple):
    """What a forward pass gives: logits, the features that enter the head, and the new buffers."""

    logits: Tensor
    features: Tensor
    buffers: Tree


@runtime_checkable
class Model(Protocol):
    """A model record: fields are its architecture, `build` makes a fresh module that returns (features, logits)."""

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A new nn.Module for inputs of `shape` (without batch axis), with a linear layer named `head`."""
        ...


@runtime_checkable
class Augment(Protocol):
    """A record that changes training images at random; `views` is pure, keyed and keeps the shape."""

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image of a batch (uint8, or floats in 0..1)."""
        ...


@functools.lru_cache(maxsize=64)
def _constant(values: tuple[float, ...], ndim: int, device: torch.device) -> Tensor:
    # Memoised: making a tensor from Python numbers is a host-to-device copy, which a graph capture refuses. Outside all
    # transforms: a tensor made inside two nested `grad`s stays wrapped when they are over, and its next use fails.
    with outside_transforms():
        return torch.tensor(values, device=device).view(-1, *[1] * (ndim - 2))


class Task:
    """A model and its loss as pure functions.

    `model` is a `Model` record, an nn.Module (its weights are then the initial ones), or a function
    `(shape, num_classes) -> nn.Module`. The module returns (features, logits) and has a linear layer called `head`
    (or names another in `head_name`). Inputs are uint8 images or floats; uint8 is scaled to 0..1, and both are then
    normalised with `mean` and `std`, so that everything outside the task sees pixels.
    """

    def __init__(
        self,
        model: Model | nn.Module | Callable[[tuple[int, ...], int], nn.Module],
        shape: tuple[int, ...],
        num_classes: int,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
        augment: Augment | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtype = dtype
        self.model, self.shape, self.num_classes = model, tuple(shape), num_classes
        self.mean, self.std = tuple(mean), tuple(std)
        self.augment = augment
        with torch.random.fork_rng(devices=[]):
            base = self._build()
        self.dim = _head_width(base, model, num_classes)
        self.stages = _check_outputs(base, model, self.shape, self.dim, num_classes)
        head = getattr(base, "head_name", "head")
        self.dropout_keys = purify(base)
        self.params = tuple(n for n, _ in base.named_parameters())
        self.head = frozenset(n for n in self.params if n.startswith(f"{head}."))
        self.body = frozenset(self.params) - self.head  # `select("body")` has statistics, too
        self.norm = frozenset(
            f"{n}.{p}" if n else p
            for n, m in base.named_modules()
            if isinstance(m, NORM_LAYERS)
            for p, _ in (*m.named_parameters(recurse=False), *m.named_buffers(recurse=False))
        )
        self.head_weight, self.head_bias = f"{head}.weight", f"{head}.bias"
        self.norm_eps = {n: m.eps for n, m in base.named_modules() if isinstance(m, PureBatchNorm)}
        """What batch norm layers, by name, add to a variance."""
        self.norm_momentum = {n: m.momentum or 1.0 for n, m in base.named_modules() if isinstance(m, PureBatchNorm)}
        """How far running statistics, by layer, go to a batch's own in one pass."""
        self.has_batch_norm = any(isinstance(m, PureBatchNorm) for m in base.modules())
        self.has_convolution = any(isinstance(m, nn.modules.conv._ConvNd) for m in base.modules())
        constants = {n: b for n, b in base.named_buffers() if not b.is_floating_point() and n not in self.dropout_keys}
        self._constants = {torch.device("cpu"): constants}
        self._initial: dict[int, Tree] = {}
        self._skeletons = _skeletons(base.to("meta"))

    @property
    def _about(self) -> dict[str, Any]:
        """What the constructor takes before the precision, in its order."""
        names = ("model", "shape", "num_classes", "mean", "std", "augment")
        return {name: getattr(self, name) for name in names}

    def __reduce__(self) -> tuple[Any, ...]:
        return Task, (*self._about.values(), self.dtype)

    def computing(self, dtype: torch.dtype | None) -> Task:
        """The same task whose forward and backward passes run in this precision; variables and outputs keep theirs."""
        return Task(**self._about, dtype=dtype)

    def _build(self) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        if isinstance(self.model, Model):
            fitting = getattr(self.model, "for_inputs", None)  # a model that brings its weights brings what they expect
            model = fitting(self.mean, self.std) if fitting else self.model
            return model.build(self.shape, self.num_classes)
        return self.model(self.shape, self.num_classes)

    def init(self, key: rng.Key) -> Tree:
        """Fresh variables: `{"params": ..., "buffers": ...}`, on the key's device."""
        seed = int(key) & 0x7FFFFFFF
        if seed not in self._initial:  # a thousand clients that start alike need one module, not a thousand
            self._initial = {seed: self._fresh(seed)}
        return tree.to(self._initial[seed], key.device)

    def _fresh(self, seed: int) -> Tree:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._build()
        purify(module)
        params = {n: p.detach().clone() for n, p in module.named_parameters()}
        buffers = {n: b.clone() for n, b in module.named_buffers() if b.is_floating_point()}
        return {"params": params, "buffers": buffers}

    def _fixed(self, device: torch.device) -> Tree:
        """Buffers that are not numbers to train or average (index tables): kept out of the variables."""
        if device not in self._constants:
            with outside_transforms():  # as in `_constant`
                self._constants[device] = tree.to(self._constants[torch.device("cpu")], device)
        return self._constants[device]

    def apply(
        self, vars: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None, change: Changes | None = None
    ) -> Out:
        """The forward pass. In train mode `key` feeds dropout and augmentation; without a key nothing is augmented.

        `change` names modules whose output is replaced by what a function makes of it (see `places`).
        """
        if self.augment is not None and mode == "train" and key is not None:
            x = self.augment.views(x, rng.fold(key, "augment"))
        input = self.normalise(x)
        used = self._in_dtype({"input": input, **vars}, mode)
        tensors = {**self._fixed(x.device), **used["params"], **used["buffers"]}
        if self.dropout_keys and mode == "train":
            if key is None:
                raise ValueError("this model has dropout: pass a key to Task.apply in mode 'train'")
            tensors |= {name: rng.fold(key, "dropout", i) for i, name in enumerate(self.dropout_keys)}
        # functional_call leaves what the layers assigned (new batch statistics) in `tensors`.
        skeleton = self._skeleton(mode)
        with _changing(skeleton, change or {}):
            features, logits = functional_call(skeleton, tensors, (used["input"],))
        if self.dtype is None:
            return Out(logits, features, {k: tensors[k] for k in vars["buffers"]})
        buffers = {k: b if mode == "eval" else tensors[k].to(b.dtype) for k, b in vars["buffers"].items()}
        return Out(logits.to(input.dtype), features.to(input.dtype), buffers)

    def _in_dtype(self, given: Tree, mode: Mode) -> Tree:
        """Input and variables in the precision of the passes. Running statistics stay as they are in training: what a
        batch adds to them would be rounded away."""
        if self.dtype is None:
            return given
        used: Tree = tree.map(lambda t: t.to(self.dtype), given)
        return {**used, "buffers": given["buffers"]} if mode == "train" else used

    def _skeleton(self, mode: Mode) -> nn.Module:
        if mode not in self._skeletons:
            if not isinstance(mode, Blend):
                raise ValueError(f"mode={mode!r} must be 'train', 'eval', 'adapt' or Blend(prior)")
            self._skeletons[mode] = copy.deepcopy(self._skeletons["adapt"])
            for layer in self._skeletons[mode].modules():
                if isinstance(layer, PureBatchNorm):
                    layer.prior = mode.prior
        return self._skeletons[mode]

    def loss(self, vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """Cross-entropy on a labelled batch, and the new buffers."""
        out = self.apply(vars, batch["x"], "train", key)
        return F.cross_entropy(out.logits, batch["y"]), out.buffers

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels (uint8, or floats in 0..1) as the model's input."""
        if x.dtype == torch.uint8:
            x = x.to(torch.float32) / 255.0
        if self.mean:
            x = (x - _constant(self.mean, x.dim(), x.device)) / _constant(self.std, x.dim(), x.device)
        return x

    def places(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """Modules by name or pattern, for `apply(change=...)`; `stages` names some that every image model has."""
        names = [n for n, _ in self._skeletons["eval"].named_modules() if n]
        for p in patterns:
            if not any(fnmatchcase(n, p) for n in names):
                raise ValueError(f"no module matches '{p}'; this model's feature maps are made by {self.stages}")
        return tuple(n for n in names if any(fnmatchcase(n, p) for p in patterns))

    def select(self, roles: str | Iterable[str]) -> frozenset[str]:
        """Names of parameters and buffers by role (`head`, `norm`, `body`, `all`) or by pattern (`conv1.*`)."""
        wanted = (roles,) if isinstance(roles, str) else tuple(roles)
        known = frozenset(self.params) | self.norm
        out: frozenset[str] = frozenset()
        for role in wanted:
            named = {"head": self.head, "norm": self.norm, "body": known - self.head, "all": known}.get(role)
            if named is None:
                named = frozenset(n for n in known if fnmatchcase(n, role))
                if not named:
                    raise ValueError(
                        f"no parameter matches '{role}'; allowed are head, norm, body, all, or a pattern over "
                        + ", ".join(sorted(known))
                    )
            if not named:
                raise ValueError(
                    f"'{role}' selects nothing, because this model has no such layers; for norm, which FedBN keeps and "
                    "Tent tunes, set model.norm=batch or group, or name methods that do without: method=fedavg"
                )
            out |= named
        return out


def _head_width(module: nn.Module, model: Any, num_classes: int) -> int:
    name = getattr(module, "head_name", "head")
    label = model if not isinstance(model, nn.Module) else type(model).__name__
    head = dict(module.named_modules()).get(name)
    if not isinstance(head, nn.Linear):
        raise ValueError(
            f"model {label} must have an nn.Linear called 'head' as its last layer (or set head_name); "
            f"'{name}' is {'missing' if head is None else 'a ' + type(head).__name__}"
        )
    if head.out_features != num_classes:
        raise ValueError(
            f"model {label}: its head has {head.out_features} outputs but the data has {num_classes} classes; "
            f"build it with num_classes={num_classes}"
        )
    return head.in_features


def _check_outputs(
    module: nn.Module, model: Any, shape: tuple[int, ...], dim: int, num_classes: int
) -> tuple[str, ...]:
    """One forward pass in eval mode: the module must return (features, logits) of the promised widths.

    Returns the names of the modules that make the feature maps: for each size of map, the last and outermost one.
    """
    label, training = type(model).__name__, module.training
    maps: list[tuple[tuple[int, ...], str]] = []

    def note(name: str, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim() == 4:
            maps.append((tuple(out.shape[2:]), name))

    watch: Changes = {name: functools.partial(note, name) for name, _ in module.named_modules() if name}
    with torch.no_grad(), _changing(module, watch):
        out = module.eval()(torch.zeros(2, *shape))
    module.train(training)
    if not (isinstance(out, tuple | list) and len(out) == 2):
        raise ValueError(f"model {label} must return (features, logits), it returns a {type(out).__name__}")
    shapes = [tuple(t.shape) for t in out]
    if shapes != [(2, dim), (2, num_classes)]:
        raise ValueError(
            f"model {label} must return features [batch, {dim}] and logits [batch, {num_classes}], "
            f"for a batch of 2 it returns {shapes[0]} and {shapes[1]}"
        )
    return _stages(module, maps)


def _stages(module: nn.Module, maps: list[tuple[tuple[int, ...], str]]) -> tuple[str, ...]:
    """For each size of map the last and outermost module that makes it, in the order in which they are called.

    One that is called several times, such as an activation that layers share, is no place in the network. Nor, where
    there is another, one inside a block that ends in another size: a shortcut may pass it by.
    """
    calls = Counter(name for _, name in maps)
    sizes = {name: size for size, name in maps if calls[name] == 1}

    def passed_by(name: str) -> bool:
        parts = name.split(".")
        around = [".".join(parts[:i]) for i in range(1, len(parts))]
        blocks = [o for o in around if not isinstance(module.get_submodule(o), nn.Sequential)]
        return any(sizes.get(block, sizes[name]) != sizes[name] for block in blocks)

    last = {size: name for name, size in sizes.items()}
    ends = {size: name for name, size in sizes.items() if not passed_by(name)}
    return tuple((last | ends).values())


@contextlib.contextmanager
def _changing(module: nn.Module, change: Changes) -> Iterator[None]:
    """Submodules whose outputs go through a function; one that returns None only looks."""
    hooks = [
        module.get_submodule(name).register_forward_hook(lambda _m, _args, out, f=f: f(out))
        for name, f in change.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _skeletons(base: nn.Module) -> dict[Mode, nn.Module]:
    """One weightless copy per mode, so that a forward pass never flips a training flag."""
    train, evaluate, adapt = base.train(), copy.deepcopy(base).eval(), copy.deepcopy(base).eval()
    for layer in adapt.modules():
        if isinstance(layer, PureBatchNorm):
            layer.train()
    return {"train": train, "eval": evaluate, "adapt": adapt}
