"""What a live model says to a request."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """The answers to the samples of one request, and how they came about."""

    probabilities: Tensor
    """[N, classes]"""
    labels: tuple[str, ...]
    """The likeliest class of every sample, by name."""
    ids: tuple[str, ...]
    """One name per sample, by which a label may come later (`Live.feedback`)."""
    adapted: tuple[bool, ...]
    """Per sample, whether the adapter's answer went out; else the un-adapted model's did."""
    step: int
    """How many steps of adaptation are committed by now."""
    note: str
    """Why nothing was adapted, where nothing was; else empty."""
    guard: dict[str, float]
    """What the guard saw last: `gain`, `flips`, `foreign`, `likely`, `surer`, `nearer`, `moved`, `harmful`; empty
    without one, and while its window fills or the adapter waits for samples to prepare on."""
    estimate: float | None
    """The estimated accuracy of these answers; None where nothing is known of the model, or `guard` is empty."""

    @property
    def classes(self) -> Tensor:
        """The likeliest class of every sample, by number."""
        return self.probabilities.argmax(-1)
