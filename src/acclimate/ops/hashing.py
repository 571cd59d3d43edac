"""Hashes: of Python objects, so that those which compute differently differ, and of the contents of tensors.

`fingerprint` looks into code, defaults, closures, settings and weights. `content_hash` reads tensors byte by byte. Both
stand in files and folder names, so their values must not change.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SCALARS = (type(None), bool, int, float, complex, str, bytes, types.EllipsisType)
"""What its `repr` says all about."""


def fingerprint(value: Any) -> str:
    """A hash of a function, class, module or other object. Where something in it cannot be looked into, that object
    counts by its place in memory: then only the same one is the same."""
    return hashlib.sha256(_content(value, ())).hexdigest()


def content_hash(*parts: object) -> str:
    """A hash over tensors (shape, type and bytes) and over the `repr` of everything else."""
    h = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            h.update(f"{tuple(part.shape)}{part.dtype}".encode())
            h.update(part.contiguous().cpu().numpy().data)
        else:
            h.update(repr(part).encode())
    return h.hexdigest()[:32]


def _content(value: Any, inside: tuple[int, ...]) -> bytes:
    """The bytes that `fingerprint` hashes. `inside` are the objects around this one, so that a loop ends."""
    inside = (*inside, id(value))
    if isinstance(value, nn.Module):
        return _module(value, inside)
    if isinstance(value, functools.partial):
        return _text((value.func, value.args, value.keywords), inside).encode()
    if isinstance(value, types.MethodType):
        return _text((value.__self__, value.__func__), inside).encode()
    if isinstance(value, types.FunctionType):
        return _function(value, inside)
    if isinstance(value, type):
        return repr(vars(value)).encode()
    if isinstance(value, types.BuiltinFunctionType | types.ModuleType):
        return b""  # these are what their name says
    if not hasattr(value, "__dict__"):
        return f"at {id(value)}".encode()
    return (repr(vars(value)) if _plain(vars(value)) else _text(vars(value), inside)).encode()


def _function(f: types.FunctionType, inside: tuple[int, ...]) -> bytes:
    code, defaults = f.__code__, f.__defaults__
    # code has a place in memory, and the order of a set is another in every process
    consts = tuple(_text(c, inside) if isinstance(c, types.CodeType | frozenset) else c for c in code.co_consts)
    given = defaults if _plain(defaults) else _text(defaults, inside)
    bound = (f.__kwdefaults__, [_cell(c) for c in f.__closure__ or ()], vars(f))
    more = _text(bound, inside) if any(bound) else ""  # most have none of these
    return code.co_code + repr((consts, code.co_names, given)).encode() + more.encode()


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def _module(module: nn.Module, inside: tuple[int, ...]) -> bytes:
    """Architecture, weights, and what else its layers keep: not every layer's `repr` says how it computes."""
    weights = {**dict(module.named_buffers()), **module.state_dict()}
    own = {
        name: {k: v for k, v in vars(layer).items() if k != "training" and not k.startswith("_")}
        for name, layer in module.named_modules()
    }
    return _text((repr(module), weights, own), inside).encode()


def _plain(value: Any) -> bool:
    """Whether `repr` says all about a value."""
    if type(value) in (tuple, list):
        return all(_plain(v) for v in value)
    if type(value) is dict:
        return all(_plain(v) for pair in value.items() for v in pair)
    return isinstance(value, SCALARS)


def _text(value: Any, inside: tuple[int, ...]) -> str:
    """All that a value is, as text."""
    if isinstance(value, SCALARS):
        return repr(value)
    if id(value) in inside:
        return f"again {inside.index(id(value))}"
    within = (*inside, id(value))
    if isinstance(value, tuple | list):
        return f"{_name(type(value))}[{', '.join(_text(v, within) for v in value)}]"
    if isinstance(value, dict | types.MappingProxyType):
        pairs = ", ".join(f"{_text(k, within)}: {_text(v, within)}" for k, v in value.items())
        return f"{_name(type(value))}{{{pairs}}}"
    if isinstance(value, set | frozenset):
        return f"{_name(type(value))}{{{', '.join(sorted(_text(v, within) for v in value))}}}"
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _numbers(value, within)
    if isinstance(value, types.CodeType):
        consts = _text(value.co_consts, within)
        return f"code {value.co_code.hex()} {consts} {value.co_names}"
    if isinstance(value, type):
        return _name(value)
    kind = value if hasattr(value, "__qualname__") else type(value)
    called = getattr(value, "__name__", "")
    return f"{_name(kind)} {called} {hashlib.sha256(_content(value, inside)).hexdigest()}"


def _numbers(value: Any, inside: tuple[int, ...]) -> str:
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif value.dtype.hasobject:
        return _text(value.tolist(), inside)
    else:
        raw = value.tobytes()
    return f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(raw).hexdigest()}"


def _name(kind: Any) -> str:
    """`module.name` of what can be imported by it; with its place in memory where several may have that name."""
    where, path = getattr(kind, "__module__", None), kind.__qualname__
    found: Any = sys.modules.get(str(where))
    for part in path.split("."):
        found = getattr(found, part, None)
    unique = found is kind or not isinstance(kind, type)  # a function's code is hashed too
    return f"{where}.{path}" + ("" if unique else f" at {id(kind)}")
