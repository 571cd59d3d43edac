"""Which of several ways to one result is taken: the fastest, measured once for every kind of input, and remembered.

Ways round differently, so a run that is to repeat to the bit elsewhere takes its choices along: `choices()` are plain
JSON, and `use_choices` puts them back. While a graph is recorded nothing is measured: what is not known by then goes
the usual way, and stays with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import rehearsal
from .timing import milliseconds

Choice: TypeAlias = dict[str, Any]
"""`{"way": its name, "times": {every way's name: its milliseconds}}`."""
NEAR = 1.03
"""Of ways that are nearly as fast as the fastest the first is taken, so that noise seldom decides."""

_chosen: dict[str, Choice] = {}


def choices() -> dict[str, Choice]:
    """What has been chosen."""
    return {key: dict(choice) for key, choice in _chosen.items()}


def use_choices(given: Mapping[str, Any]) -> dict[str, Any]:
    """Use these choices instead of measuring. Those that are of another kind come back."""
    own = {key: choice for key, choice in given.items() if isinstance(choice, dict) and "times" in choice}
    for key, choice in own.items():
        if not isinstance(choice["times"], dict) or choice.get("way") not in choice["times"]:
            raise ValueError(f"choice of '{key}': {choice!r} is none: 'way' must be one of the names in 'times'")
    _chosen.update({key: dict(choice) for key, choice in own.items()})
    return {key: choice for key, choice in given.items() if key not in own}


def forget() -> None:
    """Forget all choices: everything is measured again."""
    _chosen.clear()


def chosen(what: str, x: Tensor, usual: str, make: Callable[[], Mapping[str, Callable[[], Any]]]) -> str:
    """The name of the way for inputs like x on a GPU. `make` gives what is run to measure each way, by its name, the
    `usual` one first, which a rehearsal takes."""
    key = f"{what}, {str(x.dtype).removeprefix('torch.')}, {torch.cuda.get_device_name(x.device)}"
    if key not in _chosen and rehearsal.running():
        return _rehearsed(key, usual, make)
    if key not in _chosen:
        _chosen[key] = {"way": usual, "times": {usual: None}} if _recording() else _measured(x, make)
    return str(_chosen[key]["way"])


def _rehearsed(key: str, usual: str, make: Callable[[], Mapping[str, Callable[[], Any]]]) -> str:
    """Launch all that would be measured, once, and go the usual way, which is not remembered."""
    if rehearsal.anew("fastest", key):
        with torch.no_grad():
            for run in make().values():
                run()
    return usual


def _recording() -> bool:
    return torch.cuda.is_current_stream_capturing()


def _measured(x: Tensor, make: Callable[[], Mapping[str, Callable[[], Any]]]) -> Choice:
    torch.cuda.synchronize(x.device)
    with torch.cuda.device(x.device), torch.no_grad():
        return best({name: milliseconds(run) for name, run in make().items()})


def best(times: Mapping[str, float]) -> Choice:
    """The choice that follows from these milliseconds."""
    least = min(times.values())
    return {"way": next(name for name, t in times.items() if t <= NEAR * least), "times": dict(times)}


def about(n: int) -> int:
    """The next power of two: sizes between two of them share a choice."""
    return 1 << max(n - 1, 0).bit_length()
