"""The key of a run: 32 random bytes, in a file that only its owner can read, outside of the run folder.

A run folder is what people publish, so it holds the name of the key and a check of it, in secret.json, and never the
key. Keys lie in the folder that the environment variable ACCLIMATE_SECRETS names, by default
`~/.local/state/acclimate/secrets`. Without its key a run with a promise of privacy cannot go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets as random
from pathlib import Path

from .files import RunError, read_json, write

NAME = "secret.json"


def place() -> Path:
    """The folder of keys."""
    if given := os.environ.get("ACCLIMATE_SECRETS"):
        return Path(given)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "acclimate" / "secrets"


def new() -> bytes:
    """A new key."""
    return random.token_bytes(32)


def keep(folder: Path, key: bytes) -> None:
    """Keep a run's key: the file first, then the note in the run folder that names it."""
    name = random.token_hex(16)
    keep_file(place() / f"{name}.key", key)
    write(folder / NAME, json.dumps({"key": name, "check": _check(key)}) + "\n")


def read(folder: Path) -> bytes | None:
    """A run's key; None where the run has none. An error where it has one that is not here."""
    if not (folder / NAME).exists():
        return None
    note = read_json(folder / NAME)
    name, check = note.get("key"), note.get("check")
    if not isinstance(name, str) or not name.isalnum():
        raise RunError(f"{folder / NAME}: key={name!r} must be the name of a key")
    path = place() / f"{name}.key"
    if not path.is_file():
        raise RunError(
            f"{path} does not exist: the run in {folder} drew its cohorts and noise from it, and cannot go on without; "
            "copy it from where the run began, or name its folder in ACCLIMATE_SECRETS"
        )
    key = path.read_bytes()
    if len(key) != 32 or _check(key) != check:
        raise RunError(f"{path} is not the key of the run in {folder}")
    return key


def kept(path: Path) -> bytes:
    """The key in a file, which is created where it is not there."""
    if not path.exists():
        keep_file(path, new())
    key = path.read_bytes()
    if len(key) != 32:
        raise RunError(f"{path} has {len(key)} bytes; a key has 32")
    return key


def keep_file(path: Path, key: bytes) -> None:
    """Write a key that only its owner can read, from the first byte on, and whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path, key, 0o600)


def _check(key: bytes) -> str:
    return hashlib.sha256(b"acclimate\0check\0" + key).hexdigest()[:16]
