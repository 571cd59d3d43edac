"""A server's folder: the live models that it began with, its log, and the last checkpoint of all states.

The folder is begun when server.json is there, which is written last. A checkpoint is one file that is replaced whole,
so that all clients' states in it are of one position in the log.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from .. import store
from ..core import tree
from ..live import Live, load_live
from ..live.folder import CARD as LIVE_CARD
from ..live.folder import DEFAULT, JOINED_CARD
from ..live.loading import unmade
from ..live.model import SNAPSHOTS
from ..ops.devices import device_of
from .federation import differ, form
from .host import Host
from .log import raw
from .segments import Log

DEPLOYED = "deployed"
"""Where `acclimate fleet deploy` leaves live folders in the folder of a site."""
SCHEMA, CARD, LOG, STATES, START = "acclimate.server/2", "server.json", "log", "states.safetensors", "start"


def found(paths: Sequence[Path]) -> list[Path]:
    """The live folders among these, in folders of live folders, in run folders, and in those of sites of a fleet."""
    out: list[Path] = []
    for path in paths:
        inner = [path]
        if path.is_dir() and not _is_live(path):
            inner = _within(path) or _within(path / DEPLOYED) or _within(path / DEFAULT)
        if not inner:
            raise store.RunError(unmade(path))
        out += inner
    return out


def _within(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if _is_live(p)) if path.is_dir() else []


def _is_live(path: Path) -> bool:
    return any((path / name).exists() for name in (LIVE_CARD, JOINED_CARD))


def begin(folder: Path, lives: Sequence[Live], name: str) -> None:
    """Write down what a server begins with, or check that it goes on with the same clients and deployed models."""
    if begun(folder, lives):
        return
    mine = {str(live.client): _model(live) for live in lives}
    for live in lives:
        live.save(folder / START / f"client-{live.client}", overwrite=True)
    store.write(folder / CARD, store.json_text({"schema": SCHEMA, "name": name, "clients": mine}, indent=1) + "\n")


def begun(folder: Path, lives: Sequence[Live]) -> bool:
    """Whether a server was begun there; an error where it was with other clients or other deployed models."""
    if not (folder / CARD).exists():
        if (folder / LOG).exists():
            raise store.RunError(f"{folder} holds a log without {CARD}; choose another --folder")
        return False
    mine, card = {str(live.client): _model(live) for live in lives}, _card(folder)
    if len(mine) < len(lives):
        raise store.RunError("two of the live folders are of the same client; name one folder of each")
    if card["clients"].keys() != mine.keys():
        there, given = (", ".join(c.keys()) for c in (card["clients"], mine))
        raise store.RunError(f"{folder} was begun with clients {there}, not {given}; choose another --folder")
    if changed := [c for c, digest in card["clients"].items() if mine[c] != digest]:
        raise store.RunError(
            f"{folder} was begun with other deployed models of client {', '.join(changed)}; choose another --folder"
        )
    return True


def _card(folder: Path) -> dict[str, Any]:
    card = store.read_json(folder / CARD)
    if card.get("schema") != SCHEMA:
        raise store.RunError(
            f"{folder / CARD}: schema={card.get('schema')!r} must be '{SCHEMA}'; another version of acclimate "
            "wrote it: serve it with that one, or choose another --folder"
        )
    if not isinstance(card.get("clients"), dict):
        raise store.RunError(f"{folder / CARD} is damaged: it names no clients; choose another --folder")
    return card


def resumed(folder: Path, lives: Sequence[Live]) -> list[Live]:
    """The live models that a server began with, from which its log goes on; these are the same but for what came since.

    What a live folder has become by `acclimate predict` meanwhile is another stream, and no part of the log.
    """
    old = {live.client: live for live in started(folder)}
    for live in lives:
        old[live.client].raw = live.raw  # how inputs are read is no part of the log, which holds them as they were read
        if other := differ(form(live), form(old[live.client])):
            what = "adapter, or another setting" if other == "experiment" else other
            raise store.RunError(
                f"{folder} was begun with another {what} of client {live.client}; choose another --folder"
            )
    return list(old.values())


def started(folder: Path) -> list[Live]:
    """The live models that a server began with."""
    return [load_live(folder / START / f"client-{client}") for client in _card(folder)["clients"]]


def _model(live: Live) -> str:
    total = hashlib.sha256()
    for name, value in sorted(tree.flatten(live.model).items()):
        total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + raw(value))
    return total.hexdigest()


def save(path: Path, host: Host, digests: dict[int, str], log: Log, since: int) -> None:
    """Write all clients' states, as they are at the end of the log; ids are known from `since` on."""
    clients = [
        {"frozen": s.frozen, "prepared": s.prepared, "labelled": s.labelled, "kept": list(kept), "digest": digests[c]}
        for c, s, kept in zip(host.clients, host.shells, host.kept, strict=True)
    ]
    about = {"schema": SCHEMA, "position": log.end, "chain": log.digest.hex(), "since": since, "clients": clients}
    about["threads"] = torch.get_num_threads()
    flat = tree.flatten({"sessions": host.sessions, "ring": host.ring})
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in flat.items()}
    store.write(path, save_tensors(tensors, metadata={"about": json.dumps(about)}), mode=0o600)


def load(path: Path, host: Host) -> dict[str, Any] | None:
    """Put a checkpoint's states into a host; what it says of itself. None where there is none."""
    if not path.exists():
        return None
    try:
        whole = path.read_bytes()
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
        about: dict[str, Any] = json.loads(header["__metadata__"]["about"])
        if about["schema"] != SCHEMA:
            raise ValueError(f"schema={about['schema']!r} must be '{SCHEMA}'")
        states = tree.unflatten(store.aligned(load_tensors(whole)), {"sessions": host.sessions, "ring": host.ring})
        host.sessions, host.ring = states["sessions"], states["ring"]
        for row, (client, saved) in enumerate(zip(host.clients, about["clients"], strict=True)):
            shell = host.shells[row]
            shell.frozen, shell.prepared, shell.labelled = saved["frozen"], saved["prepared"], list(saved["labelled"])
            host.kept[row] = deque(((step, slot) for step, slot in saved["kept"]), maxlen=SNAPSHOTS)
            host.seen[row], host.fresh[row] = (int(host.sessions[k][row]) for k in ("seen", "fresh"))
            if host.digest(client) != saved["digest"]:
                raise ValueError(f"the state of client {client} is not what was written")
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as e:
        raise store.RunError(
            f"{path} is damaged ({e}); delete it, and the server computes all states again from its log"
        ) from e
    return about


def on(lives: Sequence[Live], device: str) -> Host:
    """A host on a device, or an error that says why not."""
    return Host(lives, device_of(device, "--device "))
