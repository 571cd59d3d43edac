"""Whole files: written atomically, and JSON that every reader takes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..ops import opening
from ..ops.layout import counted


class RunError(RuntimeError):
    """A run folder that cannot be used as asked: says which file, why, and what to do."""


class SeveralRuns(RunError):
    """A folder of runs, where that of one is needed; `runs` are those in it, one of which must be named."""

    def __init__(self, path: Path, runs: Sequence[Path]) -> None:
        self.path, self.runs = path, list(runs)
        more = f" and {len(runs) - 20} more" if len(runs) > 20 else ""
        names = ", ".join(r.relative_to(path).as_posix() for r in runs[:20])
        count = "one" if len(runs) == 1 else counted(len(runs), "run")
        super().__init__(f"{path} is no run, but a folder that holds {count}: {names}{more}; name a run")


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


def holds_run(path: Path) -> bool:
    """Whether a folder is that of a run, finished or not, or of several."""
    return any((path / name).exists() for name in ("results.json", "config.json", "index.json"))


def holds_search(path: Path) -> bool:
    """Whether a folder is that of a search (`acclimate tune`), begun or finished."""
    return any((path / name).exists() for name in ("tune.json", "journal.log"))


def instead(path: Path) -> str:
    """What a folder holds that is no run, and what to do; empty where it is none of these."""
    if (path / "live.json").exists():
        return "is a live model, and no run folder; name the run that it was deployed from"
    if holds_search(path):
        more = f"run what it found: acclimate run -c {path / 'best.toml'}; the same `acclimate tune` goes on with it"
        return f"is a search, and no run folder; {more}"
    return ""


def read_text(path: Path) -> str:
    """The text of a file of a run folder, or an error that names it."""
    try:
        return opening.text(path)
    except FileNotFoundError:
        raise RunError(f"{path} does not exist; is {path.parent} a run folder?") from None
    except opening.FileProblem as e:
        raise RunError(str(e)) from e


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, or an error that names it."""
    return object_of(read_text(path), str(path))


def object_of(text: str, where: str) -> dict[str, Any]:
    """A JSON object, or an error that says where it should be."""
    try:
        found = opening.parsed(text, where)
    except opening.FileProblem as e:
        raise RunError(str(e)) from e
    if not isinstance(found, dict):
        raise RunError(f"{where} is damaged: it holds {text.strip()[:40]!r}, not a JSON object")
    return found


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with the digest of all else that it holds."""
    kept = json.loads(json_text({k: v for k, v in body.items() if k != "digest"}))
    return {**kept, "digest": digest_of(kept)}


def digest_of(body: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object without its digest, however the object is laid out in its file."""
    rest = {k: v for k, v in body.items() if k != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_sealed(path: Path, schemas: Mapping[str, bool], remedy: str) -> dict[str, Any]:
    """The object that a JSON file holds, checked against its digest. `schemas` says which of them have one."""
    body = read_json(path)
    schema = body.get("schema")
    if not isinstance(schema, str) or schema not in schemas:
        raise RunError(f"{path}: schema={schema!r} must be {' or '.join(map(repr, schemas))}")
    if (schemas[schema] or "digest" in body) and body.get("digest") != digest_of(body):
        raise RunError(f"{path} is damaged or was changed: its content does not match its digest; {remedy}")
    return body


@contextlib.contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Say of a file of an earlier version, which has no digest, that it is damaged where it lacks what it must hold."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as e:
        raise RunError(f"{path} is damaged: {type(e).__name__} {e}; {remedy}") from e


def sha256(path: Path) -> str:
    """The digest of a whole file."""
    try:
        with opening.opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (opening.FileProblem, OSError) as e:
        raise RunError(f"{path} cannot be read: {e}") from e
