"""Following long work: the hooks that a progress display fills. The base class shows nothing."""

from __future__ import annotations

from ..core import State


class Watch:
    """Told about every step of a run; override what you want to see."""

    warns = False
    """Whether `slow` is of use: to know which adapters are slow, each is tried on one batch."""

    def suite(self, runs: int) -> None:
        """Several experiments are about to run."""

    def slow(self, adapter: str, seconds: float) -> None:
        """Before training: this adapter will take minutes to test, about so many seconds."""

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        """Training starts, or goes on after `done` rounds."""

    def round(self, state: State) -> None:
        """A round has ended."""

    def testing(self, label: str, seed: int, steps: int) -> None:
        """Testing starts; `steps` calls of `tested` will follow."""

    def deploying(self, label: str, seed: int, steps: int) -> None:
        """A model goes to the nodes of a fleet, and is tested there; `steps` calls of `tested` will follow."""

    def tested(self) -> None:
        """One adapter has met one stream, or one step of `deploying` is over."""

    def done(self) -> None:
        """One experiment of the suite is finished."""
