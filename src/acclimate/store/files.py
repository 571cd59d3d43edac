"""Whole files: written atomically, and JSON that every reader takes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RunError(RuntimeError):
    """A run folder that cannot be used as asked: says which file, why, and what to do."""


def write(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write a file whole or not at all: to a temporary file beside it, flushed to disk, then renamed.

    `mode` says who may read and write it, less what the umask takes away; 0o600 is for its owner alone.
    """
    raw = content.encode() if isinstance(content, str) else content
    fresh = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(fresh, how, mode), "wb") as f:
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            os.replace(fresh, path)
        except BaseException:  # also Ctrl-C
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}; what was there before is unchanged") from e


def json_text(value: Any, **style: Any) -> str:
    """JSON that every reader takes: numbers that are not finite are null, because JSON has no word for them."""
    return json.dumps(_finite(value), allow_nan=False, **style)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, or an error that names it."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; is {path.parent} a run folder?") from None
    except UnicodeDecodeError as e:
        raise RunError(f"{path} is damaged: {e}") from e
    return object_of(text, str(path))


def object_of(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or an error that says where it should be."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as e:
        raise RunError(f"{where} is damaged: {e}") from e
    if not isinstance(found, dict):
        raise RunError(f"{where} is damaged: it holds {text.strip()[:40]!r}, not a JSON object")
    return found
