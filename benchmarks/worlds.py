"""How long BRFL on CIFAR-10 takes to build, the first time and from the cache, and how much memory it needs.

    ACCLIMATE_DATA=... python benchmarks/worlds.py

Each of the two builds runs in a process of its own with an empty, then a filled cache.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time


def build() -> dict[str, float]:
    """One build of the world and its streams: seconds and peak memory of this process."""
    import acclimate as ac
    from acclimate.core import rng

    ac.data.CIFAR10()  # imports are not what is measured
    began = time.perf_counter()
    world = ac.data.CIFAR10(clients=20).world(0)
    key = rng.fold(rng.key(0), "streams")
    samples = sum(int(s.build(world, key).shards.n.sum()) for s in ac.shifts.brfl())
    card = world.card()
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "clients": card["clients"],
        "samples_in_streams": samples,
    }


def main() -> None:
    """Print both builds as JSON lines."""
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(build()))
        return
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "cached"):
            env = {**os.environ, "ACCLIMATE_CACHE": cache}
            done = subprocess.run([sys.executable, __file__, "--once"], env=env, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            print(f"{name:7s}{done.stdout.strip()}")


if __name__ == "__main__":
    main()
