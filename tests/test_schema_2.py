"""Files of the second schemas (`acclimate.config/2` and its like) are read, gone on with, and known by the same names.

`python tests/test_schema_2.py` wrote tests/fixtures/schema_2. It stays as it is for good: where a schema changes, write
another folder with a copy of this file, and let both be tested.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import acclimate as ac
from acclimate import store
from acclimate.experiment import Experiment, dumps
from acclimate.experiment.settings import expand
from acclimate.running.run import Interrupted, stored_table
from acclimate.running.watch import Watch

HERE = Path(__file__).parent / "fixtures" / "schema_2"
SETTINGS = (
    *("data.clients=3", "data.fraction=0.1", "data.partition=iid", "model=mlp", "model.hidden=2", "rounds=3"),
    *("method=fedper", "method.opt.schedule=cosine", "method.work.batch=8", "method.work.epochs=1", "cohort=2"),
    *("filters=clip,fp16", "checkpoint_every=1", "personal=prior", "adapters=none,t3a", "streams=original"),
    *("backend=vmap", "backend.private=mapped", "device=cpu"),
)


def experiment(*more: str) -> Experiment:
    return expand([*SETTINGS, *more])[0]


class Stop(Watch):
    def round(self, state) -> None:
        if state.round == 2:
            raise KeyboardInterrupt


def write(folder: Path) -> None:
    """A finished run, one that was stopped while its private states lay in parts, and an index of two."""
    ac.run(experiment(), folder / "run")
    with pytest.raises(Interrupted):
        ac.run(experiment(), folder / "stopped", watch=Stop())
    ac.run_all([experiment("rounds=1"), experiment("rounds=1", "seed=1")], folder / "index")
    for report in folder.rglob("report.html"):
        report.unlink()


@pytest.fixture
def old(tmp_path):
    """A copy, since going on with a run writes into its folder."""
    return Path(shutil.copytree(HERE, tmp_path / "old"))


def close(a, b) -> None:
    """Rows with the same names, and numbers as near as two processors compute them."""
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        assert {k: v for k, v in x.items() if isinstance(v, str)} == {k: v for k, v in y.items() if isinstance(v, str)}
        assert x["accuracy"] == pytest.approx(y["accuracy"], abs=0.05)
        assert x["loss"] == pytest.approx(y["loss"], rel=2e-3)


def test_the_experiment_has_the_text_and_the_names_that_it_had(old):
    """A field or name that changes must not make a run unknown: `check.later` is for new fields."""
    assert (old / "run" / "config.json").read_text() == dumps(experiment())
    meta, _ = store.read_tensors(old / "run" / "state.safetensors")
    assert meta["training"] == experiment().identity()
    assert [meta["schema"], meta["round"]] == ["acclimate.state/2", 3]


def test_a_finished_run_loads_and_tests_to_the_same_table(old):
    fit, kept = ac.load(old / "run"), stored_table(store.RunFolder(old / "run"))
    close(ac.evaluate(fit).rows, kept.rows)
    assert ac.resume(old / "run").rows == kept.rows and (old / "run" / "report.html").exists()
    seeds = {r["seed"] for r in ac.resume(old / "index").rows}
    assert seeds == {0, 1}


def test_a_run_in_parts_goes_on_to_where_the_finished_one_ended(old):
    assert list((old / "stopped" / "parts").glob("*.safetensors"))
    ac.resume(old / "stopped")
    ours, theirs = (ac.load(old / name).state for name in ("stopped", "run"))
    for a, b in zip(ac.tree.leaves(ours.server), ac.tree.leaves(theirs.server), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    for a, b in zip(*(ac.tree.leaves(s.mine.take(torch.arange(3))) for s in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    cost = [json.loads((old / name / "results.json").read_text())["cost"] for name in ("stopped", "run")]
    assert cost[0] == cost[1]


if __name__ == "__main__":
    write(HERE if len(sys.argv) == 1 else Path(sys.argv[1]))
