"""`python -m acclimate.leaderboard`: run, submit, check, rerun and freeze, with torch, numpy and safetensors alone."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import store
from ..running.progress import Lines, beating
from . import folder, page, sweep
from .submission import CHOICES, Unfit, check
from .tracks import BOARD, TRACKS, freeze, track

ROOT = Path("results/leaderboard") / BOARD


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(prog="python -m acclimate.leaderboard", description=__doc__)
    verbs = out.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train a method on a track with all seeds, and write its submission")
    run.add_argument("track", choices=list(TRACKS))
    run.add_argument("settings", nargs="*", help="method=fedavg adapters=none,tent ...")
    run.add_argument("--all", action="store_true", help="instead: every row of a full track that is not there yet")
    run.add_argument("--jobs", type=int, default=1, help="with --all: how many rows to run side by side")
    run.add_argument("--only", default="", help="with --all: these rows alone, with commas (see `missing`)")
    run.add_argument("--out", type=Path, required=True, help="folder of the runs")
    run.add_argument("--device", help="cpu, cuda or auto (default: auto, with --all cpu)")
    for verb in (run, given := verbs.add_parser("submit", help="write the submission of a finished run")):
        verb.add_argument("--chosen", choices=list(CHOICES), default="defaults", help="how settings were chosen")
        verb.add_argument("--to", type=Path, default=ROOT)
    given.add_argument("run", type=Path)
    given.add_argument("--track", choices=list(TRACKS), required=True)
    one = verbs.add_parser("check", help="say whether submissions hold")
    one.add_argument("files", type=Path, nargs="+")
    lack = verbs.add_parser("missing", help="say which rows a track lacks, and which it cannot have")
    lack.add_argument("track", choices=list(TRACKS))
    lack.add_argument("--to", type=Path, default=ROOT)
    again = verbs.add_parser("rerun", help="run one row again and compare")
    again.add_argument("file", type=Path)
    again.add_argument("--adapter", default="none")
    again.add_argument("--seed", type=int, default=0)
    made = verbs.add_parser("page", help="write the page and the tables")
    made.add_argument("--folder", type=Path, default=ROOT)
    made.add_argument("--out", type=Path, default=Path("leaderboard.html"))
    cold = verbs.add_parser("freeze", help="write the hashes of a track")
    cold.add_argument("track", choices=list(TRACKS))
    cold.add_argument("--out", type=Path, required=True)
    return out


def tables(root: Path) -> list[Path]:
    """Write the Markdown table of every track that has submissions."""
    out = []
    for name in TRACKS:
        if (root / name).exists() and (found := folder.read(root / name)):
            out.append(root / f"{name}.md")
            store.write(out[-1], page.markdown(found, name))
    return out


def _run(args: argparse.Namespace) -> str:
    if args.all == bool(args.settings):
        raise ValueError("name the settings of one submission, such as method=fedavg, or --all; one of the two")
    if not args.all:
        with beating(Lines(sys.stderr)) as lines:
            done = folder.train(args.track, tuple(args.settings), args.out, lines, args.device or "auto")
        return f"wrote {folder.submit(done, args.track, args.chosen, args.to)}"
    only = [name for name in args.only.split(",") if name]
    for line in sweep.fill(args.track, args.out, args.to, args.jobs, only, args.device or "cpu"):
        print(line, file=sys.stderr, flush=True)
    return _missing(args.track, args.to, only)


def _missing(track_name: str, root: Path, only: Sequence[str] = ()) -> str:
    """A line per row that is not there, with the reason where it cannot be."""
    found = sweep.missing(track_name, root, only)
    lines = [f"{e.name}: {sweep.refusal(e, track_name) or 'not run yet, or with fewer adapters'}" for e in found]
    return "\n".join(lines) or f"track {track_name} lacks nothing"


def answer(args: argparse.Namespace) -> str:
    """What a command prints in the end."""
    if args.verb == "run":
        return _run(args)
    if args.verb == "missing":
        return _missing(args.track, args.to)
    if args.verb == "submit":
        return f"wrote {folder.submit(args.run, args.track, args.chosen, args.to)}"
    if args.verb == "check":
        for path in args.files:
            try:
                check(store.read_json(path))
            except Unfit as e:
                raise Unfit(f"{path}: {e}") from e
        return f"{len(args.files)} hold"
    if args.verb == "rerun":
        found = folder.rerun(store.read_json(args.file), args.adapter, args.seed)
        if not found.matches:
            raise ValueError(f"the rerun does not match; {found.said}")
        return f"{'equal to the last digit' if found.equal else 'matches'}; {found.said}"
    if args.verb == "page":
        store.write(args.out, page.html(args.folder))
        return "\n".join(f"wrote {path}" for path in [args.out, *tables(args.folder)])
    store.write(args.out, store.json_text(freeze(track(args.track)), indent=1) + "\n")
    return f"wrote {args.out}"


def main() -> None:
    """The command; errors of the user's are one line."""
    args = parser().parse_args()
    sys.argv[:1] = ["python", "-m", "acclimate.leaderboard"]
    try:
        with contextlib.nullcontext() if args.verb == "run" else beating(Lines(sys.stderr)):
            said = answer(args)
        print(said)
    except (ValueError, ArithmeticError, store.RunError, OSError) as error:  # ArithmeticError: a run diverged
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("stopped; the same command goes on") from None


if __name__ == "__main__":
    main()
