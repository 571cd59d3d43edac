"""A server process: live folders in, an address out, and what is said when it stops."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn

from .. import store
from ..live import load_live
from ..ops.layout import counted
from . import checkpoint
from .app import Front, Limits, say
from .desk import Rules
from .service import Keeping, Service
from .tokens import is_loopback
from .tokens import load as load_tokens


@dataclass(frozen=True)
class Address:
    """Where a server listens, and what it shows for itself."""

    host: str = "127.0.0.1"
    port: int = 8080
    tokens: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port {self.port} must be from 0 to 65535")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("--certificate and --key go together")
        for path in (self.tokens, self.certificate, self.key):
            if path is not None and not path.is_file():
                raise FileNotFoundError(f"{path} does not exist")
        if self.certificate is not None and self.key is not None:
            self._check_pair(self.certificate, self.key)
        if not self.loopback and self.tokens is None:
            raise ValueError(
                f"--host {self.host} can be reached from other machines; give --tokens FILE, which "
                "`acclimate tokens FILE` writes, or listen at 127.0.0.1"
            )

    def _check_pair(self, certificate: Path, key: Path) -> None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, OSError, ValueError) as e:
            raise ValueError(
                f"--certificate {certificate} and --key {key} must be a certificate and its key, in PEM form and "
                f"without a password ({getattr(e, 'reason', None) or e})"
            ) from e

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def open_front(
    paths: list[Path],
    folder: Path | None = None,
    name: str | None = None,
    device: str = "cpu",
    place: Address = Address(),
    rules: Rules = Rules(),
    limits: Limits = Limits(),
    keeping: Keeping = Keeping(),
) -> Front:
    """A server of these live folders, as its folder and log say it was left."""
    found = checkpoint.found(paths)
    lives = [load_live(path) for path in found]
    tokens = None if place.tokens is None else load_tokens(place.tokens)
    folder = folder or (found[0].parent / "serving")
    if checkpoint.begun(folder, lives):
        lives = checkpoint.resumed(folder, lives)
    host = checkpoint.on(lives, device)
    host.warm()
    name = name or re.sub(r"[^a-z0-9.-]+", "-", lives[0].experiment.label.lower()).strip("-") or "model"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise ValueError(f"--name {name!r} must be letters, digits, '.', '_' and '-'")
    checkpoint.begin(folder, lives, name)
    return Front(Service(host, folder, keeping), name, rules, limits, tokens)


def run(front: Front, place: Address, verbose: bool = False) -> dict[int, str]:
    """Serve until a signal comes; the digests of all states at the end."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    for name in ("acclimate.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.DEBUG if verbose and name == "acclimate.serving" else logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    if not place.loopback and place.certificate is None:
        say("warning", logging.WARNING, text="tokens travel in plain text; give --certificate and --key")
    config = uvicorn.Config(
        front.application(),
        host=place.host,
        port=place.port,
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        ssl_certfile=None if place.certificate is None else str(place.certificate),
        ssl_keyfile=None if place.key is None else str(place.key),
        timeout_graceful_shutdown=30,
    )
    server = _Server(config, front)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # uvicorn has stopped in order, and hands the signal on
        server.run()
    if not server.started:
        raise store.RunError(f"cannot listen at {place.host}:{place.port}; choose another --host or --port")
    return front.digests


class _Lines(logging.Formatter):
    """A JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        about = json.loads(text) if text.startswith('{"event"') else {"event": "message", "text": text}
        if record.exc_info:
            about["trace"] = self.formatException(record.exc_info)
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return store.json_text({"time": when, "level": record.levelname.lower(), **about})


Silent: TypeAlias = dict[Any, tuple[object, float]]
"""Connections on which a request's head has not come yet: the request before it, and since when."""


def still_silent(connections: Iterable[Any], before: Silent, now: float) -> Silent:
    """Which connections wait for a request's head, of those that uvicorn has; it would wait for ever, and all the
    while keep a file open, of which a process may have so many. A request's body has a limit of its own."""
    found: Silent = {}
    for connection in connections:
        last = getattr(connection, "cycle", None)
        if last is None or last.response_complete:
            old, since = before.get(connection, (last, now))
            found[connection] = (last, since if old is last else now)
    return found


class _Server(uvicorn.Server):
    """Says where it listens as soon as it does, and gives connections up on which no request comes."""

    def __init__(self, config: uvicorn.Config, front: Front) -> None:
        super().__init__(config)
        self.front = front
        self.silent: Silent = {}

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, by uvicorn."""
        if counter % 10 == 0:
            now = time.monotonic()
            self.silent = still_silent(self.server_state.connections, self.silent, now)
            late = [c for c, (_, since) in self.silent.items() if now - since > self.front.limits.seconds]
            for connection in late:
                connection.transport.close()
            if late:
                say("gave up", connections=len(late), text=f"no request in {self.front.limits.seconds:g} s")
        return await super().on_tick(counter)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        if self.started:
            at = self.servers[0].sockets[0].getsockname()
            scheme = "https" if self.config.is_ssl else "http"
            shown = f"[{at[0]}]" if ":" in at[0] else at[0]
            print(
                f"serving {self.front.name}, {counted(len(self.front.host.rows), 'client')}, at {scheme}://{shown}:{at[1]}",
                flush=True,
            )
