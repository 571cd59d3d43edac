"""How a site leaves: the server does not ask it any more, and the site deletes what its node has kept.

`remove` is for the server's machine, `keeps` and `forget` are for the site's. Neither can take back what a trained
model has learnt: for that, train again without the site.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..ops.places import cache_folder
from ..store import RunError, read_json, write
from . import audit, registry
from .places import deployed_folder

KEPT = ("runs", "deployed")
"""What a node keeps of its clients, in the site's state folder."""
COPIES = ("sets", "streams", "features", "stamps", "locks")
"""Parts of the cache folder: data sets as they were parsed, and what was computed of them."""
SERVING = "serving"
FLWR_SECONDS = 60.0


# --- at the server ----------------------------------------------------------------------------------------------------


def remove(server: Path, name: str) -> bool:
    """Take a site out of the fleet whose server folder this is. Whether its key is unregistered at the link too.

    Its client keeps its number, so that those of the others stay what they are, and takes no part in any run that
    starts or resumes after this. False where the link did not answer: then call this again when it is up.
    """
    nodes = server / "nodes"
    if not (nodes / registry.MEMBERS).exists():
        raise RunError(f"{nodes / registry.MEMBERS} does not exist; name the server's folder of `acclimate fleet init`")
    members = registry.members_of(nodes)
    if name not in (names := [m.name for m in members]):
        raise ValueError(f"site='{name}' must be one of {', '.join(names)}")
    if all(m.removed for m in members if m.name != name):
        raise ValueError(f"site='{name}' is the last one; a fleet needs a site")
    registry.write_members(nodes, [replace(m, removed=m.removed or m.name == name) for m in members])
    (nodes / f"{name}.pub").unlink(missing_ok=True)  # register.sh would register it again
    audit.note(server / audit.AUDIT, "operator", "removed", site=name)
    if (answer := nodes / f"{name}.json").exists():
        if not _unregistered(server, registry.node_of(answer)):
            return False
        answer.unlink()
    return True


def _unregistered(server: Path, node: int) -> bool:
    """Whether Flower's link now refuses the key of a node."""
    env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(server / "flower")}
    command = ["flwr", "supernode", "unregister", str(node), "fleet"]
    try:
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, timeout=FLWR_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


# --- at the site ------------------------------------------------------------------------------------------------------


def keeps(state: Path, client: int | None = None, cache: bool = False) -> list[Path]:
    """The files and folders of a site's state folder that hold a client's states, models or requests; of all, for None.

    The folder of a server of live models is among them as a whole, because its log holds the requests of all. With
    `cache`, so are the copies of data in this machine's cache folder, whose data sets they are of is not noted there.
    """
    if not any((state / name).exists() for name in (*KEPT, audit.AUDIT)):
        raise RunError(f"{state} is not the state folder of a site: it has neither {', '.join(KEPT)} nor {audit.AUDIT}")
    found: Iterable[Path] = (state / name for name in KEPT)
    if client is not None:
        runs = state / "runs"
        found = [p for pattern in _patterns(client) for p in sorted(runs.glob(pattern))]
        found = [*found, deployed_folder(state, client), *_served(state / "deployed" / SERVING, client)]
    copies = [cache_folder() / name for name in COPIES] if cache else []
    return [p for p in (*found, *copies) if p.exists()]


def _patterns(client: int) -> list[str]:
    """Where `vault.Vault` keeps things of a client, below the folder of runs."""
    sums = [f"*/sums/{client}.json", f"*/sums/{client}-opened.json"]
    return [f"*/mine/{client}", f"*/models/*/{client}.safetensors", f"*/sessions/*/{client}-*.safetensors", *sums]


def _served(serving: Path, client: int) -> list[Path]:
    """The folder of the server of live models, where the client is one of its own, or where it does not say."""
    card = serving / "server.json"
    return [serving] if not card.exists() or str(client) in read_json(card)["clients"] else []


def forget(state: Path, client: int | None = None, cache: bool = False) -> list[Path]:
    """Delete what `keeps` names, and return it. An error, and nothing is deleted, where a process still uses it."""
    found = keeps(state, client, cache)
    if user := _user(state):
        raise RunError(f"{state} is in use by {user}; stop it first, or it would write the same again")
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if client is not None:
        _tidy(state, client)
    names = [str(p.relative_to(state)) if p.is_relative_to(state) else str(p) for p in found]
    audit.note(state / audit.AUDIT, "operator", "forgot", client=client, deleted=names)
    return found


def _tidy(state: Path, client: int) -> None:
    """Remove runs of which no client is left, with the keys of their noise, and the client from the list of models."""
    for run in (state / "runs").glob("*"):
        if not any(p.is_file() for part in ("mine", "models", "sessions") for p in (run / part).rglob("*")):
            shutil.rmtree(run)
    if (card := state / "deployed" / "card.json").exists():
        body: dict[str, Any] = read_json(card)
        body["clients"] = [c for c in body["clients"] if c != client]
        write(card, json.dumps(body, indent=2) + "\n")


def _user(state: Path) -> str | None:
    """What still uses the folder, in words; None where nothing does, as far as the system tells."""
    places = {f'site="{path}"'.encode() for path in (state.absolute(), state.resolve())}
    for number in filter(str.isdecimal, os.listdir("/proc") if Path("/proc").is_dir() else ()):
        with contextlib.suppress(OSError):  # it has ended
            command = Path("/proc", number, "cmdline").read_bytes()
            if any(place in command for place in places):
                return f"the node with process number {number}"
    lock = state / "deployed" / SERVING / "log" / "lock"
    if lock.exists():
        with contextlib.suppress(ImportError), lock.open() as file:
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return "a server of its live models"
    return None
