"""A fleet of real processes without Flower: a server, a link that passes messages on, and nodes, over Unix sockets.

The server is the run loop with the fleet's engine, and a node is a `Site` with its vault. Only the transport is this
file's. Processes are forked from one that has torch in memory, so that they start quickly; they end with it. Needs
torch, numpy and safetensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from acclimate import store
from acclimate.backends.flower.checks import checked_fields
from acclimate.backends.flower.protocol import LINK, NodeAnswer, Parcel, Request, branches, rebuilt
from acclimate.core import Fault, Tree, tree
from acclimate.experiment import Experiment, encode
from acclimate.fleet.site import Place, Site
from acclimate.fleet.vault import Vault
from acclimate.running import run as api
from acclimate.running.watch import Watch

BROKEN = (OSError, EOFError)
PAUSE = 0.02
PACE = 0.25
"""Seconds that a node takes longer for a round than it must, so that faults meet rounds also on quick machines."""
DIE_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG."""

# --- frames ---------------------------------------------------------------------------------------------------------


def send(to: socket.socket, head: Mapping[str, Any], trees: Mapping[str, Tree] | None = None) -> None:
    """One frame: lengths, JSON, tensors."""
    flat = {f"{n}/{k}": v.detach().contiguous().clone() for n, t in (trees or {}).items() for k, v in names(t).items()}
    text = json.dumps({**head, "branches": {n: branches(t) for n, t in (trees or {}).items()}}).encode()
    body = save(flat) if flat else b""
    to.sendall(struct.pack("<II", len(text), len(body)) + text + body)


def names(value: Tree) -> dict[str, torch.Tensor]:
    return tree.flatten(value)


def exactly(come: socket.socket, count: int) -> bytes:
    out = b""
    while len(out) < count:
        if not (part := come.recv(min(count - len(out), 1 << 20))):
            raise EOFError
        out += part
    return out


def frame(come: socket.socket) -> tuple[dict[str, Any], bytes]:
    text, body = struct.unpack("<II", exactly(come, 8))
    return json.loads(exactly(come, text)), exactly(come, body)


def trees_of(head: Mapping[str, Any], body: bytes) -> dict[str, Tree]:
    flat = load(body) if body else {}
    return {
        n: rebuilt(shape, {k.removeprefix(f"{n}/"): v for k, v in flat.items() if k.startswith(f"{n}/")})
        for n, shape in head["branches"].items()
    }


def connected(path: Path, role: Mapping[str, Any], seconds: float) -> socket.socket:
    """A connection to the link, which may be away for a while."""
    end = time.monotonic() + seconds
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(str(path))
            send(s, role)
            return s
        except OSError:
            s.close()
            if time.monotonic() > end:
                raise
            time.sleep(PAUSE)


# --- the three kinds of processes -----------------------------------------------------------------------------------


def link_process(path: Path) -> None:
    """Passes frames on between the server and its nodes; tells the server who is there whenever that changes."""
    path.unlink(missing_ok=True)
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(path))
    door.listen(64)
    lock, nodes, servers = threading.Lock(), dict[int, socket.socket](), list[socket.socket]()

    def raw(to: socket.socket, head: Mapping[str, Any], body: bytes = b"") -> None:
        text = json.dumps(head).encode()
        with contextlib.suppress(OSError):
            to.sendall(struct.pack("<II", len(text), len(body)) + text + body)

    def tell() -> None:
        if servers:
            raw(servers[-1], {"nodes": sorted(nodes)})

    def serve(s: socket.socket) -> None:
        number = None
        with contextlib.suppress(*BROKEN):
            role, _ = frame(s)
            number = role.get("node")
            with lock:
                if number is None:
                    servers.append(s)
                else:
                    nodes[number] = s
                tell()
            while True:
                head, body = frame(s)
                with lock:
                    to = nodes.get(head["to"]) if "to" in head else servers[-1] if servers else None
                    if to is not None:
                        raw(to, head, body)
                    if "to" in head and to is None:
                        tell()
        with lock:
            if number is not None and nodes.get(number) is s:
                del nodes[number]
            tell()

    while True:
        come, _ = door.accept()
        threading.Thread(target=serve, args=(come,), daemon=True).start()


def node_process(path: Path, folder: Path, e: Experiment, node: int, nodes: int) -> None:
    """Answers requests for its clients. What it keeps lies in its folder, as a site's does."""
    place = Place(node, nodes, folder)
    site = Site(place, e, "run", Vault(folder / "runs" / "run"))
    while True:
        with contextlib.suppress(*BROKEN), connected(path, {"node": node}, 3600) as s:
            while True:
                head, body = frame(s)
                if head["until"] < time.time():
                    continue  # as Flower's messages expire: a late node does not work for nothing
                about = {"reply": head["id"], "node": node}
                time.sleep(PACE if head["kind"] == "train" else 0.0)
                try:
                    trees, fields = site.answer(head["kind"], trees_of(head, body), head["fields"])
                except Exception as error:
                    send(s, {**about, "fields": {}, "error": str(error)})
                else:
                    send(s, {**about, "fields": fields, "error": None}, trees)


class ProcessLink:
    """The server's way to nodes that are processes of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keep: Sequence[Tree] = ()
        self.stream_names: Mapping[str, str] = {}
        self.refused: list[Fault] = []
        self.barred: dict[int, str] = {}
        self._socket: socket.socket | None = None
        self._there: list[int] = []
        self._count = 0

    def owned(self, node: int, clients: int) -> list[int] | None:
        return None

    def bar(self, client: int, reason: str) -> None:
        self.barred[client] = reason

    def log(self, text: str) -> None:
        print(text, flush=True)

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, PAUSE))

    def nodes(self) -> list[int]:
        for _ in self._frames(time.monotonic() + PAUSE):
            pass
        return self._there

    def exchange(self, requests: Sequence[Request], seconds: float, group: str) -> list[NodeAnswer]:
        end, waiting, out = time.monotonic() + seconds, {}, []
        for r in requests:
            self._count += 1
            name = f"{os.getpid()}.{self._count}"
            fields = {k: v if isinstance(v, dict) else encode(v) for k, v in r.fields.items()}
            with contextlib.suppress(*BROKEN):
                head = {"to": r.node, "id": name, "kind": r.kind, "fields": fields, "until": time.time() + seconds}
                send(self._open(), head, r.trees)
                waiting[name] = r.node
        for head, body in self._frames(end):
            if head.get("reply") in waiting:
                out.append(self._answer(waiting.pop(head["reply"]), head, body))
            waiting = {n: node for n, node in waiting.items() if node in self._there}
            if not waiting:
                break
        return out

    def _answer(self, node: int, head: Mapping[str, Any], body: bytes) -> NodeAnswer:
        if head["error"] is not None:
            return NodeAnswer(node, {}, {}, head["error"])
        parcels = {
            n: Parcel(tree.nbytes(t) if tree.leaves(t) else 0, lambda t=t: t) for n, t in trees_of(head, body).items()
        }
        return NodeAnswer(node, parcels, checked_fields(head["fields"]))

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._socket = connected(self.path, {"server": True}, 5.0)
        return self._socket

    def _frames(self, end: float) -> Iterator[tuple[dict[str, Any], bytes]]:
        """What comes until the time is up. A link that broke is opened again; what was under way is lost."""
        while (left := end - time.monotonic()) > 0:
            try:
                s = self._open()
                s.settimeout(left)
                first = s.recv(1, socket.MSG_PEEK)
                s.settimeout(30.0)  # the rest of a frame is under way
                if not first:
                    raise EOFError
                head, body = frame(s)
            except TimeoutError:
                return
            except BROKEN:
                self._socket, self._there = None, []
                yield {}, b""
                time.sleep(PAUSE)
                continue
            self._there = head.get("nodes", self._there)
            yield head, body


class Keeping(Watch):
    """Notes which private states the run may still come back to, as the fleet's ServerApp does."""

    def __init__(self, folder: Path, link: ProcessLink) -> None:
        self.folder, self.link = store.RunFolder(folder), link
        link.keep = self.saved()

    def saved(self) -> list[Tree]:
        if not self.folder.state.exists():
            return []
        flat = store.read_tensors(self.folder.state)[1]
        return [{"version": flat[n]} for n in ("mine/version", "best_mine/version") if n in flat]

    def round(self, state: Any) -> None:
        self.link.keep = [*self.saved(), state.mine.saved()]


def server_process(path: Path, folder: Path) -> None:
    """Goes on with the run in a folder, to its end."""
    link = ProcessLink(path)
    LINK.set(link)
    api.resume(folder, Keeping(folder, link))


# --- starting and ending them ---------------------------------------------------------------------------------------


class Processes:
    """The processes of one fleet, by name: `link`, `server`, `node0` ..."""

    def __init__(self, folder: Path, e: Experiment, nodes: int) -> None:
        self.folder, self.e, self.nodes = folder, e, nodes
        self.pids: dict[str, int] = {}
        self.run = folder / "run"

    def start(self, name: str) -> None:
        socket_path = self.folder / "link.socket"
        work: Callable[[], None]
        if name == "link":
            work = lambda: link_process(socket_path)  # noqa: E731
        elif name == "server":
            work = lambda: server_process(socket_path, self.run)  # noqa: E731
        else:
            k = int(name.removeprefix("node"))
            work = lambda: node_process(socket_path, self.folder / f"site{k}", self.e, k, self.nodes)  # noqa: E731
        if (pid := os.fork()) == 0:
            _child(work, self.folder / f"{name}.log")
        self.pids[name] = pid

    def start_all(self) -> None:
        for name in ("link", *(f"node{k}" for k in range(self.nodes)), "server"):
            self.start(name)

    def kill(self, name: str) -> None:
        """End it at once, whatever it does; returns when it is gone."""
        os.kill(self.pids[name], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pids[name], 0)
        del self.pids[name]

    def ended_now(self, name: str) -> bool:
        """Whether it has ended by itself; its status can still be asked for."""
        return os.waitid(os.P_PID, self.pids[name], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def ended(self, name: str) -> int | None:
        """The status of a process that has ended by itself; None while it runs."""
        pid, status = os.waitpid(self.pids[name], os.WNOHANG)
        if not pid:
            return None
        del self.pids[name]
        return os.waitstatus_to_exitcode(status)

    def kill_all(self) -> None:
        for name in list(self.pids):
            self.kill(name)


def _child(work: Callable[[], None], log: Path) -> None:
    code = 1
    try:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)
