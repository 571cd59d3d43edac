"""Whether a model from elsewhere can be vectorised over clients, and if not, which of its operations stands in the way.

vmap cannot run what looks at the values of a tensor (`if mask.all()`), what draws from torch's global generator, and
what writes a client's own values into a shared tensor. A model is tried once, with two clients of two samples each: a
step of training, and answers.
"""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.func import vmap

from . import rng, tree
from .gradient import grad
from .nn import rehearsal
from .nn.inputs import example
from .task import Task


class CannotVectorise(ValueError):
    """A model that runs one client at a time only: says which operation is the reason, and what to choose."""


def refusal(task: Task, device: torch.device | str = "cpu") -> str | None:
    """Why clients of this task cannot run as one vmap, in a sentence; None where they can."""
    if not task.foreign:
        return None
    key = rng.key(0, device)
    vars, keys = task.init(key), rng.fold(key, torch.arange(2, device=device))
    x = example(task.shape, task.tokens, task.inputs).to(device)
    y = torch.zeros(len(x), dtype=torch.int64, device=device)

    def train(params: Any, x: Any, key: Any) -> Any:
        return grad(lambda p: task.loss({**vars, "params": p}, {"x": x, "y": y}, key)[0])(params)

    def both(t: Any) -> Any:
        return t.expand(2, *t.shape)

    def answer(params: Any, x: Any) -> Any:
        return task.apply({**vars, "params": params}, x).logits

    params, xs = tree.map(both, vars["params"]), both(x)
    # what kernels compute does not matter here, and on a GPU it would take long to compile them for so small a work
    silent = rehearsal.unheard() if torch.device(device).type != "cpu" else nullcontext()
    with silent, warnings.catch_warnings(action="ignore"):  # torch's own, of operations that it maps in a loop
        error = _fails(lambda: vmap(train)(params, xs, keys)) or _fails(lambda: vmap(answer)(params, xs))
        if error is None:
            return None
        alone = _fails(lambda: train(vars["params"], x, keys[0]))
    if alone is not None:
        said = str(alone).strip().partition("\n")[0]
        raise ValueError(
            f"model {task.kind} cannot be differentiated by torch.func.grad: {operation(alone)} fails ({said}); write "
            "that part in plain tensor operations, or compute it once, as a part of the data"
        )
    return f"model {task.kind} cannot be vectorised over clients, because of {operation(error)}"


def _fails(run: Callable[[], Any]) -> Exception | None:
    try:
        run()
    except Exception as e:
        return e
    return None


def operation(error: Exception) -> str:
    """What an error of functorch is about: torch's name of the operation where it says it, and the line of code."""
    said = str(error).strip().partition("\n")[0]
    named = re.search(r"aten::\w+", said)
    inner = re.compile(r"[/\\](torch|acclimate)[/\\]")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not inner.search(f.filename)]
    where = f"`{frames[-1].line}` ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if named and where:
        return f"{named.group()} in {where}"
    return (named.group() if named else where) or said
