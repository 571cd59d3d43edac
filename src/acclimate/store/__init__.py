"""What a run leaves on disk, and how it survives a crash: JSON and safetensors, written atomically."""

from . import secrets
from .files import RunError, json_text, read_json, reading, write
from .folders import (
    ANALYSIS_SCHEMA,
    RESULTS_SCHEMA,
    IndexFolder,
    RunFolder,
    SeveralRuns,
    find_runs,
    folder_names,
    holds_run,
    holds_search,
    next_free,
    refuse_overwrite,
    runs_below,
)
from .lock import busy, locked
from .origin import command_line, environment, without_places
from .tensors import pack, pack_traces, read_tensors, read_traces, unpack

__all__ = [
    "ANALYSIS_SCHEMA",
    "RESULTS_SCHEMA",
    "IndexFolder",
    "RunError",
    "RunFolder",
    "SeveralRuns",
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
