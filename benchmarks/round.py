"""One federated round done four ways: a plain PyTorch loop, Serial, Vmap, and the round captured as a CUDA graph.

The work is the same in all of them: 20 clients, the two-layer CNN on 3x32x32 images, batch 32, 5 epochs of 1,500
examples, FedAvg. The plain loop is written the way other frameworks do it (nn.Module, torch.optim, one client after the
other), with the data already on the device. Results are compared before times are; times are medians of repeats in one
process, and the ratio is what to quote.

    python benchmarks/round.py                 # the whole work, on the GPU where there is one
    python benchmarks/round.py --quick         # a small version for CPUs
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from federated import ALLOWED, Round, agreement, apart, dealt, task_of
from harness import Context, Disagreement, Way, compare, environment, parser_of, write

from acclimate.backends import Serial, Vmap
from acclimate.backends.vmap.capture import tf32
from acclimate.core import SGD, Backend, Work, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN


def ways(device: torch.device) -> dict[str, Backend]:
    """The backends to compare on this device."""
    if device.type == "cuda":
        return {"serial": Serial(), "vmap": Vmap(capture=False), "captured": Vmap()}
    return {"serial": Serial(), "vmap": Vmap()}


def measure(round: Round, repeats: int, fast: bool) -> dict[str, Any]:
    """Times, ratios and distances of all ways, with one precision setting."""
    device, start = round.data.x.device, round.server()["vars"]["params"]
    rounds = {"plain": round.plain()}
    rounds |= {n: round.ours(b.open(round.worker, round.data, device)) for n, b in ways(device).items()}
    with tf32(fast):
        results = {name: f() for name, f in rounds.items()}
        again = rounds["vmap"]()
    warm = {name: Way(f, warm=lambda: None, tf32=fast) for name, f in rounds.items()}
    found = compare(warm, Context(device, repeats=repeats, budget=float("inf")))
    took, captured = found["seconds"], results.get("captured")
    return {
        "tf32": fast,
        "steps_per_client": round.steps() // len(round.cohort),
        "seconds": {n: t["median"] for n, t in took.items()},
        "spread": {n: t["spread"] for n, t in took.items()},
        "times_faster_than_plain": {"plain": 1.0, **found["times_faster"]},
        "relative_distance_from_plain": {n: apart(results["plain"], r, start) for n, r in results.items()},
        "vmap_repeats_bit_for_bit": same(results["vmap"], again),
        "captured_equals_vmap_bit_for_bit": None if captured is None else same(captured, results["vmap"]),
    }


def same(a: tree.Tree, b: tree.Tree) -> bool:
    """Bit equality."""
    return all(torch.equal(a[k], b[k]) for k in a)


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="4 clients x 160 examples x 1 epoch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clients, examples, epochs = (4, 160, 1) if args.quick else (20, 1500, 5)
    report = {"benchmark": "round", **environment(device)}
    report["work"] = {"clients": clients, "examples": examples, "epochs": epochs, "batch": 32, "model": "CNN, 3x32x32"}
    print(f"{report['device']}: {clients} clients x {examples} examples x {epochs} epochs, batch 32")
    method = FedAvg(opt=SGD(lr=0.05), work=Work(epochs=epochs, batch=32))
    round = Round.of(task_of(CNN()), method, dealt([examples] * clients).to(device))
    try:
        gap = max(agreement(round)["distance"].values())
    except Disagreement as reason:
        raise SystemExit(str(reason)) from None
    report["relative_distance_after_10_double_steps"] = gap
    print(f"all ways agree within {gap:.1e} (relative; allowed is {ALLOWED:.0e}) after ten steps in double precision")
    precisions = (False, True) if device.type == "cuda" else (False,)
    report["runs"] = [measure(round, args.repeats, fast) for fast in precisions]
    for run in report["runs"]:
        _tell(run)
    if args.out:
        write(args.out, report)


def _tell(run: dict[str, Any]) -> None:
    print(f"TF32 {'on' if run['tf32'] else 'off'}: {run['steps_per_client']} steps per client")
    for way, s in run["seconds"].items():
        ratio, far = run["times_faster_than_plain"][way], run["relative_distance_from_plain"][way]
        print(f"  {way:9s} {s:9.4f} s/round   {ratio:6.2f} x plain   result {far:.1e} from plain")
    print(f"  vmap repeats itself bit for bit: {run['vmap_repeats_bit_for_bit']}")
    print(f"  captured equals vmap bit for bit: {run['captured_equals_vmap_bit_for_bit']}")


if __name__ == "__main__":
    main()
