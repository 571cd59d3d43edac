"""A model and its loss as pure functions of an explicit tree of variables."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms
from torch.func import functional_call

from . import rng, tree
from .nn import many, pixels
from .nn.calls import PureCalls
from .nn.cross_entropy import cross_entropy
from .nn.iabn import InstanceAwareBatchNorm
from .nn.inputs import Inputs, kind_of
from .nn.layers import Normaliser, PureBatchNorm, purify
from .nn.modules import (
    Changes,
    answers,
    apart,
    changing,
    check_outputs,
    check_purified,
    constants,
    copied,
    head_width,
    made,
    norm_names,
    normalising,
    nothing,
    skeletons,
    ties,
    trained,
    variables,
)
from .nn.pixels import check_augment
from .nn.reading import read
from .nn.wrapped import Wrap, Wrapped
from .nn.written import written
from .sizes import check_size
from .tree import Tree


@dataclass(frozen=True)
class Blend:
    """The mode `adapt`, with batch statistics mixed with the running ones, which count for `prior` samples."""

    prior: float


Mode: TypeAlias = Literal["train", "eval", "adapt", "still"] | Blend | Normaliser
"""`train`: batch statistics, dropout. `eval`: running statistics. `adapt`: eval, but with batch statistics. `still`:
adapt, for those who do not want the new running statistics. A record that is a `Normaliser`: adapt, with its own way in
the place of batch norm."""


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


def architectures(model: Any) -> tuple[Any, ...] | None:
    """The models of a record that stands for several, such as `models.Mixed`; None where it is one network."""
    several: tuple[Any, ...] | None = getattr(model, "architectures", None)
    return several


@runtime_checkable
class Augment(Protocol):
    """A record that changes training images at random; `views` is pure, keyed and keeps the shape. One that has a true
    `clips` is refused for floats outside 0..1."""

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image of a batch (uint8, or floats in 0..1)."""
        ...


class Task:
    """A model and its loss as pure functions.

    `model` is a `Model` record, an nn.Module (its weights are then the initial ones), or a function
    `(shape, num_classes) -> nn.Module`. The module returns logits, and its last linear layer is the head (`wrap` says
    what cannot be guessed); or it returns (features, logits) and has a linear layer called `head` (or names another in
    `head_name`). Inputs are uint8 images or floats; uint8 is scaled to 0..1, and both are then normalised with `mean`
    and `std`, so that everything outside the task sees pixels. With `tokens` they are whole numbers, ids below that
    number, which no one scales. `pixels` is False where floats [C, H, W] lie outside 0..1: views that clip are then
    refused. `public` is a set of unlabelled inputs that every client holds from the start, so that nobody sends them.
    `frozen` takes the place of what the module does not train (`constants`).
    """

    def __init__(
        self,
        model: Model | Wrap | nn.Module | Callable[[tuple[int, ...], int], nn.Module],
        shape: tuple[int, ...],
        num_classes: int,
        mean: tuple[float, ...] = (),
        std: tuple[float, ...] = (),
        augment: Augment | None = None,
        dtype: torch.dtype | None = None,
        public: Tensor | None = None,
        tokens: int | None = None,
        pixels: bool = True,
        frozen: Tree | None = None,
    ) -> None:
        check_augment(augment, pixels, tokens)
        self.dtype, self.tokens, self.pixels, self._frozen = dtype, tokens, pixels, frozen
        self.public = None if public is None else public.cpu()
        self._placed: dict[torch.device, Tensor] = {}
        self.model, self.shape, self.num_classes = model, tuple(shape), num_classes
        self.mean, self.std = tuple(mean), tuple(std)
        self.augment = augment
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # so that what is frozen in a model that a function makes is the same everywhere
            base = self._made()
            self.foreign = type(base).__module__.partition(".")[0] != __name__.partition(".")[0]
            """Whether its module comes from elsewhere: then functions that it calls are swapped, as layers are."""
            self.kind = type(base).__name__
            self._reading, self.vocabulary = None, tokens and getattr(model, "tokens", tokens)
            if self.foreign:
                how = model if isinstance(model, Wrap) else Wrap(base)
                self._reading, self.vocabulary = read(base, how, self.shape, num_classes, tokens)
        base = base if self._reading is None else Wrapped(base, self._reading)
        self.dim = head_width(base, model, num_classes)
        self.stages = check_outputs(base, model, self.shape, self.dim, num_classes, tokens)
        head = getattr(base, "head_name", "head")
        before = answers(base, self.shape, tokens) if self.foreign else None
        self.dropout_keys = purify(base)
        if before is not None:
            check_purified(before, base, self.shape, tokens)
        self.params = tuple(trained(base, head, self.kind))
        self.head = frozenset(n for n in self.params if n.startswith(f"{head}."))
        self.body = frozenset(self.params) - self.head  # `select("body")` has statistics, too
        self.norm = norm_names(base)
        self.buffers = frozenset(n for n, b in base.named_buffers() if b.is_floating_point())
        self.head_weight, self.head_bias = f"{head}.weight", f"{head}.bias"
        self.norm_eps = {n: m.eps for n, m in base.named_modules() if isinstance(m, PureBatchNorm)}
        """What batch norm layers, by name, add to a variance."""
        self.norm_momentum = {n: m.momentum or 1.0 for n, m in base.named_modules() if isinstance(m, PureBatchNorm)}
        """How far running statistics, by layer, go to a batch's own in one pass."""
        self.has_batch_norm = any(isinstance(m, PureBatchNorm) for m in base.modules())
        self.has_iabn = any(isinstance(m, InstanceAwareBatchNorm) for m in base.modules())
        self.has_convolution = any(isinstance(m, nn.modules.conv._ConvNd) for m in base.modules())
        self.constants, self.apart = constants(base, self.dropout_keys, frozen, self.kind), apart(base)
        self._there: dict[torch.device, Tree] = {}
        self._initial: dict[int, Tree] = {}
        own = variables(base) if self.foreign else {}
        self._skeletons: dict[Mode, nn.Module] = skeletons(base)
        self._ties = ties(base)
        self._written = written(self, own) if self.foreign else frozenset[str]()

    def __reduce__(self) -> tuple[Any, ...]:
        about = (self.model, self.shape, self.num_classes, self.mean, self.std, self.augment)
        return Task, (*about, self.dtype, self.public, self.tokens, self.pixels, self._frozen)

    def computing(self, dtype: torch.dtype | None) -> Task:
        """The same task whose forward and backward passes run in this precision; variables and outputs keep theirs."""
        return self.having(self.model, dtype)

    def having(self, model: Any, dtype: torch.dtype | None = None) -> Task:
        """The same task for another architecture."""
        about = (self.shape, self.num_classes, self.mean, self.std, self.augment)
        frozen = self._frozen if model is self.model else None
        return Task(model, *about, dtype, self.public, self.tokens, self.pixels, frozen)

    def public_on(self, device: torch.device) -> Tensor:
        """The public set on a device, [N, ...], copied there once; empty where the task has none."""
        if self.public is None:
            return torch.zeros(0, *self.shape, device=device)
        if device not in self._placed:
            with outside_transforms():  # a tensor that is made inside a transform stays wrapped when it is over
                self._placed[device] = self.public.to(device)
        return self._placed[device]

    @property
    def inputs(self) -> Inputs:
        """How an input becomes the arguments of a module from elsewhere."""
        return None if self._reading is None else self._reading.inputs

    def _build(self) -> nn.Module:
        module = self._made()
        return module if self._reading is None else Wrapped(module, self._reading)

    def _made(self) -> nn.Module:
        """The model's module, before it is wrapped."""
        source = self.model.module if isinstance(self.model, Wrap) else self.model
        if isinstance(source, nn.Module):
            return copied(source)
        if isinstance(self.model, Wrap):
            return made(self.model.module, self.shape, self.num_classes)
        if isinstance(self.model, Model) and not isinstance(self.model, type):
            fitting = getattr(self.model, "for_inputs", None)  # a model that brings its weights brings what they expect
            model = fitting(self.mean, self.std) if fitting else self.model
            check_size(model, self.shape, self.num_classes)
            return model.build(self.shape, self.num_classes)
        return made(self.model, self.shape, self.num_classes)

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
        return variables(module)

    def module(self, vars: Tree) -> nn.Module:
        """A fresh module of the model's own layers, not purified, with these variables: in eval mode, on the CPU."""
        with torch.random.fork_rng(devices=[]):
            module = self._build()
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in {**self.constants, **vars["params"], **vars["buffers"]}.items():
                own[name].copy_(value)
        return module.eval()

    def _fixed(self, device: torch.device) -> Tree:
        """What no client changes (see `constants`), in the precision of the passes: kept out of the variables."""
        if device not in self._there:
            with outside_transforms():  # as in `pixels.constant`
                there = tree.to(self.constants, device)
                self._there[device] = there if self.dtype is None else many.cast(there, self.dtype)
        return self._there[device]

    def apply(
        self, vars: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None, change: Changes | None = None
    ) -> Out:
        """The forward pass. In train mode `key` feeds dropout and augmentation; without a key nothing is augmented.

        `change` names modules whose output is replaced by what a function makes of it (see `places`).
        """
        out, kind = self._pass(vars, x, mode, key, change), kind_of(x)
        return out if self.dtype is None else Out(out.logits.to(kind), out.features.to(kind), out.buffers)

    def _pass(self, vars: Tree, x: Tensor, mode: Mode, key: rng.Key | None, change: Changes | None = None) -> Out:
        """`apply`, with logits and features in the precision of the passes."""
        if self.augment is not None and mode == "train" and key is not None:
            x = self.augment.views(x, rng.fold(key, "augment"))
        input = self._input(x)
        used = self._in_dtype({"input": input, **vars}, mode)
        tensors = {**self._fixed(x.device), **used["params"], **used["buffers"]}
        if self.dropout_keys and mode == "train":
            if key is None:
                raise ValueError("this model has dropout: pass a key to Task.apply in mode 'train'")
            tensors |= {name: rng.fold(key, "dropout", i) for i, name in enumerate(self.dropout_keys)}
        tensors |= {name: tensors[name].clone() for name in self._written}
        # functional_call leaves what the layers assigned (new batch statistics) in `tensors`.
        net = self._skeleton(mode)
        pure = PureCalls(key if mode == "train" else None) if self.foreign else contextlib.nullcontext()
        with changing(net, change or {}), normalising(net, mode if isinstance(mode, Normaliser) else None), pure:
            features, logits = functional_call(net, tensors, (used["input"],), tie_weights=self._ties)
        same = self.dtype is not None and mode in ("eval", "still")
        buffers = {k: b if same else tensors[k].to(b.dtype) for k, b in vars["buffers"].items()}
        return Out(logits, features, buffers)

    def _in_dtype(self, given: Tree, mode: Mode) -> Tree:
        """Input and variables in the precision of the passes. Running statistics stay as they are where they follow a
        batch: what it adds to them would be rounded away."""
        if self.dtype is None:
            return given
        still = ("buffers",) if mode in ("train", "adapt") or isinstance(mode, Normaliser) else ()
        used: Tree = many.cast(tree.drop(given, still), self.dtype)
        return {**used, **tree.pick(given, still)}

    def _skeleton(self, mode: Mode) -> nn.Module:
        if isinstance(mode, Normaliser):  # not a copy for each: some carry weights of the samples of one call
            return self._skeletons["adapt"]
        if mode not in self._skeletons:
            if not isinstance(mode, Blend):
                raise ValueError(f"mode={mode!r} must be 'train', 'eval', 'adapt', 'still', a Blend or Normaliser")
            self._skeletons[mode] = copy.deepcopy(self._skeletons["adapt"])
            for layer in self._skeletons[mode].modules():
                if isinstance(layer, PureBatchNorm):
                    layer.prior = mode.prior
        return self._skeletons[mode]

    def loss(self, vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """Cross-entropy on a labelled batch, and the new buffers."""
        out = self._pass(vars, batch["x"], "train", key)
        kind = out.logits.dtype if self.dtype is None else kind_of(batch["x"])
        return cross_entropy(out.logits, batch["y"], kind), out.buffers

    def _input(self, x: Tensor) -> Tensor:
        """`normalise`, in the precision of the passes where a kernel does it."""
        if not pixels.serves(x):
            return self.normalise(x)
        mean, std = (
            pixels.constant(m or (d,) * x.shape[1], 2, x.device) for m, d in ((self.mean, 0.0), (self.std, 1.0))
        )
        return pixels.normalised(x, mean, std, self.dtype or torch.float32)

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels (uint8, or floats in 0..1) as the model's input; token ids as they are."""
        if x.dtype == torch.uint8:
            x = x.to(torch.float32) / 255.0
        if not x.is_floating_point():
            return x.to(torch.int64)
        if self.mean:
            x = (x - pixels.constant(self.mean, x.dim(), x.device)) / pixels.constant(self.std, x.dim(), x.device)
        return x

    def places(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """Modules by name or pattern, for `apply(change=...)`; `stages` names some that every image model has."""
        names = [n for n, _ in self._skeletons["eval"].named_modules() if n]
        for p in patterns:
            if not any(fnmatchcase(n, p) for n in names):
                raise ValueError(f"no module matches '{p}'; this model's feature maps are made by {self.stages}")
        return tuple(n for n in names if any(fnmatchcase(n, p) for p in patterns))

    def select(self, roles: str | Iterable[str]) -> frozenset[str]:
        """Names of parameters and buffers by role (`head`, `norm`, `body`, `all`), by pattern (`conv1.*`) or name."""
        wanted = (roles,) if isinstance(roles, str) else tuple(roles)
        known = frozenset(self.params) | self.norm
        out: frozenset[str] = frozenset()
        for role in wanted:
            named = {"head": self.head, "norm": self.norm, "body": known - self.head, "all": known}.get(role)
            if named is None:
                named = frozenset(n for n in known if fnmatchcase(n, role)) or self.buffers & {role}
                if not named:
                    raise ValueError(
                        f"no parameter matches '{role}'; allowed are head, norm, body, all, or a pattern over "
                        + ", ".join(sorted(known))
                    )
            if not named:
                raise nothing(role)
            out |= named
        return out
