"""A client's model as a file that other runtimes read: ONNX, or torch's own export format.

The file is made in memory, read back, run beside the module that it was made from, and written only where both agree.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import store
from ..core import Task
from ..version import __version__
from .build import Fit

ABOUT = "acclimate.json"
"""The name of the metadata in a file of torch's format."""
TYPES = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64}
TOLERANCE = 1e-4
"""How far an answer of the file may be from the module's, for logits up to 1; for larger ones, relative to the
largest."""
SCALED = "not in the model: give numbers less the client's own mean, divided by its own deviation (data.scale=client)"
Answer = Callable[[Tensor], Tensor]


class CannotExport(ValueError):
    """Why a model cannot be written in a format, and what to do."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked."""

    path: Path
    about: dict[str, Any]
    """The metadata in it: `label`, `client`, `round`, `config` (a hash), `classes`, what its input is, ..."""
    checked: tuple[int, ...]
    """The sizes of the batches of random inputs that file and module have answered."""
    difference: float
    """The largest difference between their logits."""


def export(
    fit: Fit,
    client: int,
    path: str | Path,
    to: str = "onnx",
    selection: str = "last",
    batch: int | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
) -> Exported:
    """Write `fit.module(client, selection)` as a file of the format `to`: `onnx` or `torch-export`.

    `batch` is a fixed batch size; None: any. `dtype` is that of the inputs, `float32` in 0..1 or `uint8` pixels: the
    normalisation is in the file. The file is checked with random inputs; one that does not agree is not written.
    """
    if to not in FORMATS:
        raise ValueError(f"to={to!r} must be one of {', '.join(FORMATS)}")
    if dtype not in TYPES:
        raise ValueError(f"dtype={dtype!r} must be one of {', '.join(TYPES)}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch={batch} must be at least 1, or None (dynamic) for any size")
    held, task = fit.world.examples.x.dtype, fit.engine.worker_of(client).task
    dtype = "int64" if task.tokens is not None else dtype  # token ids have no other type
    if (dtype == "int64") != (task.tokens is not None):
        raise ValueError(f"dtype='int64' is for token ids; this data set has {held}: use dtype='float32'")
    if dtype == "uint8" and held != torch.uint8:
        kind = str(held).removeprefix("torch.")
        raise ValueError(f"dtype='uint8' is for images; this data set has {kind}: use dtype='float32'")
    target = Path(path)
    if target.exists() and not overwrite:
        raise store.RunError(f"{target} is there already; pass overwrite, or choose another file")
    make, read = FORMATS[to]
    module, about = fit.module(client, selection), _about(fit, client, selection, dtype, batch)
    sizes = (1, 5) if batch is None else (batch,)
    with _telling(to, batch is None):
        raw = make(module, _inputs(batch or 3, task, dtype), batch is None, about)
        answer = read(raw)
        difference = _compared(module, answer, [_inputs(n, task, dtype) for n in sizes], to)
    store.write(target, raw)
    return Exported(target, about, sizes, difference)


def _about(fit: Fit, client: int, selection: str, dtype: str, batch: int | None) -> dict[str, Any]:
    """What the file says of itself. Nothing in it is a client's data."""
    e, task = fit.experiment, fit.engine.worker_of(client).task
    images = "pixels 0..255" if dtype == "uint8" else "pixels as floats in 0..1"
    given = images if fit.world.examples.x.dtype == torch.uint8 else "inputs as the data set has them"
    own = getattr(e.data.raw(fit.world, client), "scale", None) is not None
    return {
        "acclimate": __version__,
        "label": e.label,
        "client": client,
        "round": fit.selected(selection).round,
        "selection": selection,
        "config": e.identity(),
        "classes": list(fit.world.examples.classes),
        "input": {"shape": ["batch" if batch is None else batch, *task.shape], "dtype": dtype},
        "normalisation": SCALED if own else f"inside the model: give {given}",
        "mean": list(task.mean),
        "std": list(task.std),
        "output": "logits",
    }


def _inputs(count: int, task: Task, dtype: str) -> Tensor:
    """Random inputs, the same every time; drawn beside torch's global generator."""
    x = torch.rand(count, *task.shape, generator=torch.Generator().manual_seed(count))
    if task.tokens is not None:
        ids = (x * task.tokens).to(torch.int64)
        if isinstance(task.inputs, tuple):
            ids[:, 1:] %= 2  # masks and kinds of tokens, which have few values
        return ids
    return (x * 255).round().to(torch.uint8) if dtype == "uint8" else x


@contextlib.contextmanager
def _telling(to: str, dynamic: bool) -> Iterator[None]:
    """Errors of exporters and runtimes as one sentence; what they log and warn of, no user can change."""
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except (CannotExport, ImportError):
        raise
    except Exception as e:  # torch and onnxruntime have dozens of kinds
        first = (str(e).strip() or type(e).__name__).splitlines()[0]
        remedy = "try a fixed batch size, such as 1" if dynamic else "try another format"
        raise CannotExport(f"this model cannot be written as {to}: {first}; {remedy}, or use fit.module") from e
    finally:
        noisy.setLevel(level)


def _program(module: nn.Module, x: Tensor, dynamic: bool) -> Any:
    size = {0: torch.export.Dim("batch", min=1)} if dynamic else {}
    program = torch.export.export(module, (x,), dynamic_shapes=(size,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has the paths of this machine, and the file goes to others
    return program


def _torch_bytes(module: nn.Module, x: Tensor, dynamic: bool, about: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    torch.export.save(_program(module, x, dynamic), out, extra_files={ABOUT: json.dumps(about, indent=1)})
    return out.getvalue()


def _torch_answer(raw: bytes) -> Answer:
    loaded = torch.export.load(io.BytesIO(raw)).module()
    return lambda x: loaded(x)


def _onnx_bytes(module: nn.Module, x: Tensor, dynamic: bool, about: dict[str, Any]) -> bytes:
    _need("onnx", "onnxscript", "onnxruntime")
    program = _program(module, x, dynamic)
    made = torch.onnx.export(program, input_names=["x"], output_names=["logits"], dynamo=True, verbose=False)
    assert made is not None
    for key, value in about.items():
        made.model.metadata_props[key] = value if isinstance(value, str) else json.dumps(value)
    return made.model_proto.SerializeToString()


def _onnx_answer(raw: bytes) -> Answer:
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(raw, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def _need(*packages: str) -> None:
    if missing := [p for p in packages if importlib.util.find_spec(p) is None]:
        raise ImportError(f'ONNX needs {", ".join(missing)}: pip install "acclimate[export]", or use to=torch-export')


def _compared(module: nn.Module, answer: Answer, inputs: list[Tensor], to: str) -> float:
    """The largest difference between the logits of file and module; an error where it is more than rounding."""
    worst = 0.0
    for x in inputs:
        expected, found = module(x), answer(x)
        off = float((found - expected).abs().max())
        if not off <= TOLERANCE * max(1.0, float(expected.abs().max())):  # also where it is not a number
            raise CannotExport(
                f"the {to} file does not agree with the model: for a batch of {len(x)} the logits differ by {off:.2g}; "
                "nothing was written; try another format, or use fit.module"
            )
        worst = max(worst, off)
    return worst


FORMATS = {"onnx": (_onnx_bytes, _onnx_answer), "torch-export": (_torch_bytes, _torch_answer)}
"""By name: how a file is made, and what answers from it."""
