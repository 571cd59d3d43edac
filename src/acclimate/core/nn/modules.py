"""What a task asks of a model's module: its head, its outputs, the places of its feature maps, a copy per mode."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..tree import Tree
from .calls import PureCalls
from .inputs import example
from .layers import Normaliser, PureBatchNorm, is_norm

Changes: TypeAlias = Mapping[str, Callable[[Tensor], Tensor | None]]
"""Functions of the outputs of named modules."""


def head_width(module: nn.Module, model: Any, num_classes: int) -> int:
    """The number of features that enter the head; an error where the head is not what a task needs."""
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


def need_embedding(module: nn.Module, label: str, because: str = "") -> None:
    """Refuse a module that cannot take token ids."""
    if not any(isinstance(m, nn.Embedding) for m in module.modules()):
        raise ValueError(
            f"model {label} has no embedding, and x holds whole numbers, which are token ids{because}; for features "
            "give x.float(), for pixels uint8, or use a model with an nn.Embedding"
        )


def check_outputs(
    module: nn.Module, model: Any, shape: tuple[int, ...], dim: int, num_classes: int, tokens: int | None = None
) -> tuple[str, ...]:
    """One forward pass in eval mode: the module must return (features, logits) of the promised widths.

    Returns the names of the modules that make the feature maps: for each size of map, the last and outermost one.
    """
    label, training = type(model).__name__, module.training
    if tokens is not None and not hasattr(module, "reading"):
        need_embedding(module, label)
    maps: list[tuple[tuple[int, ...], str]] = []

    def note(name: str, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim() == 4:
            maps.append((tuple(out.shape[2:]), name))

    watch: Changes = {name: functools.partial(note, name) for name, _ in module.named_modules() if name}
    with torch.no_grad(), changing(module, watch):
        out = module.eval()(torch.zeros(2, *shape) if tokens is None else _example(module, shape, tokens))
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


def copied(module: nn.Module) -> nn.Module:
    """A copy of a user's module, made steady."""
    try:
        own = copy.deepcopy(module)
    except Exception as e:  # whatever a module holds
        raise ValueError(
            f"model {type(module).__name__} cannot be copied ({str(e).strip().partition('. ')[0]}); let it keep no "
            "tensors of a forward pass and no open files, take torch.nn.utils.parametrizations.weight_norm in place of "
            "torch.nn.utils.weight_norm, or give a function (shape, num_classes) that makes it"
        ) from e
    return steady(own)


def _need_sizes(module: nn.Module) -> None:
    """Refuse a module with lazy layers that have met no input."""
    for name, held in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(held):
            raise ValueError(
                f"model {type(module).__name__}: '{name}' of a lazy layer has no size yet; call the module on a batch "
                "of inputs before you give it, or use a layer that is told its size"
            )


def steady(module: nn.Module) -> nn.Module:
    """The module, changed so that it computes the same in eval mode as in training. torch's transformer encoder gives
    zeros in the place of padding in eval mode alone. A lone linear layer becomes the last of a sequence of one."""
    _need_sizes(module)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.enable_nested_tensor = part.use_nested_tensor = False
    return _sequence(module) if isinstance(module, nn.Linear) else module


def _sequence(layer: nn.Module) -> nn.Module:
    """A sequence of one layer. Its class has the layer's name, so that errors name what the user gave."""
    given = type(layer)
    made: nn.Module = type(given.__name__, (nn.Sequential,), {"__module__": given.__module__})(layer)
    return made


def made(make: Any, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The module that a function of shape and classes returns; a sentence where it is no such function."""
    label = getattr(make, "__name__", repr(make)[:40])
    wanted = (
        "a module, a model record, or a function of an input's shape and the number of classes that returns a module"
    )
    hint = f"; of a class give an object, {label}(...)" if isinstance(make, type) else ""
    try:
        inspect.signature(make).bind(shape, classes)
        module = make(shape, classes) if not hasattr(make, "build") else None
    except (TypeError, ValueError) as e:
        raise ValueError(f"model={label}: must be {wanted} ({e}){hint}") from e
    if not isinstance(module, nn.Module):
        raise ValueError(f"model={label}: must be {wanted}{hint or f'; it returned a {type(module).__name__}'}")
    return steady(module)


def answers(module: nn.Module, shape: tuple[int, ...], tokens: int | None) -> Tensor:
    """Logits of two inputs in eval mode."""
    training = module.training
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        logits: Tensor = module.eval()(_example(module, shape, tokens))[1]
    module.train(training)
    return logits


def check_purified(before: Tensor, module: nn.Module, shape: tuple[int, ...], tokens: int | None) -> None:
    """Refuse a module that answers differently with pure layers and calls: one of its own did more than torch's."""
    with PureCalls(None):
        after = answers(module, shape, tokens)
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-4, equal_nan=True):
        label = type(getattr(module, "inner", module)).__name__
        own = any(isinstance(m, _BatchNorm) for m in module.modules())
        raise ValueError(
            f"model {label} answers differently with the pure layers of acclimate"
            f"{', perhaps because of its batch norm' if own else ''}; use torch's own layers, such as nn.BatchNorm2d"
        )


def _example(module: nn.Module, shape: tuple[int, ...], tokens: int | None) -> Tensor:
    reading = getattr(module, "reading", None)
    return example(shape, tokens, reading and reading.inputs)


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
def changing(module: nn.Module, change: Changes) -> Iterator[None]:
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


@contextlib.contextmanager
def normalising(module: nn.Module, way: Normaliser | None) -> Iterator[None]:
    """Batch norm layers that normalise in this way; None leaves them as they are."""
    layers = [layer for layer in module.modules() if isinstance(layer, PureBatchNorm)] if way is not None else []
    for layer in layers:
        layer.normaliser = way
    try:
        yield
    finally:
        for layer in layers:
            layer.normaliser = None


def trained(module: nn.Module, head: str | None = None, label: str = "") -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name: all but those with requires_grad=False, to which the head may not
    belong."""
    found = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if head is not None and "weight" not in module.get_submodule(head)._parameters:
        raise ValueError(
            f"model {label}: its head '{head}' makes its weight of other parameters, as weight_norm does, and methods "
            "and adapters take the head's weight as it is; leave that out of this layer, or add a plain nn.Linear"
        )
    if head is not None and f"{head}.weight" not in found:
        raise ValueError(
            f"model {label}: its head '{head}' has requires_grad=False, and the head is what clients train at least; "
            f"call module.{head}.requires_grad_(True)"
        )
    return found


def variables(module: nn.Module) -> Tree:
    """Copies of what a purified module's clients may change: `{"params": ..., "buffers": ...}`."""
    params = {n: p.detach().clone() for n, p in trained(module).items()}
    return {"params": params, "buffers": {n: b.clone() for n, b in module.named_buffers() if b.is_floating_point()}}


def norm_names(module: nn.Module) -> frozenset[str]:
    """Trained parameters and statistics of layers that normalise."""
    return frozenset(
        f"{layer}.{name}" if layer else name
        for layer, m in module.named_modules()
        if is_norm(m)
        for name, held in (*m.named_parameters(recurse=False), *m.named_buffers(recurse=False))
        if held.requires_grad or not isinstance(held, nn.Parameter)
    )


def constants(
    module: nn.Module, keys: Collection[str], given: Mapping[str, Tensor] | None = None, label: str = ""
) -> dict[str, Tensor]:
    """What clients neither train nor send: frozen parameters, and buffers that are no numbers to average, such as index
    tables. `keys` are the buffers into which a key for dropout is put; `given` takes the place of them all."""
    frozen = {n: p.detach() for n, p in module.named_parameters() if not p.requires_grad}
    tables = {n: b for n, b in module.named_buffers() if not b.is_floating_point() and n not in keys}
    own = {**frozen, **tables}
    if given is None:
        return own
    shapes, there = ({n: tuple(t.shape) for n, t in tensors.items()} for tensors in (given, own))
    if other := [n for n in {**shapes, **there} if shapes.get(n) != there.get(n)]:
        raise ValueError(
            f"model {label}: {other[0]} is {_said(shapes, other[0])} among the frozen parameters that were kept, and "
            f"{_said(there, other[0])} among those of this model; give the model that was trained"
        )
    return dict(given)


def apart(module: nn.Module) -> dict[str, Tensor]:
    """What layers keep out of their variables and say so (`kept_apart`): a trunk that all clients share."""
    layers = ((name, getattr(m, "kept_apart", None)) for name, m in module.named_modules())
    return {f"{name}.{n}" if name else n: t for name, kept in layers if kept for n, t in kept().items()}


def _said(shapes: Mapping[str, tuple[int, ...]], name: str) -> str:
    return f"of shape {shapes[name]}" if name in shapes else "not there"


def _weightless(module: nn.Module) -> nn.Module:
    """The module, its tensors without memory. One that several layers hold (tied weights) stays one: `Module.to` makes
    one for each layer, and a call that gives values to the first would leave the others without."""
    names: dict[int, list[str]] = {}
    for name, held in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(held), []).append(name)
    module.to("meta")
    for first, *others in names.values():
        one = _owner(module, first)
        for other in others:
            setattr(*_owner(module, other), getattr(*one))
    return module


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that holds a tensor, and the tensor's name in it."""
    layer, _, part = name.rpartition(".")
    return module.get_submodule(layer), part


def skeletons(base: nn.Module) -> dict[Any, nn.Module]:
    """One weightless copy per mode, so that a forward pass never flips a training flag."""
    base = _weightless(base)
    train, evaluate, adapt = base.train(), copy.deepcopy(base).eval(), copy.deepcopy(base).eval()
    for layer in adapt.modules():
        if isinstance(layer, PureBatchNorm):
            layer.train()
    still = copy.deepcopy(adapt)
    for layer in still.modules():
        if isinstance(layer, PureBatchNorm):
            layer.follows = False
    return {"train": train, "eval": evaluate, "adapt": adapt, "still": still}


def ties(module: nn.Module) -> bool:
    """Whether several layers hold one tensor; where none does, a call need not look for them each time."""
    every, each = (
        [*module.named_parameters(remove_duplicate=same), *module.named_buffers(remove_duplicate=same)]
        for same in (False, True)
    )
    return len(every) > len(each)


def nothing(role: str) -> ValueError:
    """What to say of a role that no layer of a model has."""
    without = "or name methods that do without: method=fedavg"
    if role == "body":
        return ValueError(
            "'body' selects nothing, because this model is a head alone, and the body, which LG-FedAvg keeps, is all "
            f"before it; take a model with a layer before the last, such as model=mlp, {without}"
        )
    return ValueError(
        f"'{role}' selects nothing, because this model has no such layers; for norm, which FedBN keeps and Tent tunes, "
        f"set model.norm=batch or group, {without}"
    )
