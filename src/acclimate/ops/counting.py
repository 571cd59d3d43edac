"""How much a client counts in a mean over clients."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ..core import Mean


def mean_by(weights: Literal["samples", "uniform"]) -> Mean:
    """The mean in which clients count by their number of examples, the message's group `n`, or each as one."""
    return Mean("n" if weights == "samples" else None)


def own_share(shares: Tensor, client: Tensor) -> Tensor:
    """A client's own entry of a table that has one for each; plain indexing would ask the host."""
    return shares.index_select(0, client.reshape(1))[0]
