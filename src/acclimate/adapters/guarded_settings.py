"""The settings of a guard around an adapter, and what it hands on to the adapter inside: see guarded.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..core import Adapter, Task, Tree, Wrapping, check
from ..ops.restarts import Rule
from .tent import Tent

KNOWN = ("x", "y", "real", "prior")
"""What a guard keeps of a client's validation examples."""


@dataclass(frozen=True)
class GuardSettings(Wrapping):
    """The base of `Guarded`: its fields, and their checks."""

    adapter: Adapter = Tent()
    policy: Literal["warn", "skip", "restore", "reset", "freeze"] = "reset"
    """What becomes of a state that is judged harmful: it stays, the step is dropped, the last one that was judged good
    comes back, the adapter starts afresh, or it never adapts again."""
    margin: float = 0.04
    """The least estimated gain of accuracy with which adapted answers go out ..."""
    errors: float = 2.5
    """... and so many standard errors of that estimate on top of it."""
    forget: float = 0.97
    """How much an earlier batch counts, per batch since."""
    bonus: float = 0.04
    """What a mean prediction nearer to the client's class frequencies counts for, per nat, at most one."""
    validated: float = 0.85
    """What the adapted model's lead on validation examples counts for, as a share of that lead in accuracy."""
    familiar: float = 0.2
    """The share of un-adapted answers with classes that the model hardly ever gives on validation examples, up to which
    that lead counts whole ..."""
    foreign: float = 0.5
    """... and the share at which it counts for nothing, and beyond which adapted answers do not go out."""
    surer: float = 0.15
    """The most by which un-adapted answers may be more confident than on validation examples: a model that is good
    here and bad on this client's examples has not met this client's stream."""
    likely: float = 0.1
    """How well un-adapted answers must fit the shares that classes have among the answers to validation examples, as a
    share of how well these do themselves (`guarding.home`)."""
    distance: float = 0.5
    """How far tuned parameters may go from the deployed ones, relative to the length of these."""
    every: int | None = None
    """Batches after which the adapter starts afresh."""
    rule: Rule = "none"
    kept: int = 64
    """How many validation examples are answered beside each batch at most. Of images a client keeps half as many: each
    is answered as it is, and dressed as the batch."""

    calibrates: ClassVar[bool] = True
    traces: ClassVar[Mapping[str, str]] = {
        "used": "1 where the adapted answer went out",
        "gain": "estimated gain of accuracy over not adapting",
        "flips": "share of the batch that adapting answers otherwise",
        "foreign": "share of un-adapted answers that are not of this client's classes",
        "likely": "nats by which un-adapted answers are likelier by this client's shares than by equal ones",
        "surer": "how much more confident un-adapted answers are than on validation examples",
        "nearer": "nats by which the mean prediction is nearer to the client's class frequencies",
        "moved": "distance from the deployed weights, relative",
        "harmful": "1 where the state was judged harmful",
        "estimate": "estimated accuracy of the answers",
    }

    def __post_init__(self) -> None:
        check.choices(self)
        for name in ("margin", "errors", "bonus", "validated"):
            check.at_least(self, name, 0.0)
        for name in ("forget", "familiar", "foreign", "surer", "likely"):
            check.within(self, name, 0.0, 1.0)
        for name in ("foreign", "distance"):
            check.positive(self, name)
        if self.familiar >= self.foreign:
            says = f"Guarded: familiar={self.familiar} must be less than foreign={self.foreign}"
            raise check.FieldError(says, "familiar", "foreign")
        check.at_least(self, "kept", 1)
        if self.every is not None:
            check.at_least(self, "every", 1)
        if isinstance(self.adapter, GuardSettings):
            raise check.FieldError("Guarded: adapter=Guarded(...) must be an adapter without a guard", "adapter")

    @property
    def batch_free(self) -> bool:
        return False  # it judges by batches, whatever the adapter inside does

    def refusal(self, task: Task, model: Tree) -> str | None:
        if set(model.get("reference", KNOWN)) != set(KNOWN):
            return "what the guard knows of validation examples is of another version of acclimate; deploy again"
        return super().refusal(task, model)
