"""All attacks at full size, in pieces, as `make attack` runs them.

python tests/attack/run.py messages --pieces 0-99 --jobs 2 --seconds 600 --out build/attack   a part; again goes on
python tests/attack/run.py all --jobs 2 --out build/attack                                    what is left of everything
python tests/attack/run.py merge build/attack --out results/attack                            one JSON file per attack
python tests/attack/run.py figures                                                            into docs/security.md
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(Path(__file__).parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import figures  # noqa: E402
import pieces  # noqa: E402
from pieces import Attack  # noqa: E402

SCHEMA = "acclimate.attack/2"
PAGE = ROOT / "docs" / "security.md"
LIES = "malicious clients among honest ones; `without`: the same training in which they send nothing"
ATTACKS = {
    "messages": Attack(
        "bombarded", "piece", "merged", 1000, "malformed messages of one of four clients, at every method and filter"
    ),
    "sums": Attack(
        "bombarded_sums", "piece", "merged", 20, "malformed answers of one or two of four clients in secure sums"
    ),
    "settings": Attack("wild_settings", "piece", "merged", 200, "lists of settings, possible and not"),
    "folders": Attack("damaged_folders", "piece", "merged", 100, "damaged run folders: what resume and report say"),
    "liars-4": Attack("malicious", "row", "merged", 22, LIES, (4,)),
    "liars-10": Attack("malicious", "row", "merged", 22, LIES, (10,)),
}


@contextmanager
def keys() -> Iterator[None]:
    """Keys of the attacked runs lie in a folder that goes when they are done, unless ACCLIMATE_SECRETS names another.

    The processes of a pool inherit the variable.
    """
    if "ACCLIMATE_SECRETS" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="acclimate-attack-keys-") as folder:
        os.environ["ACCLIMATE_SECRETS"] = folder
        try:
            yield
        finally:
            del os.environ["ACCLIMATE_SECRETS"]


def merge(folders: list[Path], out: Path) -> None:
    """Write one file for every attack of which the folders have pieces."""
    for name, attack in ATTACKS.items():
        if found := pieces.lines(folders, name):
            whole = pieces.merged(attack, found)
            command = shlex.join(["python", "tests/attack/run.py", name])
            out.mkdir(parents=True, exist_ok=True)
            body = {"schema": SCHEMA, "attack": name, "command": command, **whole}
            (out / f"{name}.json").write_text(json.dumps(body, indent=1) + "\n")
            print(f"{name}: {whole['pieces']} of {attack.count} pieces")


def span(text: str) -> tuple[int, int]:
    """`A-B`, both included."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"'{text}' must be two numbers such as 0-99")
    return int(first), int(last)


def main(words: list[str] | None = None) -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", choices=(*ATTACKS, "all", "merge", "figures"))
    ask.add_argument("folders", nargs="*", type=Path, help="for merge: folders with pieces")
    ask.add_argument("--pieces", type=span, help="A-B, both included; all of them unless told otherwise")
    ask.add_argument("--jobs", type=int, default=1, help="processes")
    ask.add_argument("--seconds", type=float, default=1e9, help="no piece is begun later")
    ask.add_argument("--out", type=Path, default=ROOT / "build" / "attack")
    given = ask.parse_args(words)
    if given.what == "merge":
        merge(given.folders, given.out)
        return
    if given.what == "figures":
        PAGE.write_text(figures.placed(PAGE.read_text(), figures.text(ROOT / "results" / "attack")))
        return
    end = time.time() + given.seconds
    for name in ATTACKS if given.what == "all" else [given.what]:
        attack = ATTACKS[name]
        first, last = given.pieces or (0, attack.count - 1)
        numbers, left = range(first, min(last + 1, attack.count)), max(end - time.time(), 0)
        began = time.time()
        with keys():
            done, missing = pieces.run(name, attack, given.out, numbers, given.jobs, left)
        print(f"{name}: {done} pieces in {time.time() - began:.0f} s, {missing} are left", flush=True)


if __name__ == "__main__":
    main()
