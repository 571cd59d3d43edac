"""Ray clusters: importing Ray, connecting to a cluster or starting one, and how many actors fit on it.

This module imports neither the backend (`ray`) nor the actors (`ray_actors`), which both use it.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from typing import Any, ClassVar, NamedTuple

log = logging.getLogger("acclimate")

LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name, and on every system: listen on loopback alone
    "RAY_worker_niceness": "0",  # clients are no background work
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; without it Ray warns
}
"""Environment of a cluster that is started here, where the user has not set it. Ray reads it when it is imported."""
ROUNDING = 1e-9
"""Ten actors with gpus=0.1 fit on a GPU, whatever 1 / 0.1 is in floating point."""


def imported(local: bool = False) -> Any:
    """The module `ray`; an error that says how to get it where it is not installed."""
    if local:
        for name, value in LOCAL.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ImportError("the backend Ray needs Ray; install it with `pip install 'acclimate[ray]'`") from error
    return ray


class Reservation(NamedTuple):
    """What every actor reserves of the cluster."""

    cpus: float
    gpus: float

    def fit(self, resources: dict[str, float]) -> int:
        """How many actors fit into so many resources."""
        by_cpu = int(resources.get("CPU", 0) / self.cpus + ROUNDING)
        return min(by_cpu, int(resources.get("GPU", 0) / self.gpus + ROUNDING)) if self.gpus else by_cpu

    def __str__(self) -> str:
        return f"cpus={self.cpus:g}, gpus={self.gpus:g}"


def described(resources: dict[str, float]) -> str:
    """The resources of a cluster, for error messages."""
    return f"CPU={resources.get('CPU', 0):g}, GPU={resources.get('GPU', 0):g}"


def _answer(handler: Any) -> None:
    """Let SIGTERM do what it did before Ray, which sets its own in the main thread alone, as Python allows."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


class Connection:
    """This process's connection to a cluster. All engines share it; the last of them ends a connection made here.

    `cores` is how many cores the actors will need where a cluster is started here: for Ray, cores are tokens, and
    more actors than there are cores must be able to start, if the user asks for them.
    """

    _users: ClassVar[int] = 0
    """How many engines use a connection that was made here."""
    _lock: ClassVar[threading.RLock] = threading.RLock()
    _asked: ClassVar[Any] = None
    """What SIGTERM did before Ray was started here: Ray sets an answer of its own, and keeps it when it ends."""

    def __init__(self, address: str | None = None, cores: float = 0) -> None:
        with self._lock:
            ray = imported(local=address is None)
            if not ray.is_initialized():
                Connection._users = 0
                Connection._asked = signal.getsignal(signal.SIGTERM)
                self._begin(ray, address, cores)
                if callable(Connection._asked):  # the program's own way to end; without one, Ray's ends its cluster
                    _answer(Connection._asked)
                self.ours = True
            else:
                here = ray.get_runtime_context().gcs_address
                if address not in (None, "auto", here) and not str(address).startswith("ray://"):
                    raise ValueError(
                        f"Ray: address='{address}', but this process is connected to {here}; "
                        "close that connection first (ray.shutdown())"
                    )
                self.ours = Connection._users > 0
            Connection._users += self.ours

    def _begin(self, ray: Any, address: str | None, cores: float) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if address is not None:
            log.warning("connecting to the Ray cluster at %s, which may take half a minute", address)
            ray.init(address=address, **quiet)
            return
        log.warning("starting Ray on this machine, which may take half a minute")
        needed = max(math.ceil(cores), os.cpu_count() or 1) if cores else None
        ray.init(address="local", num_cpus=needed, include_dashboard=False, **quiet)
        if not ray.get_runtime_context().gcs_address.startswith("127."):
            log.warning(
                "Ray was imported before this backend could tell it to listen on this machine alone: "
                "whoever reaches its ports over the network can run code here"
            )

    def end(self) -> None:
        """Disconnect, and end a cluster that was started here, if no other engine uses it."""
        with self._lock:
            if not self.ours:
                return
            self.ours = False
            Connection._users -= 1
            if Connection._users == 0:
                imported().shutdown()
                _answer(Connection._asked)
