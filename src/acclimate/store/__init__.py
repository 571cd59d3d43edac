"""What a run leaves on disk, and how it survives a crash: JSON and safetensors, written atomically."""

from . import secrets
from .files import RunError, json_text, read_json, write
from .folders import (
    ANALYSIS_SCHEMA,
    RESULTS_SCHEMA,
    IndexFolder,
    RunFolder,
    find_runs,
    folder_names,
    holds_run,
    holds_search,
    next_free,
    refuse_overwrite,
)
from .origin import command_line, environment
from .tensors import pack, pack_traces, read_tensors, read_traces, unpack

__all__ = [
    "ANALYSIS_SCHEMA",
    "RESULTS_SCHEMA",
    "IndexFolder",
    "RunError",
    "RunFolder",
    "command_line",
    "environment",
    "find_runs",
    "folder_names",
    "holds_run",
    "holds_search",
    "json_text",
    "next_free",
    "pack",
    "pack_traces",
    "read_json",
    "read_tensors",
    "read_traces",
    "refuse_overwrite",
    "secrets",
    "unpack",
    "write",
]
