"""The same Tent models behind LitServe, as its user would write it: clients' states in a dict behind one endpoint.

Each state is a live model of this library, so that both servers compute the same for a request. The peer keeps no log
and forgets its states when it stops. Its server process is benchmarks/serving_litserve.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import torch
from serving_load import cpu_seconds, http

HOW = "--peer litserve: litserve is not installed; it is no part of acclimate: pip install litserve"


def there() -> bool:
    """Whether the peer can be imported."""
    return importlib.util.find_spec("litserve") is not None


def ask(client: int, x: torch.Tensor) -> bytes:
    """A request to the peer; raw bytes in JSON are numbers, as its users send them."""
    body = {"client": client, "shape": list(x.shape), "data": x.flatten().tolist()}
    return http("/predict", json.dumps(body).encode(), "Content-Type: application/json\r\n")


class Peer:
    """A LitServe process of live folders."""

    def __init__(self, place: Path, threads: int = 0) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads or max(1, (os.cpu_count() or 2) // 2))}
        command = [sys.executable, str(Path(__file__).with_name("serving_litserve.py")), str(place), str(self.port)]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": env}
        self.process = subprocess.Popen(command, start_new_session=True, **quiet)
        until = time.monotonic() + 120
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"the peer did not start; try: {' '.join(command)}")
            time.sleep(0.2)

    def _healthy(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (URLError, OSError):
            return False

    def cpu_seconds(self) -> float:
        """Seconds of processor time of all its processes so far, which are those of its session."""
        total = 0.0
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getsid(int(place.name)) == self.process.pid:
                    total += cpu_seconds(place.name)
        return total

    def stop(self) -> None:
        """End it and its workers, which are all of its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
