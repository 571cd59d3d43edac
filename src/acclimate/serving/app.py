"""The HTTP side of a server: the Open Inference Protocol, late labels, administrative acts, a page, metrics.

A federation is a model, a client a version of it. Every refusal is a JSON object with the key `error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from .. import store
from ..live import Answer
from ..version import __version__
from . import protocol
from .desk import Desk, Rules
from .ledger import ACTS, Conflict
from .protocol import Denied
from .raw_inputs import described
from .records import Ask
from .scoreboard import Scoreboard
from .service import Service
from .tokens import Tokens, is_loopback

log = logging.getLogger("acclimate.serving")
EXTENSIONS = ["binary_tensor_data(inputs)", "labels", *ACTS]
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """What a request may hold."""

    body: int = 16 << 20
    """Bytes of a body."""
    samples: int = 256
    """Samples of a request."""
    seconds: float = 60.0
    """How long a request's head, and then its body, may take: who sends a byte now and then would hold memory and a
    connection for ever."""


def say(event: str, level: int = logging.INFO, **about: Any) -> None:
    """A line of the log: what happened, never what came in."""
    if log.isEnabledFor(level):
        log.log(level, store.json_text({"event": event, **about}))


class Front:
    """The handlers of one server."""

    def __init__(
        self,
        service: Service,
        name: str,
        rules: Rules = Rules(),
        limits: Limits = Limits(),
        tokens: Tokens | None = None,
    ) -> None:
        self.service, self.name, self.limits, self.tokens = service, name, limits, tokens
        self.host, self.board = service.host, Scoreboard(service.host)
        self.desk = Desk(service, rules, self._watch)
        self.digests: dict[int, str] = {}
        """Of all states, when the server has stopped."""

    def _watch(self, asks: list[Ask], answers: list[Answer], seconds: float) -> None:
        self.board.step(asks, answers, seconds)
        say("step", logging.DEBUG, clients=len(asks), samples=sum(len(a.x) for a in asks), seconds=round(seconds, 6))

    def application(self) -> Starlette:
        """The ASGI application."""
        one, version = f"/v2/models/{self.name}", f"/v2/models/{self.name}/versions/{{client}}"
        reads: dict[str, Handler] = {
            "/": self.page,
            "/metrics": self.metrics,
            "/v2": self.server,
            "/v2/health/live": self.healthy,
            "/v2/health/ready": self.healthy,
            one: self.metadata,
            version: self.metadata,
            f"{one}/ready": self.ready,
            f"{version}/ready": self.ready,
            f"{one}/clients": self.clients,
        }
        writes: dict[str, Handler] = {f"{version}/infer": self.infer, f"{one}/infer": self.infer}
        writes[f"{version}/labels"] = self.labels
        for act in ACTS:
            writes |= {f"{one}/{act}": self.act, f"{version}/{act}": self.act}
        routes = [Route(path, self._guarded(h), methods=["POST"]) for path, h in writes.items()]  # what is asked most
        routes += [Route(path, self._guarded(h), methods=["GET"]) for path, h in reads.items()]
        return Starlette(routes=routes, lifespan=self._life, exception_handlers={404: self._nothing, 405: self._unfit})

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        writer = asyncio.create_task(self.desk.run())
        yield
        self.desk.stop()
        await writer
        self.digests = await self.desk.do(self.service.close)
        self.desk.thread.shutdown()

    async def _nothing(self, request: Request, error: Exception) -> Response:
        self.board.statuses["404"] += 1
        text = f"{request.url.path[:200]!r}: there is no such model or page; the model is {self.name}"
        return JSONResponse({"error": text}, 404)

    async def _unfit(self, request: Request, error: Exception) -> Response:
        self.board.statuses["405"] += 1
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
        text = f"{request.method[:20]} {request.url.path[:200]!r}: the method must be one of {allowed}"
        return JSONResponse({"error": text}, 405, {"Allow": allowed})

    def _guarded(self, handler: Handler) -> Handler:
        """A handler whose refusals are replies, and counted."""

        async def guarded(request: Request) -> Response:
            headers: dict[str, str] = {}
            try:
                self._check_origin(request)
                reply = await handler(request)
                self.board.statuses[str(reply.status_code)] += 1
                return reply
            except Denied as e:
                status, text = e.status, str(e)
            except Conflict as e:
                status, text = 409, str(e)
            except ClientDisconnect:
                status, text = 400, "the client went away"
            except store.RunError as e:
                status, text = 503, str(e)
                say("failed", logging.ERROR, path=request.url.path, error=text)
            except Exception as e:  # a bug: the state is as before, and others are served
                status, text = 500, f"{type(e).__name__}; see the server's log"
                log.exception("unexpected")
            self.board.statuses[str(status)] += 1
            say("refused", path=request.url.path[:200], status=status, error=text)
            headers |= {"Retry-After": "1"} if status in (429, 503) else {}
            headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            return JSONResponse({"error": text}, status, headers)

        return guarded

    def _check_origin(self, request: Request) -> None:
        """Refuse what another server's page makes a browser send."""
        origin = request.headers.get("origin")
        if origin and _place(origin) != request.headers.get("host"):
            raise Denied(403, f"Origin: {origin[:100]!r} is another place")
        name, _, port = (whole := request.headers.get("host", "")).rpartition(":")
        host = name if port.isdecimal() else whole
        if self.tokens is None and not is_loopback(host.strip("[]")):
            raise Denied(403, f"Host: {host[:100]!r} must be this machine, as there are no tokens")

    def _admit(self, request: Request, client: int | None = None) -> None:
        if self.tokens is not None and not self.tokens.admits(request.headers.get("authorization"), client):
            whose = "the administrator's" if client is None else f"that of client {client}"
            raise Denied(401, f"Authorization: must be 'Bearer TOKEN' with {whose}")

    def _client(self, word: Any) -> int:
        """The client that a path or parameter names."""
        text = str(word)
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) not in self.host.rows:
            known = ", ".join(map(str, self.host.clients[:10])) + (", ..." if len(self.host.rows) > 10 else "")
            raise Denied(404, f"client: {text[:40]!r} must be one of {known}")
        return int(text)

    def _named(self, request: Request) -> int | None:
        """The client that a path names, if any. Who has no token learns nothing of who there is, and sends no body."""
        if self.tokens is not None and not self.tokens.knows(request.headers.get("authorization")):
            raise Denied(401, "Authorization: must be 'Bearer TOKEN' with that of the client")
        return self._client(request.path_params["client"]) if "client" in request.path_params else None

    async def _body(self, request: Request) -> bytes:
        how = request.headers.get("content-encoding", "identity")
        if how.strip().lower() not in ("", "identity"):  # a small body that unpacks to a huge one would fill memory
            raise Denied(415, f"Content-Encoding: {how[:40]!r} must be identity; send the body as it is")
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > self.limits.body:
                        raise Denied(413, f"body: more than {self.limits.body} bytes")
                    parts.append(part)
        except TimeoutError:
            raise Denied(408, f"body: {size} bytes in {self.limits.seconds:g} s, and it is not over") from None
        return b"".join(parts)

    async def _document(self, request: Request) -> dict[str, Any]:
        raw = await self._body(request)
        return protocol.document(raw) if raw else {}

    async def infer(self, request: Request) -> Response:
        """Answer samples and adapt to them."""
        client = self._named(request)
        if client is not None:
            self._admit(request, client)
        raw = await self._body(request)
        body, rest = protocol.split(raw, request.headers.get("inference-header-content-length"))
        if client is None:
            about = body.get("parameters")
            if not isinstance(about, dict) or "client" not in about:
                raise Denied(400, "client: ask .../versions/CLIENT/infer, or give parameters: {'client': CLIENT}")
            client = self._client(about["client"])
            self._admit(request, client)
        shell = self.host.shells[self.host.rows[client]]
        names, id = protocol.wanted(body), protocol.identifier(body)
        unknown = dict[str, str]()  # goes into the reply, and into no log: it quotes what came in
        x = protocol.samples(body, rest, self.host.task, shell.dtype, self.limits.samples, shell.raw, unknown)
        answer = await self.desk.ask(Ask(client, id, x))
        if not bool(torch.isfinite(answer.probabilities).all()):
            raise Denied(
                422, f"inputs[0].data: from {x.min():.3g} to {x.max():.3g}; the model's answers are not finite"
            )
        found = protocol.response(self.name, client, id, answer, names, unknown)
        return Response(json.dumps(found, allow_nan=False), media_type="application/json")

    async def labels(self, request: Request) -> Response:
        """Take labels that come late."""
        client = self._named(request)
        assert client is not None  # as the route has it
        self._admit(request, client)
        ids, found = protocol.labels(await self._document(request))
        try:
            measured = await self.desk.do(self.service.feedback, client, ids, found)
        except ValueError as e:
            raise Denied(400, str(e)) from None
        return JSONResponse({"client": client, **measured})

    async def act(self, request: Request) -> Response:
        """Freeze, unfreeze, reset or restore a client, or all."""
        self._admit(request)
        act = request.url.path.rpartition("/")[2]
        named = request.path_params.get("client")
        body = await self._document(request)
        clients = self.host.clients if named is None else [self._client(named)]
        step = body.get("step")
        if step is not None and act != "restore":
            raise Denied(400, f"step: {str(step)[:40]!r} belongs to restore; {act} takes none")
        protocol.only(body, () if act != "restore" else ("step", "steps") if named is None else ("step",), act)
        if "steps" in body:
            step = protocol.steps(body)
            clients = sorted(map(self._client, step))
        try:
            done = await self.desk.do(self.service.act, act, clients, step)
        except ValueError as e:
            raise Denied(400, str(e)) from None
        for row in done:
            tally = self.board.tallies[row["client"]]
            tally.step = row["step"]
            to = step.get(str(row["client"])) if isinstance(step, dict) else step
            tally.note(act if to is None else f"{act} step {to}")
        say("act", act=act, clients=len(clients), step=step)
        return JSONResponse({"clients": done})

    async def page(self, request: Request) -> Response:
        """The page; what it shows comes from `clients`."""
        headers = {"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; frame-ancestors 'none'"}
        return HTMLResponse(page(self.name, self.tokens is not None), headers=headers)

    async def clients(self, request: Request) -> Response:
        """What the page shows."""
        self._admit(request)
        found = {"model": self.name, "waiting": self.desk.waiting, "clients": self.board.rows()}
        return Response(store.json_text(found), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """What Prometheus reads."""
        self._admit(request)
        self.board.waiting = self.desk.waiting
        return Response(self.board.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def server(self, request: Request) -> Response:
        """What this server is."""
        return JSONResponse({"name": "acclimate", "version": __version__, "extensions": EXTENSIONS})

    async def healthy(self, request: Request) -> Response:
        """Whether the server lives, and can answer."""
        if self.service.log.broken:
            raise Denied(503, "the log cannot be written; is the disk full?")
        return JSONResponse({"live": True, "ready": True})

    async def metadata(self, request: Request) -> Response:
        """What the model takes and gives."""
        client = self._named(request)
        self._admit(request, client)
        shell = self.host.shells[0]
        clients = self.host.clients if client is None else [client]
        found = protocol.metadata(self.name, clients, self.host.task, shell.dtype, len(shell.classes))
        about = {"raw_inputs": described(shell.raw)} if shell.raw is not None else {}
        if client is not None:
            about["digest"] = await self.desk.do(self.host.digest, client)
        found |= {"parameters": about} if about else {}
        return JSONResponse(found)

    async def ready(self, request: Request) -> Response:
        """Whether the model, or one client's, answers."""
        if "client" in request.path_params:
            self._named(request)
        return JSONResponse({"name": self.name, "ready": True})


def _place(origin: str) -> str:
    """The host and port of an Origin header; empty where it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


@cache
def page(name: str, tokens: bool) -> str:
    """The page as one file without anything from elsewhere."""
    text = (Path(__file__).parent / "page.html").read_text()
    return text.replace('"{{name}}"', json.dumps(name)).replace('"{{tokens}}"', json.dumps(tokens))
