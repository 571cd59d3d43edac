"""Ray clusters: importing Ray, connecting to a cluster or starting one, and how many actors fit on it."""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .ray import Ray

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


class Connection:
    """This process's connection to a cluster. There is one for all engines; the last of them ends what we began."""

    _users: ClassVar[int] = 0
    """Engines on a connection that was made here."""
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, options: Ray) -> None:
        with self._lock:
            ray = imported(local=options.address is None)
            if not ray.is_initialized():
                Connection._users = 0
                self._begin(ray, options)
                self.ours = True
            else:
                here = ray.get_runtime_context().gcs_address
                if options.address not in (None, "auto", here) and not str(options.address).startswith("ray://"):
                    raise ValueError(
                        f"Ray: address='{options.address}', but this process is connected to {here}; "
                        "close that connection first (ray.shutdown())"
                    )
                self.ours = Connection._users > 0
            Connection._users += self.ours

    def _begin(self, ray: Any, options: Ray) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if options.address is not None:
            ray.init(address=options.address, **quiet)
            return
        # For Ray, cores are tokens: more actors than there are cores must be able to start, if they were asked for.
        needed = math.ceil((options.actors or 0) * options.cpus)
        cores = max(needed, os.cpu_count() or 1) if needed else None
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        if not ray.get_runtime_context().gcs_address.startswith("127."):
            log.warning(
                "Ray was imported before this backend could tell it to listen on this machine alone: "
                "whoever reaches its ports over the network can run code here"
            )

    def end(self) -> None:
        """Disconnect, and end the cluster where it was started here, if no other engine is on it."""
        with self._lock:
            if not self.ours:
                return
            self.ours = False
            Connection._users -= 1
            if Connection._users == 0:
                imported().shutdown()


def room(options: Ray, resources: dict[str, float]) -> int:
    """How many actors fit."""
    by_cpu = int(resources.get("CPU", 0) / options.cpus + ROUNDING)
    return min(by_cpu, int(resources.get("GPU", 0) / options.gpus + ROUNDING)) if options.gpus else by_cpu


def offer(resources: dict[str, float]) -> str:
    """What a cluster has, in words."""
    return f"CPU={resources.get('CPU', 0):g}, GPU={resources.get('GPU', 0):g}"
