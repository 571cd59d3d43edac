"""Live models with other parameters in the place of their own."""

from __future__ import annotations

from ..core import Tree


def with_params(model: Tree, params: Tree) -> Tree:
    """The live model with these parameters; those that are not named stay as they are."""
    vars = model["vars"]
    return {**model, "vars": {**vars, "params": {**vars["params"], **params}}}
