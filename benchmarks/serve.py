"""Serving live models: requests per second of many clients in one step against one client after the other.

A server process and a load of another process on the same machine: every client sends one sample, waits for the answer,
and sends the next. Tent adapts, with a window of 32, full from the start, and without a guard. `--group 1` of the same
server is one client after the other; `live` calls the clients' live models in turn in this process, without a server.
The servers that are compared run at the same time, and are asked in turns.

    python benchmarks/serve.py [--seconds 10] [--clients 100]              requests per second
    python benchmarks/serve.py --peer litserve                             the same beside LitServe, in one run
    python benchmarks/serve.py --kills 1000 --real 50                      restarts under load, so many by SIGKILL
    python benchmarks/serve.py --samples 1000000                           the server's memory
    python benchmarks/serve.py --malformed 100000                          requests that must be refused
    python benchmarks/serve.py --engine --clients 1000 --device cuda       the steps alone, without a server

Each writes its part of one file, with the command and where it ran, and leaves the others there. `--quick` makes
everything small, to see that it runs. Needs torch, numpy, safetensors, typer and the extra `serve`, nothing else;
LitServe where it is asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import OrderedDict
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import serving_peer
import torch
from harness import environment, parser_of, write
from serving_kills import processes, within
from serving_load import Server, in_turns, infer, malformed, memory

import acclimate as ac
from acclimate.live import Live
from acclimate.live.model import WINDOW
from acclimate.ops.devices import device_of
from acclimate.serving.host import Call, Host

MODELS = {
    "mlp": ac.models.MLP(norm="batch"),
    "cnn": ac.models.CNN(widths=(8, 16), hidden=32, kernel=3, norm="batch"),
    "tiny": ac.models.MLP(hidden=(12,), norm="batch"),
}
PARTS = ("throughput", "engine", "peer", "kills", "malformed", "memory")


def deployed(model: str, clients: int, met: int = 0) -> tuple[list[Live], torch.Tensor]:
    """Live models, four of them trained and the others copies with numbers of their own; and samples.

    They have met so many samples, and some of them a few more, so that they commit in turn.
    """
    work = ac.Work(epochs=1, batch=32)
    e = ac.Experiment(
        data=ac.data.Digits(clients=4), model=MODELS[model], method=ac.methods.FedAvg(work=work), rounds=2
    )
    fit = ac.train(e)
    four = [fit.deploy(c, ac.adapters.Tent(), guard=False) for c in range(4)]
    fit.engine.close()
    x = fit.world.examples.x[torch.cat([fit.world.test[c] for c in range(4)])]
    for c, live in enumerate(four if met else ()):
        live(x[: met + 8 * c])
    copies = [replace(four[c % 4], client=c, snapshots=four[c % 4].snapshots.copy()) for c in range(clients)]
    return [replace(live, recent=OrderedDict()) for live in copies], x


def main() -> None:
    """Measure what is asked for, print, write."""
    given = arguments()
    asked = {"peer": given.peer, "kills": given.kills, "malformed": given.malformed, "memory": given.samples}
    parts = [name for name in PARTS if asked.get(name)]
    if given.engine or not parts:
        parts.insert(0, "engine" if given.engine else "throughput")
    if given.peer and not serving_peer.there():
        raise SystemExit(serving_peer.HOW)
    for name in parts:
        found = PART_OF[name](given)
        print(f"{name}: {found}", flush=True)
        merge(given.out, name, {**found, "environment": where(given)})
    print(f"wrote {given.out}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--models", default="mlp,cnn", help="of mlp, cnn, tiny")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=0, help="torch's, in the server (default: half of the cores)")
    parser.add_argument("--engine", action="store_true", help="the steps alone, in this process")
    parser.add_argument("--device", default="cpu", help="of --engine")
    parser.add_argument("--peer", choices=["litserve"])
    parser.add_argument("--kills", type=int, default=0, help="restarts in all")
    parser.add_argument("--real", type=int, default=None, help="of them by SIGKILL of a process (default: all)")
    parser.add_argument("--malformed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("results/live/serve.json"))
    given = parser.parse_args()
    if given.quick:
        given.models, given.clients, given.seconds = "tiny", min(given.clients, 3), min(given.seconds, 0.3)
        for name, most in {"kills": 6, "samples": 2000, "malformed": 80}.items():
            setattr(given, name, min(getattr(given, name), most))
    given.real = given.kills if given.real is None else min(given.real, given.kills)
    return given


def where(given: argparse.Namespace) -> dict[str, Any]:
    """Command, commit, versions, device and cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {**environment(device_of(given.device, "--device ")), "cores": cores}


def merge(out: Path, name: str, found: dict[str, Any]) -> None:
    """Put one part into the file, beside the others that are there."""
    there = json.loads(out.read_text()) if out.exists() else {}
    kept = {k: v for k, v in there.items() if k in PARTS and "environment" in v}
    write(out, {**kept, name: found})


def measure_throughput(given: argparse.Namespace) -> dict[str, Any]:
    """All clients in one step against one client after the other, per model."""
    return {"clients": given.clients, "models": {name: measured(name, given) for name in given.models.split(",")}}


def measure_engine(given: argparse.Namespace) -> dict[str, Any]:
    """The same without a server, per model."""
    rows = {name: engine(*deployed(name, given.clients, WINDOW), given) for name in given.models.split(",")}
    return {"clients": given.clients, "models": rows}


def measure_peer(given: argparse.Namespace) -> dict[str, Any]:
    """Requests per second and latencies of both servers, for one client and for many, per model."""
    rows: dict[str, Any] = {}
    for name in given.models.split(","):
        lives, x = deployed(name, given.clients, WINDOW)
        with tempfile.TemporaryDirectory() as folder:
            place = saved(lives, Path(folder) / "live")
            for count in (1, given.clients):
                row = rows.setdefault(name, {}).setdefault(str(count), {})
                peer = serving_peer.Peer(place, given.threads)
                try:
                    server = Server(place, folder=Path(folder) / f"acclimate-{count}", threads=given.threads)
                    sides = {"acclimate": (server, infer), given.peer: (peer, serving_peer.ask)}
                    row |= in_turns(sides, count, x, given.seconds)
                    server.stop()
                finally:
                    peer.stop()
    return {"peer": given.peer, "version": version(given.peer), "clients": given.clients, "models": rows}


def measure_kills(given: argparse.Namespace) -> dict[str, Any]:
    """Restarts under load: of a service in this process, and of server processes."""
    lives, x = deployed("tiny", 4)
    found: dict[str, Any] = {"kills": given.kills, "real": given.real}
    with tempfile.TemporaryDirectory() as folder:
        if given.kills > given.real:
            found["in_process"] = within(lives, x, Path(folder) / "within", given.kills - given.real)
        if given.real:
            found["by_sigkill"] = processes(saved(lives, Path(folder) / "live"), x, given.real)
    return found


def measure_malformed(given: argparse.Namespace) -> dict[str, Any]:
    """Requests that must be refused."""
    lives, x = deployed("tiny", 4)
    with tempfile.TemporaryDirectory() as folder:
        return malformed(saved(lives, Path(folder) / "live"), x, given.malformed)


def measure_memory(given: argparse.Namespace) -> dict[str, Any]:
    """The server's memory over so many samples of one client."""
    lives, x = deployed("tiny", 4)
    with tempfile.TemporaryDirectory() as folder:
        return memory(saved(lives, Path(folder) / "live"), x, given.samples)


PART_OF = {
    "throughput": measure_throughput,
    "engine": measure_engine,
    "peer": measure_peer,
    "kills": measure_kills,
    "malformed": measure_malformed,
    "memory": measure_memory,
}


def measured(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one model."""
    lives, x = deployed(model, given.clients, WINDOW)
    row: dict[str, Any] = {"live": alone(lives, x, given.seconds)}
    with tempfile.TemporaryDirectory() as folder:
        place = saved(lives, Path(folder) / "live")
        servers = {
            name: Server(place, "--group", group, folder=Path(folder) / name, threads=given.threads)
            for name, group in (("grouped", "0"), ("one by one", "1"))
        }
        sides = {name: (server, infer) for name, server in servers.items()}
        row |= in_turns(sides, given.clients, x, given.seconds)
        for server in servers.values():
            server.stop()
    row["ratio"] = row["grouped"]["requests_per_second"] / row["one by one"]["requests_per_second"]
    row["cpu_ratio"] = row["one by one"]["cpu_ms_per_request"] / row["grouped"]["cpu_ms_per_request"]
    return row


def saved(lives: list[Live], place: Path) -> Path:
    """The live models as folders."""
    for live in lives:
        live.save(place / f"client-{live.client}")
    return place


def alone(lives: list[Live], x: torch.Tensor, seconds: float) -> dict[str, float]:
    """Live models called in turn, one sample each."""
    some = [replace(live, snapshots=live.snapshots.copy(), recent=live.recent.copy()) for live in lives[:20]]
    for live in some[:2]:
        live(x[:1])
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds / 2:
        some[count % len(some)](x[count % len(x)][None])
        count += 1
    return {"requests_per_second": count / (time.perf_counter() - began)}


def engine(lives: list[Live], x: torch.Tensor, given: argparse.Namespace) -> dict[str, Any]:
    """Steps of all clients at once and of one after the other, without HTTP and log."""
    host, out = Host(lives, given.device), {}
    for name, many in (("grouped", len(lives)), ("one by one", 1)):
        times: list[float] = []
        began = time.perf_counter()
        while time.perf_counter() - began < given.seconds or len(times) < 40:
            first = (len(times) * many) % len(lives)
            calls = [Call(first + c, x[(len(times) + c) % len(x)][None]) for c in range(many)]
            at = time.perf_counter()
            host(calls)
            times.append(time.perf_counter() - at)
        steady = times[3:]
        median = sorted(steady)[len(steady) // 2]
        out[name] = {"requests_per_second": many / median, "step_ms": median * 1e3, "steps": len(times)}
    ratio = out["grouped"]["requests_per_second"] / out["one by one"]["requests_per_second"]
    return {**out, "ratio": ratio, "captured": len(host.recorder.recorded)}


if __name__ == "__main__":
    main()
