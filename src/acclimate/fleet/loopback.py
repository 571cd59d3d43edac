"""A fleet on one machine: a SuperLink and its SuperNodes as processes, over TLS, with keys that nodes must prove.

`up` writes fleet.json before the first process starts and after each one, so that `down` always knows what to stop: a
process is stopped only if its number and its start time are those that were recorded.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..store import RunError, read_json, write
from . import admin, audit, guard, keys, registry
from .app_folder import write_app, write_guards, write_superexec
from .local_processes import LONGER, Process, check_port, free_ports, listening, start_seconds, started, stop

SCHEMA = "acclimate.fleet/1"
RECORD = "fleet.json"
JOINED = "SuperNode ID:"
"""A node prints this when the link has accepted it."""
CONNECTION = "fleet"
"""The name of the SuperLink in the fleet's own Flower configuration."""


@dataclass(frozen=True)
class Fleet:
    """A fleet that `up` started: its folder and its processes. It is saved as fleet.json in that folder."""

    folder: Path
    port: int
    nodes: int
    processes: tuple[Process, ...] = ()
    ports: tuple[int, ...] = ()
    """The port of each node's own process interface; on this machine only."""
    via: int | None = None
    """The port at which nodes reach the link, where a relay lies between them; None: the link's own port."""

    def save(self) -> None:
        """Write fleet.json."""
        body = {"schema": SCHEMA, **asdict(self), "folder": str(self.folder)}
        write(self.folder / RECORD, json.dumps(body, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Fleet:
        """The fleet whose record is in this folder."""
        path = folder / RECORD
        if not path.exists():
            before = len(list((folder / "sites").glob("[0-9]*")))
            why = "the fleet there was stopped" if before else "no fleet was started there"
            named = f" {shlex.quote(str(folder))}" if before else ""
            command = f"`acclimate fleet up{named} --clients {before or 2}`"
            raise RunError(f"{path} does not exist: {why}; {'start it again with' if before else 'try'} {command}")
        body = read_json(path)
        if body.get("schema") != SCHEMA:
            raise RunError(f"{path}: schema={body.get('schema')!r} must be '{SCHEMA}'")
        processes = tuple(Process(**p) for p in body["processes"])
        return cls(folder.absolute(), body["port"], body["nodes"], processes, tuple(body["ports"]), body["via"])

    @property
    def secrets(self) -> Path:
        """Certificates and keys."""
        return self.folder / "keys"

    @property
    def members(self) -> Path:
        """Which key owns which clients."""
        return self.folder / "members"

    @property
    def app(self) -> Path:
        """The Flower app that runs are submitted with."""
        return self.folder / "app"

    @property
    def bin(self) -> Path:
        """Programs that nodes find before Flower's own."""
        return self.folder / "bin"

    @property
    def link_bin(self) -> Path:
        """Programs that the link finds before Flower's own."""
        return self.folder / "link-bin"

    def site(self, node: int) -> Path:
        """The folder in which a node keeps private states and live models, which never leave it."""
        return self.folder / "sites" / f"{node:03d}"

    def log(self, name: str) -> Path:
        """The file with the output of a process of the fleet."""
        return self.folder / "logs" / f"{name}.log"

    def process(self, name: str) -> Process:
        """The newest process of this name: `link`, or `node-000`."""
        found = [p for p in self.processes if p.name == name]
        if not found:
            raise RunError(f"the fleet in {self.folder} has no process '{name}'")
        return found[-1]

    def environment(self, node: bool = False) -> dict[str, str]:
        """The environment of the fleet's processes: Flower's home is the fleet's, and nothing is reported to anyone."""
        tools = [str(self.bin if node else self.link_bin), str(Path(sys.executable).parent)]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*tools, os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "flower"),
            guard.VARIABLE: str(self.secrets / guard.LIST),
            guard.LOG: str(self.secrets / audit.AUDIT),
            **({} if node else {admin.VARIABLE: str(self.secrets / admin.KEY)}),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # nodes share this machine's cores
        }

    def status(self) -> list[tuple[str, int, bool]]:
        """Name, process number and whether it runs, of every process."""
        return [(p.name, p.pid, p.alive) for p in self.processes]

    @property
    def running(self) -> bool:
        """Whether the link and all nodes run."""
        names = ["link", *(node_name(k) for k in range(self.nodes))]
        return bool(self.processes) and all(self.process(n).alive for n in names)


def node_name(node: int) -> str:
    """The name of a node's process."""
    return f"node-{node:03d}"


def up(folder: Path, nodes: int, port: int | None = None, via: int | None = None) -> Fleet:
    """Start a SuperLink and `nodes` SuperNodes on this machine; returns when all nodes have joined."""
    if nodes < 1:
        raise ValueError(f"clients={nodes} must be at least 1")
    if port is not None:
        check_port(port)
    require_flower()
    folder = folder.absolute()
    if (folder / RECORD).exists():
        old = Fleet.load(folder)
        if any(p.alive for p in old.processes):
            raise RunError(f"a fleet is already up in {folder}; stop it with `acclimate fleet down {folder}`")
    free = free_ports(nodes + (port is None))
    fleet = Fleet(folder, port if port is not None else free.pop(), nodes, (), tuple(free), via)
    fleet.save()
    try:
        return _start(fleet)
    except BaseException:
        down(folder)
        raise


def _start(fleet: Fleet) -> Fleet:
    prepare(fleet)
    fleet = start(fleet, "link", link_command(fleet))
    wait(lambda: listening(fleet.port), fleet, "link", f"the SuperLink did not open port {fleet.port}")
    for k in range(fleet.nodes):
        key = str(node_key(fleet, k).public)
        said = flwr(fleet, "supernode", "register", key, CONNECTION, "--name", node_name(k), "--format", "json")
        registry.parsed(said, "`flwr supernode register`")
        write(fleet.members / f"{node_name(k)}.json", said)
        fleet = start_node(fleet, k)
    for k in range(fleet.nodes):
        wait(functools.partial(joined, fleet, k), fleet, node_name(k), f"{node_name(k)} did not join")
    return fleet


def prepare(fleet: Fleet) -> None:
    """Write keys, certificates, the app and Flower's own configuration, all below the fleet's folder."""
    for old in (fleet.secrets, fleet.members, fleet.folder / "logs"):
        shutil.rmtree(old, ignore_errors=True)
    fleet.secrets.mkdir(parents=True)
    os.chmod(fleet.secrets, 0o700)
    ca = keys.make_ca(fleet.secrets)
    keys.make_certificate(fleet.secrets, "link", ca)
    keys.make_certificate(fleet.secrets, "node", ca)
    for k in range(fleet.nodes):
        keys.make_node_key(fleet.secrets, node_name(k))
        fleet.site(k).mkdir(parents=True, exist_ok=True)
        os.chmod(fleet.site(k), 0o700)
    prints = [registry.fingerprint(node_key(fleet, k).public) for k in range(fleet.nodes)]
    registry.write_members(fleet.members, [registry.KeyOwner(node_name(k), key) for k, key in enumerate(prints)])
    write_app(fleet.app, registry=str(fleet.members))
    keys.write_private(fleet.secrets / admin.KEY, os.urandom(32))
    guard.allow(fleet.secrets / guard.LIST, fleet.app)
    write_guards(fleet.link_bin)
    write_superexec(fleet.bin)
    connection = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
    connection += f'address = "127.0.0.1:{fleet.port}"\nroot-certificates = "{ca.public}"\n'
    write(fleet.folder / "flower" / "config.toml", connection)


def node_key(fleet: Fleet, node: int) -> keys.Pair:
    """The key pair of a node."""
    return keys.Pair(*(fleet.secrets / f"{node_name(node)}.{end}" for end in ("pub", "key")))


def link_command(fleet: Fleet) -> list[str]:
    """How the SuperLink is started: TLS, and nodes must prove a registered key."""
    secrets = fleet.secrets
    return [
        "flower-superlink",
        *("--ssl-ca-certfile", str(secrets / "ca.crt")),
        *("--ssl-certfile", str(secrets / "link.crt")),
        *("--ssl-keyfile", str(secrets / "link.key")),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        *("--host", "127.0.0.1"),
        *("--port", str(fleet.port)),
    ]


def node_command(fleet: Fleet, node: int) -> list[str]:
    """How a node is started. Its configuration is its number, the number of nodes, and the folder of its site."""
    secrets = fleet.secrets
    config = f'node={node} nodes={fleet.nodes} site="{fleet.site(node)}"'
    return [
        "flower-supernode",
        *("--superlink", f"127.0.0.1:{fleet.via or fleet.port}"),
        *("--root-certificates", str(secrets / "ca.crt")),
        *("--auth-supernode-private-key", str(node_key(fleet, node).private)),
        *("--ssl-ca-certfile", str(secrets / "ca.crt")),
        *("--ssl-certfile", str(secrets / "node.crt")),
        *("--ssl-keyfile", str(secrets / "node.key")),
        *("--port", str(fleet.ports[node])),
        *("--node-config", config),
    ]


def start_node(fleet: Fleet, node: int) -> Fleet:
    """Start one node, or start it again after its end."""
    return start(fleet, node_name(node), node_command(fleet, node), fleet.environment(node=True))


def rejoin(fleet: Fleet, node: int, seconds: float = 180.0) -> Fleet:
    """Start a node again after its end, until it is accepted.

    A link takes a node for connected until it has missed heartbeats for up to a minute, and until then refuses it.
    """
    fleet = Fleet.load(fleet.folder)  # somebody else may have started it since
    stop([fleet.process(node_name(node))])  # what is left of it would keep its port
    deadline = time.monotonic() + seconds
    while True:
        before = fleet.log(node_name(node)).read_text(errors="replace").count(JOINED)
        fleet = start_node(fleet, node)
        while fleet.process(node_name(node)).alive:
            if fleet.log(node_name(node)).read_text(errors="replace").count(JOINED) > before:
                return fleet
            time.sleep(0.2)
            if time.monotonic() > deadline:
                break
        if time.monotonic() > deadline:
            raise RunError(
                f"{node_name(node)} did not rejoin within {seconds:.0f} s:\n{tail(fleet.log(node_name(node)))}"
            )
        stop([fleet.process(node_name(node))])
        time.sleep(5)


def start(fleet: Fleet, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> Fleet:
    """Start a process in a session of its own, so that it can be stopped with those it starts; record it."""
    log = fleet.log(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).parent / command[0])
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(  # not subprocess, which warns where a process outlives its object
        program,
        [program, *command[1:]],
        environment or fleet.environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    kept = tuple(p for p in fleet.processes if p.name != name)
    new = replace(fleet, processes=(*kept, Process(name, pid, started(pid))))
    new.save()
    return new


def down(folder: Path) -> list[str]:
    """Stop the processes of the record that still run: nodes first, then the link. Returns their names."""
    fleet = Fleet.load(folder)
    order = [p for p in fleet.processes if p.family()]
    for group in ([p for p in order if p.name != "link"], [p for p in order if p.name == "link"]):
        stop(group)
    (fleet.folder / RECORD).unlink(missing_ok=True)
    return [p.name for p in order]


def flwr(fleet: Fleet, *arguments: str) -> str:
    """Run Flower's own command line against the fleet, at most `start_seconds()`. Returns its output."""
    seconds = start_seconds()
    command = [str(Path(sys.executable).parent / "flwr"), *arguments]
    try:
        done = subprocess.run(
            command, env=fleet.environment(), cwd=fleet.folder, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as e:
        raise RunError(f"`flwr {arguments[0]}` did not end within {seconds:.0f} s; {LONGER}") from e
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-500:]
        raise RunError(f"`flwr {' '.join(arguments[:2])}` failed: {output}")
    return done.stdout


def wait(ready: Callable[[], bool], fleet: Fleet, name: str, otherwise: str) -> None:
    """Wait until `ready()`, as long as the process lives, and at most `start_seconds()`."""
    deadline = time.monotonic() + start_seconds()
    while not ready():
        ended = not fleet.process(name).alive
        if ended or time.monotonic() > deadline:
            why = "it ended" if ended else f"within {start_seconds():.0f} s; {LONGER}"
            raise RunError(f"{otherwise} ({why}); its log ends with:\n{tail(fleet.log(name))}")
        time.sleep(0.1)


def joined(fleet: Fleet, node: int) -> bool:
    """Whether the link has accepted a node, by the node's log."""
    return JOINED in fleet.log(node_name(node)).read_text(errors="replace")


def tail(path: Path, lines: int = 8) -> str:
    """The end of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else "(nothing)"


def require_flower() -> Any:
    """Flower, or an error that says how to get it."""
    try:
        import flwr
    except ImportError as e:
        raise ImportError("the fleet needs Flower; install it with `pip install 'acclimate[flower]'`") from e
    return flwr
