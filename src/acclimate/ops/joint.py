"""A model and other nets as one set of variables, so that they are trained in the same steps.

Their parameters are groups: the model's under a name, the others' beside it. Buffers are the model's.
"""

from __future__ import annotations

from ..core import Tree


def joined(vars: Tree, others: Tree, name: str = "model") -> Tree:
    """The model's variables, with the parameters of the other nets beside its own."""
    return {"params": {name: vars["params"], **others}, "buffers": vars["buffers"]}


def model_of(both: Tree, name: str = "model") -> Tree:
    """The variables of the model alone."""
    return {"params": both["params"][name], "buffers": both["buffers"]}
