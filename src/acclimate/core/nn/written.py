"""Buffers that a module from elsewhere writes into where they lie, as instance norm and spectral norm of torch do.

What a task is given belongs to the server or to another client: such a module gets copies, which are its new buffers.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import rng, tree
from ..tree import Tree
from .inputs import example
from .wrapped import ModelError


def written(task: Any, own: Tree) -> frozenset[str]:
    """The names of what the module of a task writes into when it trains or answers with variables of its `own`; none
    where it does not run."""
    task._written = frozenset()
    x, key = example(task.shape, task.tokens, task.inputs), rng.key(0)
    fixed = tree.map(torch.clone, task.constants)
    given = {**fixed, **own["buffers"]}
    before = {name: t._version for name, t in given.items()}
    task._there = {x.device: fixed}
    try:
        with torch.no_grad():
            for mode in ("train", "eval"):
                task.apply(own, x, mode, key)
    except ModelError:
        raise
    except Exception:  # whoever uses the module meets the same error, and says which operation fails
        return frozenset()
    finally:
        task._there = {}
    return frozenset(name for name, t in given.items() if t._version != before[name])
