"""Variables split into a shared part, which is sent, and a private part, which stays with the client."""

from __future__ import annotations

from ..core import Tree
from ..core.tree import drop, pick


def shared(vars: Tree, names: frozenset[str]) -> Tree:
    """The variables without the named ones: what is sent."""
    return {kind: drop(vars[kind], names) for kind in ("params", "buffers")}


def private(vars: Tree, names: frozenset[str]) -> Tree:
    """The named variables: what stays."""
    return {kind: pick(vars[kind], names) for kind in ("params", "buffers")}


def merge(a: Tree, b: Tree) -> Tree:
    """Both parts as one set of variables."""
    return {kind: {**a[kind], **b[kind]} for kind in ("params", "buffers")}
