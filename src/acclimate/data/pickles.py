"""Pickles of data sets, read without trusting them.

CIFAR's python layout and ImageNet32's older one are pickles, and unpickling runs whatever a file asks for. These files
need nothing but containers, bytes and numeric arrays. So a pickle may look up a handful of names only, and each stands
for an object of this module that makes numbers: neither numpy's nor any other code ever sees the file's demands.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..ops import opening

LARGEST = 4 << 30


class Maker:
    """A function that a pickle can call, but not change (pickles may set the attributes of what they look up)."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *args: Any) -> Any:
        return self._make(*args)

    def __setstate__(self, _state: Any) -> None:
        raise pickle.UnpicklingError("it tries to change a function")


class _Kind:
    """Stands for a dtype while reading; numeric ones only."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, *_flags: Any) -> None:
        self.dtype = np.dtype(_text(name))
        if self.dtype.kind not in "iufb":
            raise pickle.UnpicklingError(f"arrays of type {self.dtype} are not allowed")

    def __setstate__(self, state: Any) -> None:
        order = _text(state[1])
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder("<" if order == "<" else ">")


class _Array:
    """Stands for an array while reading."""

    __slots__ = ("value",)

    def __init__(self, *_ignored: Any) -> None:
        self.value = np.zeros(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, kind, fortran, raw = state
        if not isinstance(kind, _Kind):
            raise pickle.UnpicklingError("an array without a type")
        flat = np.frombuffer(_bytes(raw), kind.dtype)
        self.value = flat.reshape(tuple(shape), order="F" if fortran else "C")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value.encode("latin1") if isinstance(value, str) else bytes(value)


def _scalar(kind: _Kind, raw: Any) -> Any:
    return np.frombuffer(_bytes(raw), kind.dtype)[0].item()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if _text(encoding) != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _no_call(*_args: Any) -> Any:
    raise pickle.UnpicklingError("it makes an array in an unusual way")


_ALLOWED: dict[tuple[str, str], Maker] = {
    ("numpy", "ndarray"): Maker(_no_call),  # only ever handed to _reconstruct, which ignores it
    ("numpy", "dtype"): Maker(_Kind),
    ("_codecs", "encode"): Maker(_encode),  # how Python 3 writes bytes for Python 2
    **{(f"numpy.{core}.multiarray", "_reconstruct"): Maker(_Array) for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): Maker(_scalar) for core in ("core", "_core")},
}


def _check_memo(raw: bytes) -> None:
    """Refuse numbers of memos beyond the file's length: a reader makes a list as long as the largest."""
    for opcode, arg, at in pickletools.genops(raw):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and arg is not None and int(arg) > len(raw):
            raise pickle.UnpicklingError(f"memo {arg} at byte {at} is beyond the file")


class _Restricted(pickle.Unpickler):
    def __init__(self, raw: bytes, allowed: Mapping[tuple[str, str], Maker]) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self._allowed = allowed

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed") from None


def restricted(raw: bytes, allowed: Mapping[tuple[str, str], Maker]) -> Any:
    """What a pickle holds, of which only these names, by module, are looked up."""
    _check_memo(raw)
    return _Restricted(raw, allowed).load()


def unpickle(path: Path) -> dict[str, Any]:
    """A pickled dict of arrays, lists, numbers and strings. Anything else in the file is refused, never run."""
    try:
        data = restricted(opening.content(path, limit=LARGEST), _ALLOWED)
    except (OSError, opening.FileProblem):
        raise
    except (MemoryError, RecursionError, Exception) as e:  # damaged pickles raise almost anything
        raise ValueError(f"{path}: refused or damaged pickle: {e}; use the original file of the data set") from e
    if not isinstance(data, dict):
        raise ValueError(
            f"{path}: holds a {type(data).__name__}, expected a dict; use the original file of the data set"
        )
    return {_text(k): v.value if isinstance(v, _Array) else v for k, v in data.items()}
