"""Who may start a run: the holder of the admin key. Flower's control interface itself asks for no account.

Flower 1.41 has account authentication by OpenID Connect in its enterprise distribution alone. So the ServerApp asks for
a ticket: an HMAC-SHA-256 under the admin key over all that the run configuration says, with the time and a number that
is used once. The key lies at the server, readable by its owner alone, and never crosses the network.

`python -m acclimate.fleet.admin KEY APP name=value ...` prints a ticket, for `train.sh`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import audit

KEY, VARIABLE = "admin.key", "ACCLIMATE_ADMIN_KEY"
SIGNED = ("task", "data", "run-folder", "settings", "selection", "adapter", "registry")
SECONDS = 600
"""How long a ticket is good."""


def ticket(key: bytes, config: Mapping[str, Any], now: float | None = None) -> str:
    """A ticket for one run of this configuration."""
    head = f"{int(time.time() if now is None else now)}.{secrets.token_hex(16)}"
    return f"{head}.{_mac(key, head, config)}"


def _mac(key: bytes, head: str, config: Mapping[str, Any]) -> str:
    body = json.dumps([head, *(str(config.get(name, "")) for name in SIGNED)])
    return hmac.new(key, body.encode(), hashlib.sha256).hexdigest()


def admit(config: Mapping[str, Any], key_file: Path, log: Path) -> None:
    """Note who asks for a run, and raise PermissionError where the ticket is not one of the admin key's, or old, or
    was used before."""
    given = str(config.get("admin", ""))
    head, _, mac = given.rpartition(".")
    when, _, number = head.partition(".")
    wanted = {"task": str(config.get("task")), "run": str(config.get("run-folder"))}
    reason = None
    if not hmac.compare_digest(mac.encode(), _mac(key_file.read_bytes(), head, config).encode()):
        reason = "its run configuration is not signed by the admin key"
    elif abs(time.time() - int(when)) > SECONDS:
        reason = f"its ticket is more than {SECONDS} s old"
    elif any(line.get("ticket") == number and line["what"] == "run" for line in audit.lines(log)):
        reason = "its ticket was used before"
    who = "admin" if reason is None else "stranger"
    audit.note(log, who, "run" if reason is None else "refused", ticket=number, reason=reason or "", **wanted)
    if reason is not None:
        raise PermissionError(f"the run is refused: {reason} ({key_file}); start runs with train.sh or acclimate run")


def signed(app: Path, key_file: Path, config: Mapping[str, Any]) -> str:
    """A ticket for a run of the app in a folder, whose own configuration holds where `config` says nothing."""
    defaults = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    return ticket(key_file.read_bytes(), {**defaults, **config})


if __name__ == "__main__":
    key_, app_, *words = sys.argv[1:]
    print(signed(Path(app_), Path(key_), dict(word.split("=", 1) for word in words)))
