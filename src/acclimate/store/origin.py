"""Where results come from: versions, device, commit and command. No host or user names."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..experiment import labels
from ..version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """env.json: versions, device and commit; no host or user names."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    import numpy

    return {
        "acclimate": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device} ({name})",
        "threads": torch.get_num_threads(),
    }


COMMIT = "ACCLIMATE_COMMIT"
"""The environment variable that says of which commit a copy without history is."""


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return os.environ.get(COMMIT) or None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def command_line() -> str:
    """The command that made a run, without the interpreter's path, as a shell takes it."""
    return shlex.join([Path(sys.argv[0]).name, *(labels.without_place(word) for word in sys.argv[1:])])


def without_places(value: Any) -> Any:
    """JSON whose texts name files by the last part of their path: results and reports are passed on."""
    if isinstance(value, Mapping):
        return {k: without_places(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(v) for v in value]
    return labels.without_place(value) if isinstance(value, str) else value
