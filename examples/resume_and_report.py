"""A run folder: written with checkpoints, interrupted, resumed, compared with an uninterrupted run, reported.

python examples/resume_and_report.py
"""

import json
import tempfile
from pathlib import Path

import acclimate as ac
from acclimate.running.run import Interrupted
from acclimate.running.watch import Watch


class PullThePlug(Watch):
    """Told about every round; here it stands in for Ctrl-C."""

    def round(self, state):
        print(f"round {state.round} done")
        if state.round == 3:
            raise KeyboardInterrupt


experiment = ac.Experiment(
    data=ac.data.Digits(clients=5),
    model=ac.models.MLP(hidden=(32,), norm="batch"),
    method=ac.methods.FedAvg(private=("norm",), work=ac.Work(epochs=1)),
    adapters=(ac.adapters.NoAdapt(), ac.adapters.Tent()),
    rounds=6,
    checkpoint_every=2,
)

with tempfile.TemporaryDirectory() as temporary:
    root = Path(temporary)
    try:
        ac.run(experiment, root / "cut", watch=PullThePlug())
    except Interrupted as stopped:
        print(f"interrupted after round {stopped.round}")
    print(ac.resume(root / "cut"))

    ac.run(experiment, root / "whole")
    cut, whole = ((root / n / "state.safetensors").read_bytes() for n in ("cut", "whole"))
    print("the resumed run ends with the same bytes:", cut == whole)

    results = json.loads((root / "cut" / "results.json").read_text())
    print("results.json has", ", ".join(results))
    print("run folder has", ", ".join(sorted(p.name for p in (root / "cut").iterdir())))

    again = ac.load(root / "cut")
    print("validation accuracy by round:", [round(r["val_accuracy"], 3) for r in again.history])
    page = ac.report(root, out=root / "report.html")
    print(f"one report over both runs: {page.name}, {page.stat().st_size:,} bytes")
