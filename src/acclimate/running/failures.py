"""Runs of a sweep that failed, most often because their training diverged: noted in their folders, so that the others
go on, and so that nobody trains towards the same values again unasked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import store
from ..core import NonFinite
from ..core.nn.pixels import ClippedFloats
from ..eval import Table
from ..ops.layout import counted

SCHEMA = "acclimate.failed/1"


class RunsFailed(ArithmeticError):
    """Runs of a sweep failed, and the others are through: `failed` has reasons by name, `table` the others' rows."""

    def __init__(self, path: Path, failed: dict[str, str], table: Table) -> None:
        self.path, self.failed, self.table = path, failed, table
        each = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
        super().__init__(
            f"{counted(len(failed), 'run')} failed:{each}\nto train them once more: acclimate resume {path} --again"
        )


def tolerant(call: Callable[..., Table], *args: Any) -> tuple[Table, RunsFailed | None]:
    """What `run_all` or `resume` give; where some runs of a sweep failed, the table of the others, and the error."""
    try:
        return call(*args), None
    except RunsFailed as e:
        return e.table, e


def reason_of(folder: Path) -> str | None:
    """Why the run in a folder has failed; None where it has not, as far as is known."""
    path = store.RunFolder(folder).failed
    if not path.exists():
        return None
    body = store.read_json(path)
    if body.get("schema") != SCHEMA or not isinstance(body.get("reason"), str):
        raise store.RunError(f"{path} is damaged; remove it, and the run is trained once more")
    return str(body["reason"])


@contextlib.contextmanager
def noted(folder: Path, failed: dict[str, str]) -> Iterator[None]:
    """Within, a run: where its numbers break down, that is put into `failed`, and goes no further.

    Training is deterministic: values that are not finite would be so again, and a file says it. Other errors of this
    kind, such as too few shares for a secret sum, may not come again, and `resume` tries such a run once more.
    """
    try:
        yield
    except ArithmeticError as e:
        failed[folder.name] = str(e)
        if isinstance(e, NonFinite):
            body = store.json_text({"schema": SCHEMA, "reason": str(e)}, indent=1)
            store.write(store.RunFolder(folder).failed, body + "\n")


@contextlib.contextmanager
def of_earlier(path: Path) -> Iterator[None]:
    """Say of a stored run that is refused today that it cannot go on, and what to do."""
    try:
        yield
    except ClippedFloats as e:
        raise store.RunError(
            f"{path} was run by an earlier version, which clipped its images without a word, and cannot be loaded or "
            f"go on; its results stay, for `acclimate report`. Run it again with other settings: {e}"
        ) from e
