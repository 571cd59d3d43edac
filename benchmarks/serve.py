"""Serving live models: requests per second of many clients in one step against one client after the other.

A server process and a load of another process on the same machine: every client sends one sample, waits for the answer,
and sends the next. Tent adapts, with a window of 32 and without a guard. `--group 1` of the same server is one client
after the other; `live` calls the clients' live models in turn in this process, without any server.

    python benchmarks/serve.py [--seconds 10] [--kills 50] [--malformed 100000] [--samples 1000000]
    python benchmarks/serve.py --engine --clients 1000 --device cuda     the steps alone, without a server

With `--kills` the server is killed (SIGKILL) under load so often; with `--malformed` it gets so many requests that it
must refuse; with `--samples` one client sends so many, and the server's memory is read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import command, environment
from serving_load import Server, kills, malformed, memory, throughput

import acclimate as ac
from acclimate import store
from acclimate.live import Live
from acclimate.serving.host import Call, Host

MODELS = {
    "mlp": ac.models.MLP(norm="batch"),
    "cnn": ac.models.CNN(widths=(8, 16), hidden=32, kernel=3, norm="batch"),
}


def deployed(model: str, clients: int) -> tuple[list[Live], torch.Tensor]:
    """Live models, four of them trained and the others copies with numbers of their own; and samples."""
    work = ac.Work(epochs=1, batch=32)
    e = ac.Experiment(
        data=ac.data.Digits(clients=4), model=MODELS[model], method=ac.methods.FedAvg(work=work), rounds=2
    )
    fit = ac.train(e)
    four = [fit.deploy(c, ac.adapters.Tent(), guard=False) for c in range(4)]
    fit.engine.close()
    x = fit.world.examples.x[torch.cat([fit.world.test[c] for c in range(4)])]
    return [replace(four[c % 4], client=c, snapshots=four[0].snapshots.copy()) for c in range(clients)], x


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,cnn", help="of mlp, cnn; empty for none")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=0, help="torch's, in the server (default: half of the cores)")
    parser.add_argument("--engine", action="store_true", help="the steps alone, in this process")
    parser.add_argument("--device", default="cpu", help="of --engine")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--malformed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/live/serve.json"))
    given = parser.parse_args()
    record: dict[str, Any] = {
        "command": command(),
        "environment": environment(torch.device(given.device)),
        "clients": given.clients,
        "models": {name: measured(name, given) for name in given.models.split(",") if name},
    }
    lives, x = deployed("mlp", 4)
    with tempfile.TemporaryDirectory() as folder:
        for name, ask in (("kills", kills), ("malformed", malformed), ("memory", memory)):
            count = {"kills": given.kills, "malformed": given.malformed, "memory": given.samples}[name]
            if count:
                record[name] = ask(saved(lives, Path(folder) / name), x, count)
                print(f"{name}: {record[name]}", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    store.write(given.out, store.json_text(record, indent=1) + "\n")
    print(f"wrote {given.out}")


def measured(model: str, given: argparse.Namespace) -> dict[str, Any]:
    """The figures of one model."""
    lives, x = deployed(model, given.clients)
    row: dict[str, Any] = {"live": alone(lives, x, given.seconds)} if given.device == "cpu" else {}
    if given.engine:
        row["engine"] = engine(lives, x, given)
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = saved(lives, Path(folder) / "live")
            for name, group in (("grouped", 0), ("one by one", 1)):
                server = Server(place, "--group", str(group), folder=Path(folder) / name, threads=given.threads)
                row[name] = throughput(server, given.clients, x, given.seconds)
                server.stop()
        row["ratio"] = row["grouped"]["requests_per_second"] / row["one by one"]["requests_per_second"]
    print(f"{model}: {row}", flush=True)
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
