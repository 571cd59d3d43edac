"""Mutation testing: change the source in one place, and see whether a test notices.

    python scripts/mutate.py --jobs 2 --out mutants.jsonl              # 1,000 mutants, drawn with seed 0
    python scripts/mutate.py --jobs 2 --out mutants.jsonl --only 'personal/*'     # those of them in one folder
    python scripts/mutate.py --out mutants.jsonl --list                # those that no test noticed
    python scripts/mutate.py --sample 150 --longest 30 --out some.jsonl --summary some.json     # fewer, for one core

Mutants (scripts/mutation/operators.py) are of src/acclimate/{methods,adapters,ops,personal,filters}. The sample is the
N with the smallest hashes of seed and identity, so an edit changes that file's own mutants alone. A first pass notes
which tests run which lines (scripts/mutation/tests.py); a mutant is judged by those that run the changed statement,
nearest first, and is killed where one fails or where they take too long. One that no test runs has survived.

Where that takes too long, `--using` asks fewer test files, and `--longest` leaves long tests out of the map. A test
that is left out can only let a mutant live: the score is then too low, and never too high. `--summary` writes the
score, by package, and the survivors as JSON.

Equivalent mutants, which no test could notice, stand in scripts/mutation/equivalent.json with a reason each, and are
not run: the score is killed / (all - equivalent). Mutants that `--out` has already are not run again; with `--again`
those that survived are, and those that took too long, which a busy machine may be the reason of.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from mutation import record
from mutation.operators import Mutant, mutants

EQUIVALENT = Path(__file__).parent / "mutation" / "equivalent.json"
Test = dict[str, Any]
Results = dict[str, dict[str, object]]


def drawn(everything: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """The mutants with the smallest hashes, in that order."""
    return sorted(everything, key=lambda m: hashlib.sha256(f"{seed}::{m.identity}".encode()).digest())[:count]


def mapped(path: Path, using: Sequence[str], jobs: int, longest: float) -> list[Test]:
    """Tests and the lines that they run; test files that have not changed since the map was made are not run again."""
    from mutation import judging, tests

    noted = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {f: tests.digest(f) for f in tests.test_files() if any(fnmatch(f, u) for u in using)}
    missing = [f for f, digest in files.items() if noted.get(f, {}).get("digest") != digest]
    shares = 4 if jobs > 4 else 1  # of a test file, so that long ones do not hold up the others
    traced = {f"{f} {i}": partial(tests.trace, f, i, shares, longest) for f in missing for i in range(shares)}
    work = [judging.Job(name, run, 900.0) for name, run in traced.items()]
    parts = defaultdict[str, list[list[Test]]](list)
    for done in judging.forked(work, jobs, float("inf")):
        file = done.name.split()[0]
        if done.code != 0:
            print(f"left out, for it cannot be run here: {done.name}\n{done.log}", flush=True)
            continue
        print(f"mapped {done.name}: {len(done.note['tests'])} tests, {done.seconds:.1f} s", flush=True)
        for test in done.note["bad"]:
            print(f"left out, for it does not pass, in time, on the unchanged source: {test}", flush=True)
        parts[file].append(done.note["tests"])
        if len(parts[file]) == shares:
            noted[file] = {"digest": files[file], "tests": [t for part in parts[file] for t in part]}
            path.write_text(json.dumps(noted))
    return [t for f in files if noted.get(f, {}).get("digest") == files[f] for t in noted[f]["tests"]]


def judged(todo: list[Mutant], args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """What became of each mutant, as they are done."""
    from mutation import judging, tests

    begun = time.monotonic()
    judging.warm_up()
    known = mapped(args.map, args.using, args.jobs, args.longest)
    work, cost = [], {t["id"]: t["seconds"] for t in known}
    for mutant in todo:
        ids = tests.chosen(mutant, known, args.tests, args.seconds)
        if ids:
            limit = 20.0 + 5.0 * sum(cost[i] for i in ids)
            work.append(judging.Job(mutant.identity, partial(judging.judge, mutant, ids), limit))
        else:
            yield {"mutant": mutant.identity, "outcome": "survived", "by": "no test runs it", "seconds": 0.0}
    for done in judging.forked(work, args.jobs, begun + 60.0 * args.minutes):
        outcome = "timeout" if done.code is None else "killed" if done.code else "survived"
        yield {"mutant": done.name, "outcome": outcome, "by": done.note or "", "seconds": round(done.seconds, 2)}


def read(path: Path) -> Results:
    """Results by mutant; the last line about one counts."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {r["mutant"]: r for r in map(json.loads, lines)}


def summary(sample: list[Mutant], results: Results, equivalent: dict[str, str]) -> str:
    """Counts and the score, by folder and in all."""
    counts = record.counts(sample, results, equivalent)
    columns = ("killed", "timeout", "survived", "equivalent", "not run")
    rows = ["folder     " + "".join(f"{c:>12}" for c in columns) + "       score"]
    for folder in sorted(counts, key=lambda f: (f == "all", f)):
        percent = record.score(counts[folder])
        score = "           -" if percent is None else f"{percent:10.1f} %"
        rows.append(f"{folder:<11}" + "".join(f"{counts[folder][c]:>12}" for c in columns) + score)
    return "\n".join(rows)


def survivors(sample: list[Mutant], results: Results, equivalent: dict[str, str]) -> str:
    """Every mutant that no test noticed, with its change."""
    out = []
    for m in sorted(sample, key=lambda m: (m.file, m.line)):
        result = results.get(m.identity, {})
        if result.get("outcome") == "survived" and m.identity not in equivalent:
            why = f"  ({result['by']})" if result["by"] else ""
            out.append(f"{m.identity}{why}\n  line {m.line}\n  - {m.text}\n  + {m.new}")
    return "\n".join(out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="results, one JSON line for each mutant; what is there is kept")
    add("--sample", type=int, default=1000, help="how many mutants are drawn (1000)")
    add("--seed", type=int, default=0, help="seed of the draw (0)")
    add("--only", default="*", help="run the drawn mutants of these files alone, such as 'filters/*'")
    add("--using", nargs="+", default=["*"], help="test files that are asked, such as 'tests/filters/*'; else all")
    add("--jobs", type=int, default=1, help="forks at a time (1)")
    add("--tests", type=int, default=30, help="the most tests that are asked about one mutant (30)")
    add("--seconds", type=float, default=15.0, help="how long these tests may take together, unchanged (15)")
    add("--longest", type=float, help="a test that takes so many seconds is left out of a map that is made now")
    add("--minutes", type=float, default=1e6, help="no mutant is begun after so long, the map counted in")
    cache = Path(tempfile.gettempdir()) / "acclimate-mutation" / "map.json"
    add("--map", type=Path, default=cache, help=f"which tests run which lines, made where it is missing ({cache})")
    add("--summary", type=Path, help="write the score and the survivors there, as JSON")
    add("--again", action="store_true", help="run those that survived or took too long again")
    add("--list", action="store_true", help="run nothing; show those that survived, each with its change")
    return parser.parse_args()


def run(todo: list[Mutant], args: argparse.Namespace, results: Results) -> None:
    """Judge mutants, and add what became of them to the results and to their file."""
    from mutation import tests

    args.out.parent.mkdir(parents=True, exist_ok=True)
    commit = tests.commit()
    with args.out.open("a") as file:
        for number, result in enumerate(judged(todo, args) if todo else (), 1):
            result["commit"] = commit
            file.write(json.dumps(result) + "\n")
            file.flush()
            results[str(result["mutant"])] = result
            if number % 50 == 0:
                print(f"{number} of {len(todo)}", flush=True)


def stored(path: Path, body: dict[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    from acclimate import store

    store.write(path, store.json_text(body, indent=1) + "\n")


def main() -> None:
    from mutation import tests

    args = arguments()
    everything = [m for file, text in tests.sources().items() for m in mutants(text, file)]
    sample = [m for m in drawn(everything, args.sample, args.seed) if fnmatch(m.file, args.only)]
    equivalent = json.loads(EQUIVALENT.read_text())
    results = read(args.out)
    if args.list:
        print(survivors(sample, results, equivalent))
    else:
        old = {k for k, r in results.items() if not (args.again and r["outcome"] in ("survived", "timeout"))}
        todo = [m for m in sample if m.identity not in old and m.identity not in equivalent]
        print(f"{len(everything)} mutants, {len(sample)} drawn, {len(todo)} to run", flush=True)
        run(todo, args, results)
    print(summary(sample, results, equivalent))
    if args.summary:
        about = {"mutants": len(everything), "seed": args.seed, "asked_at_most": args.tests}
        stored(args.summary, record.record(sample, results, equivalent, about))


if __name__ == "__main__":
    main()
