"""How a module from elsewhere is to be read: it is tried once, and its head is looked for.

The head is the linear layer whose outputs are the logits. Everything else builds on it (prototypes, personal heads), so
a module whose logits are not exactly what its head makes of one vector per sample is refused.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .inputs import Inputs, arguments, check_inputs, example, forms, guess, remedy
from .modules import need_embedding
from .wrapped import ModelError, Reading, Wrap, Wrapped, at


class _Trial(NamedTuple):
    """One forward pass: outputs, what linear layers got and gave, and how many ids the embedding of tokens knows."""

    out: Any
    linear: dict[str, tuple[Tensor, Tensor]]
    vocabulary: int | None


def read(
    module: nn.Module, how: Wrap, shape: tuple[int, ...], classes: int, tokens: int | None
) -> tuple[Reading | None, int | None]:
    """How a module is to be read, and how many token ids it knows; no reading where it returns (features, logits)."""
    check_inputs(how.inputs, shape, tokens)
    _need_layers(module)
    _need_float32(module)
    inputs = guess(module, how.inputs, tokens)
    *others, known = forms(inputs)
    x = example(shape, tokens, inputs)
    trial = _try(module, known, x, tokens)
    if how.head is None and inputs is None and _keeps_contract(module, trial.out, classes):
        return None, trial.vocabulary
    head, place = _head(module, how.head, trial, classes)
    logits = at(trial.out, place)
    used = next((o for o in others if _alike(module, (known, o), x, place)), known)
    return _faithful(module, Reading(head, place, used), x, logits), trial.vocabulary


def _need_layers(module: nn.Module) -> None:
    """Refuse scripted parts: nobody can watch their layers, or change them for many clients at once."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            label = getattr(module, "original_name", type(module).__name__)
            what = f"its part '{name}' is" if name else "it is"
            raise ModelError(
                f"model {label}: {what} scripted or traced (torch.jit), which hides its layers; give the module that "
                "it was made of, with the weights from state_dict()"
            )


def _need_float32(module: nn.Module) -> None:
    """Refuse weights of another precision, which have no place beside the server's numbers."""
    for name, p in module.named_parameters():
        if p.requires_grad and p.is_floating_point() and p.dtype != torch.float32:
            raise ModelError(
                f"model {type(module).__name__}: its weights are {p.dtype} ('{name}'), and clients train in "
                "torch.float32; give module.float()"
            )


def _try(module: nn.Module, inputs: Inputs, x: Tensor, tokens: int | None) -> _Trial:
    """Run a module in eval mode, and watch its linear layers and embeddings."""
    linear: dict[str, tuple[Tensor, Tensor]] = {}
    known: list[int] = []
    ids = x[:, 0] if isinstance(inputs, tuple) else x

    def note(name: str, args: Any, out: Any) -> None:
        linear.pop(name, None)  # a layer that is called twice stands where it is called last
        linear[name] = (args[0] if args else out, out)

    def look(name: str, layer: nn.Embedding, asked: Tensor) -> None:
        if (row := int(asked.max())) >= layer.num_embeddings:
            raise ModelError(
                f"model {type(module).__name__}: its embedding '{name}' has {layer.num_embeddings} rows, and the data "
                f"asks for row {row}; build the model with at least {row + 1}, use a tokenizer with fewer tokens, or "
                "shorter sequences"
            )
        if torch.equal(asked, ids):
            known.append(layer.num_embeddings)

    layers = list(module.named_modules())
    hooks = [
        m.register_forward_hook(lambda _, args, out, n=n: note(n, args, out))
        for n, m in layers
        if isinstance(m, nn.Linear)
    ]
    hooks += [
        m.register_forward_pre_hook(lambda m, args, n=n: look(n, m, args[0]))
        for n, m in layers
        if isinstance(m, nn.Embedding) and type(m).forward is nn.Embedding.forward  # BART's positions take no ids
    ]
    args, named = arguments(inputs, x, next((p.dtype for p in module.parameters()), x.dtype))
    training = module.training
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # torch's own, of its fast paths
            out = module.eval()(*args, **named)
    except ModelError:
        raise
    except Exception as e:
        raise ModelError(_failed(module, inputs, x, e)) from e
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return _Trial(out, linear, known[0] if known else tokens)


def _failed(module: nn.Module, inputs: Inputs, x: Tensor, error: Exception) -> str:
    label, said = type(module).__name__, str(error).strip().partition("\n")[0]
    if not x.is_floating_point():
        need_embedding(module, label, f" ({said})")
    elif "scalar types: Long" in said:
        said += "; if x holds token ids, give whole numbers, as ac.data.of(x, y, tokens=True) does"
    if x.dim() > 2 and "shapes cannot be multiplied" in said:
        said += "; images and windows need nn.Flatten() before a linear layer"
    sizes = ("must match", "doesn't match", "shapes cannot", "channels", "out of range", "can't be greater")
    told = remedy(module, inputs, not x.is_floating_point())
    if any(word in said for word in sizes):
        told = f"build it for inputs of shape {tuple(x.shape[1:])}, or give it data as it takes them"
    return (
        f"model {label} cannot be called on a batch of inputs {tuple(x.shape)} of {x.dtype}: {type(error).__name__}: "
        f"{said}; {told}"
    )


def _keeps_contract(module: nn.Module, out: Any, classes: int) -> bool:
    """Whether it returns (features, logits) and has the head that belongs to them."""
    head = dict(module.named_modules()).get(getattr(module, "head_name", "head"))
    if not (isinstance(head, nn.Linear) and type(out) in (tuple, list) and len(out) == 2):
        return False
    wanted = [(2, head.in_features), (2, classes)]
    return [tuple(t.shape) if isinstance(t, Tensor) else None for t in out] == wanted


def _head(module: nn.Module, given: str | None, trial: _Trial, classes: int) -> tuple[str, int | None]:
    """The name of the head, and the place of the logits in the outputs."""
    label, places = type(module).__name__, _places(trial.out)
    if given is not None and given not in trial.linear:
        raise ModelError(
            f"wrap: head='{given}' must be a linear layer of model {label} that it calls; it calls "
            f"{', '.join(map(repr, trial.linear)) or 'none'}"
        )
    if not trial.linear:
        raise ModelError(
            f"model {label} calls no linear layer (nn.Linear), which must give its logits: what enters it are the "
            "features; add one as the last layer"
        )
    straight = [
        (n, p) for n, (_, y) in trial.linear.items() for p, t in places.items() if y is t and given in (None, n)
    ]
    fitting = [(n, p) for n, p in straight if at(trial.out, p).shape == (2, classes)]
    if len(fitting) == 1:
        return fitting[0]
    wide = [p for p, t in places.items() if t.shape == (2, classes)]
    if not wide and straight:
        raise ModelError(_unfit(label, straight[-1][0], trial.linear[straight[-1][0]][1], classes))
    if not wide:
        gives = ", ".join(str(tuple(t.shape)) for t in places.values()) or _without(trial.out, classes)
        raise ModelError(
            f"model {label} must return logits [batch, {classes}], one for each class of the data, as a tensor, in a "
            f"tuple or as .logits; for a batch of 2 it returns {gives}"
        )
    names = [given] if given else [n for n, (_, y) in trial.linear.items() if y.shape[-1] == classes]
    if not names:
        raise ModelError(
            f"model {label}: no linear layer gives its logits [batch, {classes}]; the last layer must be an nn.Linear, "
            "whose inputs are the features"
        )
    if len(names) > 1 or len(wide) > 1:
        raise ModelError(
            f"model {label} returns logits at {len(wide)} place(s), and {len(names)} linear layers may be its head: "
            f"{', '.join(map(repr, names))}; say which by ac.wrap(module, head='{names[-1]}')"
        )
    return names[0], wide[0]


def _unfit(label: str, name: str, logits: Tensor, classes: int) -> str:
    """Why a head whose outputs are the module's is none for these classes."""
    if logits.dim() > 2:
        return (
            f"model {label}: its head '{name}' gives {tuple(logits.shape)} for a batch of 2, an answer at every place, "
            f"and must give [batch, {classes}], one for each sample; take the kind of model that classifies whole "
            "samples (in transformers ...ForSequenceClassification), or the mean over places before the head"
        )
    return (
        f"model {label}: its head '{name}' has {logits.shape[-1]} outputs but the data has {classes} classes; build it "
        f"with {classes} (num_classes, or num_labels in transformers)"
    )


def _without(out: Any, classes: int) -> str:
    """What an output without logits is."""
    given = {n: tuple(t.shape) for n, t in out.items() if isinstance(t, Tensor)} if isinstance(out, Mapping) else {}
    fitting = [n for n, shape in given.items() if shape == (2, classes)]
    remedy = f"call {fitting[0]!r} 'logits'" if fitting else "add a linear layer for the classes behind them"
    names = f", but {', '.join(map(repr, out))}: {remedy}" if given else ""
    return f"a {type(out).__name__} without them{names}"


def _places(out: Any) -> dict[int | None, Tensor]:
    """The tensors in a module's outputs that may be logits, by their position where it returns a tuple."""
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        if isinstance(found := at(out, None), Tensor):
            return {None: found}
    return {i: t for i, t in enumerate(out) if isinstance(t, Tensor)} if isinstance(out, tuple | list) else {}


def _alike(module: nn.Module, ways: tuple[Inputs, Inputs], x: Tensor, place: int | None) -> bool:
    """Whether a module answers alike where it is called in two ways: in double precision, so that a small difference
    is one (a mask that forgets which tokens come later moves the logits of a fresh model by little)."""
    exact = copy.deepcopy(module).double()
    try:
        one, other = (at(_try(exact, way, x, None).out, place) for way in ways)
    except ModelError:
        return False
    return torch.allclose(one, other, rtol=1e-9, atol=1e-12)


def _faithful(module: nn.Module, reading: Reading, x: Tensor, logits: Tensor) -> Reading:
    """A reading by which the head gives the module's logits, of one vector per sample."""
    head: Any = module.get_submodule(reading.head)
    kind, training = type(head), module.training
    for way in (reading, reading._replace(through=True)):
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                features, found = Wrapped(module, way).eval()(x)
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        finally:
            head.__class__ = kind
            module.train(training)
        right = tuple(features.shape) == (len(x), head.in_features) and found.shape == logits.shape
        alike = right and all(torch.allclose(t, logits, atol=1e-5) for t in (found, head(features)))
        if alike and _lasting(module, way, x):
            return way
    if not torch.allclose(at(_try(module, reading.inputs, x, None).out, reading.place), logits, equal_nan=True):
        raise ModelError(
            f"model {type(module).__name__} answers the same inputs with other logits when it is called again in eval "
            "mode; let it draw random numbers and change its buffers only while it trains (self.training)"
        )
    raise ModelError(
        f"model {type(module).__name__}: its logits are not what '{reading.head}' makes of one vector of "
        f"{head.in_features} features per sample; let it return the outputs of its last linear layer as they are, "
        "without a softmax, or name another layer by ac.wrap(module, head=...)"
    )


def _lasting(module: nn.Module, way: Reading, x: Tensor) -> bool:
    """Whether a reading also holds with other weights and statistics: what follows the head may do nothing at first, as
    a factor of 1 does, or batch norm."""
    other, g = copy.deepcopy(module).double().eval(), torch.Generator().manual_seed(0)
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        for held in (*other.parameters(), *other.buffers()):
            if held.is_floating_point():
                held += 0.1 * torch.rand(held.shape, generator=g, dtype=held.dtype)
        try:
            args, named = arguments(way.inputs, x, torch.float64)
            logits = at(other(*args, **named), way.place)
            features, _ = Wrapped(other, way)(x)
        except Exception:  # it takes no other numbers, such as those of another type
            return True
    head: Any = other.get_submodule(way.head)
    return torch.allclose(F.linear(features, head.weight, head.bias), logits, equal_nan=True)
