"""What a network costs: seconds per round of Flower against Serial for the same work, and bytes on the wire.

Starts a fleet of two nodes on this machine, with a counter between the nodes and the link, trains the same experiment
on both backends, and writes results/fleet/overhead.json. Nodes ask for messages every three seconds, which is most of
a round's overhead on an idle machine; on two busy cores it is several times that, which is why the load is written
beside it.

    python benchmarks/fleet.py [--rounds 4] [--out results/fleet/overhead.json]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import command

from acclimate import store
from acclimate.backends import Serial
from acclimate.backends.flower.engine import Flower
from acclimate.core import State
from acclimate.experiment import Experiment
from acclimate.experiment.settings import expand
from acclimate.fleet import launch, local_processes, loopback
from acclimate.running import run as api
from acclimate.running.watch import Watch

NODES, CLIENTS = 2, 4


class Counter:
    """Passes bytes on between nodes and the link, and counts them. TLS goes through unopened."""

    def __init__(self, port: int, to: int) -> None:
        self.to, self.up, self.down = to, 0, 0
        self._door = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                node, _ = self._door.accept()
                link = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            for source, sink, name in ((node, link, "up"), (link, node, "down")):
                threading.Thread(target=self._pass, args=(source, sink, name), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
                setattr(self, name, getattr(self, name) + len(data))
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        """Let no more connections in."""
        self._door.close()


class Meter(Watch):
    """The counter's state after every round."""

    def __init__(self, counter: Counter) -> None:
        self.counter, self.seen = counter, list[tuple[int, int]]()

    def round(self, state: State) -> None:
        self.seen.append((self.counter.up, self.counter.down))

    def per_round(self) -> dict[str, float]:
        """Medians over the rounds but the first, which includes introductions, and the last, which includes tests."""
        steps = list(zip(self.seen[:-1], self.seen[1:-1], strict=False))
        return {
            "up": statistics.median(b[0] - a[0] for a, b in steps),
            "down": statistics.median(b[1] - a[1] for a, b in steps),
        }


def experiment(rounds: int) -> Experiment:
    """FedAvg on digits with a two-layer perceptron: a message of about 0.8 MB."""
    settings = ["method=fedavg", "model=mlp", f"data.clients={CLIENTS}", "adapters=none", "streams=original"]
    (made,) = expand([*settings, f"rounds={rounds}", f"eval_every={rounds}", "device=cpu"])
    return made


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """Both backends, one after the other."""
    e = experiment(rounds)
    api.run(replace(e, backend=Serial()), folder / "serial")
    via, port = local_processes.free_ports(2)
    counter = Counter(via, port)
    fleet = loopback.up(folder / "fleet", NODES, port, via)
    try:
        run = store.RunFolder.create(folder / "run", replace(e, backend=Flower()), torch.device("cpu"))
        meter = Meter(counter)
        launch.finish(run.path, meter, fleet)
    finally:
        loopback.down(fleet.folder)
        counter.close()
    return summary(folder, meter, rounds)


def summary(folder: Path, meter: Meter, rounds: int) -> dict[str, Any]:
    """The figures, from the run folders and the counter."""
    serial, flower = (store.RunFolder(folder / name).load() for name in ("serial", "run"))
    seconds = {n: r["results"]["timings"]["round_seconds_median"] for n, r in (("serial", serial), ("flower", flower))}
    cost, wire = flower["results"]["cost"], meter.per_round()
    # every client's message travels by itself; the model travels once to each node, which hosts several clients
    own = {"up": cost["up_bytes_per_client"] * CLIENTS, "down": cost["down_bytes_per_client"] * NODES}
    return {
        "what": "FedAvg, digits, two-layer perceptron; medians over rounds without tests",
        "nodes": NODES,
        "clients": CLIENTS,
        "rounds": rounds,
        "seconds_per_round": seconds,
        "seconds_over_serial": round(seconds["flower"] - seconds["serial"], 3),
        "message_bytes_per_round": own,
        "wire_bytes_per_round": wire,
        "wire_over_message": {name: round(wire[name] / own[name], 4) for name in own},
        "same_accuracy": flower["results"]["table"][0]["accuracy"] == serial["results"]["table"][0]["accuracy"],
        "faults": len(flower["results"]["faults"]),
        "cores": os.cpu_count(),
        "load_average": [round(x, 1) for x in os.getloadavg()],
        "command": command(),
        "env": flower["env"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=4, help="at least 3")
    parser.add_argument("--out", type=Path, default=Path("results/fleet/overhead.json"))
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(max(given.rounds, 3), Path(folder))
    store.write(given.out, json.dumps(found, indent=2) + "\n")
    print(json.dumps({k: found[k] for k in ("seconds_per_round", "wire_over_message", "load_average")}))


if __name__ == "__main__":
    main()
