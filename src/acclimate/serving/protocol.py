"""The Open Inference Protocol (version 2, REST): requests to samples, answers to tensors, both as JSON.

Inputs may also come as raw bytes behind the JSON (the binary tensor data extension). A request that does not fit is a
`Denied` with the field, its value and what is allowed; its samples never reach a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from ..core import Task
from ..data.raw import Raw
from ..live import Answer
from ..live.inputs import taken
from . import raw_inputs

DATATYPES: dict[str, np.dtype[Any]] = {"UINT8": np.dtype("<u1"), "FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
OUTPUTS = ("probabilities", "labels", "classes", "ids", "adapted")
LONGEST_ID = 200
NOTHING: Mapping[str, str] = MappingProxyType({})


class Denied(ValueError):
    """A request that is not answered: the status of the reply, and a sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text.encode("utf-8", "replace").decode())  # it may quote half a character: no reply holds one
        self.status = status


def document(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body; numbers that are not finite are refused, as JSON has none."""
    try:
        found = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as e:
        raise Denied(400, f"body: not JSON ({str(e)[:100] or type(e).__name__})") from None
    if not isinstance(found, dict):
        raise Denied(400, f"body: a {type(found).__name__} must be a JSON object")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def split(raw: bytes, header: str | None) -> tuple[dict[str, Any], bytes]:
    """A body's JSON, and the raw tensors behind it where a header says how long the JSON is."""
    if header is None:
        return document(raw), b""
    if not header.isascii() or not header.isdecimal() or len(header) > 12 or int(header) > len(raw):
        raise Denied(400, f"Inference-Header-Content-Length: {header[:20]!r} must be a number up to {len(raw)}")
    return document(raw[: int(header)]), raw[int(header) :]


def samples(
    body: Mapping[str, Any],
    rest: bytes,
    task: Task,
    dtype: torch.dtype,
    most: int,
    raw: Raw | None = None,
    unknown: dict[str, str] | None = None,
) -> Tensor:
    """The samples of an inference request, in the form of the federation's data; `unknown` takes up what is to be said
    of words in its rows that no training row had."""
    inputs = body.get("inputs")
    if raw is not None and raw_inputs.given(inputs, raw):
        try:
            return taken(task, raw_inputs.read(body["inputs"], rest, raw, most, unknown), dtype, "inputs")
        except ValueError as e:
            raise Denied(400, str(e)) from None
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Denied(400, f"inputs: {_short(inputs)} must be a list of one tensor: the samples")
    one = inputs[0]
    if not one.get("name") or not _word(one["name"]):
        raise Denied(400, f"inputs[0].name: {_short(one.get('name'))} must be a name, such as 'input'")
    datatype = one.get("datatype")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise Denied(400, f"inputs[0].datatype: {_short(datatype)} must be one of {', '.join(DATATYPES)}")
    shape = _shape(one.get("shape"), task, most)
    values = _binary(one, rest, datatype, shape) if _raw(one) else _listed(one.get("data"), datatype, shape)
    try:
        return taken(task, torch.from_numpy(values.copy()), dtype, "inputs[0].data")
    except ValueError as e:
        raise Denied(400, str(e)) from None


def _shape(shape: Any, task: Task, most: int) -> tuple[int, ...]:
    wanted = f"[N, {', '.join(map(str, task.shape))}] with N from 1 to {most}"
    whole = isinstance(shape, list) and all(isinstance(d, int) and not isinstance(d, bool) for d in shape)
    if not whole or shape[1:] != list(task.shape) or not 1 <= shape[0] <= most:
        raise Denied(400, f"inputs[0].shape: {_short(shape)} must be {wanted}")
    return tuple(shape)


def _raw(one: Mapping[str, Any]) -> bool:
    about = one.get("parameters")
    return isinstance(about, dict) and "binary_data_size" in about


def _binary(one: Mapping[str, Any], rest: bytes, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind, size = DATATYPES[datatype], one["parameters"]["binary_data_size"]
    needed = math.prod(shape) * kind.itemsize
    if size != needed or len(rest) != needed or isinstance(size, bool):
        raise Denied(
            400, f"inputs[0].parameters.binary_data_size: {_short(size)} and {len(rest)} bytes must both be {needed}"
        )
    return np.frombuffer(rest, kind).reshape(shape)


def _listed(data: Any, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(data, list):
        raise Denied(400, f"inputs[0].data: {_short(data)} must be a list of {math.prod(shape)} numbers")
    try:
        found = np.array(data)
    except (ValueError, OverflowError, RecursionError):
        raise Denied(400, "inputs[0].data: uneven lists must be one flat list, or nested as the shape") from None
    if found.dtype.kind not in "iuf":
        raise Denied(400, f"inputs[0].data: {_short(data)} must hold numbers alone")
    if found.shape not in (shape, (math.prod(shape),)):
        raise Denied(400, f"inputs[0].data: {list(found.shape)} numbers must be {list(shape)}, nested or flat")
    if datatype == "UINT8":
        if found.dtype.kind == "f" or found.min() < 0 or found.max() > 255:
            raise Denied(400, "inputs[0].data: of datatype UINT8 must be whole numbers from 0 to 255")
        return found.astype(np.uint8).reshape(shape)
    if datatype == "INT64":
        if found.dtype.kind != "i":
            raise Denied(400, "inputs[0].data: of datatype INT64 must be whole numbers")
        return found.astype(np.int64).reshape(shape)
    with np.errstate(over="ignore"):
        return found.astype(np.float32).reshape(shape)


def identifier(body: Mapping[str, Any]) -> str:
    """A request's id; empty where it has none."""
    found = body.get("id", "")
    if not _word(found):
        raise Denied(400, f"id: {_short(found)} must be a printable string of at most {LONGEST_ID} characters")
    return found


def _word(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_ID and value.isprintable()  # which no half character is


def wanted(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The outputs that a request asks for: all where it names none."""
    asked = body.get("outputs")
    if asked is None or asked == []:
        return OUTPUTS
    names = []
    for one in asked if isinstance(asked, list) else [asked]:
        name = one.get("name") if isinstance(one, dict) else one
        if not isinstance(one, dict) or not isinstance(name, str) or name not in OUTPUTS:
            raise Denied(400, f"outputs: {_short(name)} must be one of {', '.join(OUTPUTS)}")
        if name in names:  # a short request could else ask for an answer that fills memory
            raise Denied(400, f"outputs: {name!r} is there twice; ask once for each")
        names.append(name)
    return tuple(names)


def labels(body: Mapping[str, Any]) -> tuple[list[str], list[int | str]]:
    """The ids and labels of a request that brings labels late."""
    ids, found = body.get("ids"), body.get("labels")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) for i in ids) or len(set(ids)) < len(ids):
        raise Denied(400, f"ids: {_short(ids)} must be a list of different ids of samples")
    if not isinstance(found, list) or not all(isinstance(v, int | str) for v in found):
        raise Denied(400, f"labels: {_short(found)} must be a list of class names or numbers")
    return ids, found


def only(body: Mapping[str, Any], allowed: tuple[str, ...], act: str) -> None:
    """Refuse a field that an administrative act does not have: who means one client by it would change all."""
    if other := next((name for name in body if name not in allowed), None):
        takes = " or ".join(allowed) or "no field"
        raise Denied(
            400, f"{_short(other)}: {act} takes {takes}; one client is named by the path, versions/CLIENT/{act}"
        )


def steps(body: Mapping[str, Any]) -> dict[str, int]:
    """The step that each client goes back to, by its number as text."""
    found = body["steps"]
    whole = isinstance(found, dict) and all(isinstance(v, int) and not isinstance(v, bool) for v in found.values())
    if not whole or not found or "step" in body:
        raise Denied(400, f"steps: {_short(found)} must be an object of clients and steps, and step be left out")
    named = {str(int(c)) if c.isascii() and c.isdecimal() and len(c) < 10 else c: v for c, v in found.items()}
    if len(named) < len(found):
        raise Denied(400, f"steps: {_short(found)} has a client twice; give each one step")
    return named


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def response(
    model: str, client: int, id: str, answer: Answer, names: tuple[str, ...], unknown: Mapping[str, str] = NOTHING
) -> dict[str, Any]:
    """An answer as an inference response; `unknown` says what words of its rows are, by column."""
    count, classes = answer.probabilities.shape
    rows = answer.probabilities.tolist()
    tensors: dict[str, Any] = {
        "probabilities": ("FP32", [count, classes], lambda: [p for row in rows for p in row]),
        "labels": ("BYTES", [count], lambda: list(answer.labels)),
        "classes": ("INT64", [count], lambda: [row.index(max(row)) for row in rows]),
        "ids": ("BYTES", [count], lambda: list(answer.ids)),
        "adapted": ("BOOL", [count], lambda: list(answer.adapted)),
    }
    outputs = []
    for name in names:
        datatype, shape, values = tensors[name]
        outputs.append({"name": name, "datatype": datatype, "shape": shape, "data": values()})
    about = {"adapted": any(answer.adapted), "step": answer.step, "note": answer.note}
    guard = {f"guard.{k}": v for k, v in answer.guard.items() if math.isfinite(v)}
    known: dict[str, Any] = {} if answer.estimate is None else {"estimate": answer.estimate}
    known |= {"unknown": "; ".join(unknown.values())} if unknown else {}
    out = {"model_name": model, "model_version": str(client), "parameters": {**about, **guard, **known}}
    return {**out, **({"id": id} if id else {}), "outputs": outputs}


def metadata(model: str, clients: list[int], task: Task, dtype: torch.dtype, classes: int) -> dict[str, Any]:
    """What a model takes and gives."""
    datatype = "UINT8" if dtype == torch.uint8 else "FP32" if dtype.is_floating_point else "INT64"
    shapes = {"probabilities": ("FP32", [-1, classes]), "labels": ("BYTES", [-1]), "classes": ("INT64", [-1])}
    shapes |= {"ids": ("BYTES", [-1]), "adapted": ("BOOL", [-1])}
    return {
        "name": model,
        "versions": [str(c) for c in clients],
        "platform": "acclimate",
        "inputs": [{"name": "input", "datatype": datatype, "shape": [-1, *task.shape]}],
        "outputs": [{"name": n, "datatype": d, "shape": s} for n, (d, s) in shapes.items()],
    }
