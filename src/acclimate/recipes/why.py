"""What is known of why ours differ from published accuracies: the causes that `causes.py` looks through, in order.

`evidence` names the results that support a cause, below `results/`. A cause without any is not known, and is not here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why some numbers of a table differ."""

    table: str
    why: str
    evidence: str = ""
    """Files below `results/`, or what it was computed from; empty: unknown."""
    file: str = ""
    """Of which of our files the numbers are; empty: of any."""
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Fields of the published numbers, and the values that are meant; empty: all of the table."""


CAUSES: tuple[Cause, ...] = ()
