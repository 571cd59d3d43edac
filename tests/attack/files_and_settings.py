"""All of the attack on run folders and settings: `python tests/attack/files_and_settings.py --out results/attack`."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import damaged_folders
import wild_settings

from acclimate import store
from acclimate.store.origin import _commit

SCHEMA = "acclimate.attack/1"


def main() -> None:
    """Run both attacks and write what was counted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/attack"))
    parser.add_argument("--folders", type=int, default=5000)
    parser.add_argument("--settings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="At most, for each of the two.")
    given, commit = parser.parse_args(), _commit()  # the commit that is about to be tried
    with tempfile.TemporaryDirectory() as root:
        parts = {
            "settings": lambda: wild_settings.attack(given.settings, given.seed, given.seconds),
            "folders": lambda: damaged_folders.attack(Path(root), given.folders, given.seed, given.seconds),
        }
        for name, attack in parts.items():
            if getattr(given, name) == 0:
                continue
            began = time.perf_counter()
            found = attack()
            about = {"schema": SCHEMA, "attack": name, "command": store.command_line(), "commit": commit}
            rest = {"seed": given.seed, "seconds": round(time.perf_counter() - began, 1), "most_memory_kib": _memory()}
            store.write(given.out / f"{name}.json", store.json_text({**about, **rest, **found}, indent=1) + "\n")
            print(name, {k: v for k, v in found.items() if k not in ("wrong", "kinds")}, flush=True)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
