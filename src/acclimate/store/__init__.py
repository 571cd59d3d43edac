"""What a run leaves on disk, and how it survives a crash: JSON and safetensors, written atomically.

Files and locks need no torch. What does loads on first use, so that a command that only writes files starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import secrets
from .files import RunError, SeveralRuns, holds_run, holds_search, json_text, read_json, reading, write
from .lock import busy, locked

if TYPE_CHECKING:
    from .folders import (
        ANALYSIS_SCHEMA,
        RESULTS_SCHEMA,
        IndexFolder,
        RunFolder,
        find_runs,
        folder_names,
        next_free,
        refuse_overwrite,
        runs_below,
    )
    from .origin import command_line, environment, without_places
    from .tensors import aligned, pack, pack_traces, read_tensors, read_traces, unpack

_NAMES = {
    "folders": (
        "ANALYSIS_SCHEMA",
        "RESULTS_SCHEMA",
        "IndexFolder",
        "RunFolder",
        "find_runs",
        "folder_names",
        "next_free",
        "refuse_overwrite",
        "runs_below",
    ),
    "origin": ("command_line", "environment", "without_places"),
    "tensors": ("aligned", "pack", "pack_traces", "read_tensors", "read_traces", "unpack"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "ANALYSIS_SCHEMA",
    "RESULTS_SCHEMA",
    "IndexFolder",
    "RunError",
    "RunFolder",
    "SeveralRuns",
    "aligned",
    "busy",
    "command_line",
    "environment",
    "find_runs",
    "folder_names",
    "holds_run",
    "holds_search",
    "json_text",
    "locked",
    "next_free",
    "pack",
    "pack_traces",
    "read_json",
    "read_tensors",
    "read_traces",
    "reading",
    "refuse_overwrite",
    "runs_below",
    "secrets",
    "unpack",
    "without_places",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'acclimate.store' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
