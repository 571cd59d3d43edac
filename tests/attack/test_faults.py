"""The program that disturbs fleets of processes: what it counts, and, slowly, a few dozen of its faults."""

import json
import subprocess
import sys
from pathlib import Path

import faults
import pytest
import torch
from safetensors.torch import save_file

HERE = Path(faults.__file__)


def told(number, **more):
    fine = {"episode": number, "training": "fedavg", "faults": {"node": 2, "link": 1}, "processes_killed": 3}
    fine |= {"rounds": faults.ROUNDS, "lost_rounds": 0, "hangs": 0, "same_bits": True, "ends_by_itself": 1}
    fine |= {"commit": "c", "machine": "m"}
    return {**fine, "asked_again": 4, "deadline": 4.0, "seconds": 1.5, **more}


def test_episodes_add_up_and_what_is_amiss_is_named(tmp_path):
    bad = told(1, same_bits=False, lost_rounds=2, hangs=1, training="scaffold")
    for one in (told(0), bad):
        faults.part(one["episode"], tmp_path).write_text(json.dumps(one))
    all_of_it = faults.merged(tmp_path)
    assert all_of_it["faults"] == 6 == faults.happened(tmp_path) and all_of_it["by_kind"] == {"node": 4, "link": 2}
    assert [all_of_it[k] for k in ("lost_rounds", "hangs", "other_bits", "processes_killed")] == [2, 1, 1, 6]
    other = tmp_path / "other"
    other.mkdir()
    faults.part(0, other).write_text(json.dumps(told(0, machine="n")))
    both = faults.merged(tmp_path, other)
    assert both["episodes"] == 3 and both["processes_killed"] == 9 and both["machines"] == ["m", "n"]
    assert all_of_it["amiss"] == [bad] and all_of_it["by_training"] == {"fedavg": 1, "scaffold": 1, "secure sum": 0}


def test_the_page_has_the_figures_of_the_faults():
    root = HERE.parents[2]
    told = json.loads((root / "results" / "attack" / "faults.json").read_text())
    page = " ".join((root / "docs" / "security.md").read_text().split())
    number, trainings = told["faults"], told["episodes"]
    assert f"{number:,} faults in {trainings} trainings" in page and number >= 1000
    lost = f"{told['lost_rounds']} rounds were lost, {told['hangs']} trainings hung, and all {trainings} ended"
    assert f"{told['processes_killed']} processes were killed; {lost}" in page and told["other_bits"] == 0
    assert f"Secure sums are {told['by_training']['secure sum']} of them" in page and not told["amiss"]


def test_one_other_bit_is_noticed_at_server_and_sites(tmp_path):
    meta = {"acclimate": json.dumps({"round": faults.ROUNDS})}
    mine = tmp_path / "site0" / "runs" / "run" / "mine" / "2" / f"{faults.ROUNDS:06d}.safetensors"
    for path in (tmp_path / "run" / "state.safetensors", mine):
        path.parent.mkdir(parents=True)
        save_file({"server/w": torch.ones(3), "best_server/w": torch.ones(3)}, path, meta)
    before = faults.ends_with(tmp_path)
    assert set(before) == {"rounds", "server/w", f"2/{mine.name}"} and before["rounds"] == str(faults.ROUNDS)
    save_file({"server/w": torch.tensor([1.0, 1.0, 1.0 + 2**-23])}, mine, meta)
    after = faults.ends_with(tmp_path)
    assert {k for k in before if before[k] != after[k]} == {f"2/{mine.name}"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="limits of other processes are set by Linux alone")
def test_thirty_faults_lose_nothing(tmp_path):
    command = [sys.executable, str(HERE), "--faults", "30", "--jobs", "2", "--parts", str(tmp_path / "parts")]
    done = subprocess.run([*command, "--out", str(tmp_path / "out.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["faults"] >= 30 and found["processes_killed"] >= 5
    assert [found[k] for k in ("lost_rounds", "hangs", "other_bits")] == [0, 0, 0]
