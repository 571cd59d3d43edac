"""The benchmark of serving runs, counts what it says it counts, and leaves the parts of others alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from federation import lives, stream

from acclimate.serving.host import Host

ROOT = Path(__file__).parents[2]


def test_restarts_within_a_process_lose_and_double_nothing(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(
        bench("serving_kills"), "LIMIT", 800.0
    )  # a machine that stands still for a minute does not hang
    found = bench("serving_kills").within(lives(), stream(0, 60), tmp_path, 6)
    told = {k: found[k] for k in ("kills", "lost_commits", "double_steps", "hangs", "refused", "same_bits")}
    assert told == {**dict.fromkeys(told, 0), "kills": 6, "same_bits": True}
    assert sum(found["moments"].values()) == 6 and len(found["moments"]) > 2 and found["requests"] > 12


def test_a_server_that_forgets_or_repeats_is_noticed(bench, tmp_path, monkeypatch):
    """A step that is not kept, and one that is kept twice: places that are too low and too high."""
    kills, keep = bench("serving_kills"), Host.keep
    turns = iter(range(10_000))
    monkeypatch.setattr(Host, "keep", lambda self, done: None if next(turns) == 5 else keep(self, done))
    assert kills.within(lives(), stream(0, 60), tmp_path, 1)["lost_commits"] > 0
    tally = kills.Tally(1)
    for place in (0, 1, 3):
        tally.take(0, [f"0-{place}"])
    assert tally.found == {"lost": 0, "doubled": 1}


def test_parts_are_merged_into_one_file(bench, tmp_path):
    serve, out = bench("serve"), tmp_path / "live" / "serve.json"
    out.parent.mkdir()
    out.write_text(json.dumps({"command": "of an earlier form", "kills": {"kills": 3}}))
    for name in ("memory", "kills", "memory"):
        serve.merge(out, name, {"samples": 1, "environment": {"cores": 2}})
    found = json.loads(out.read_text())
    assert list(found) == ["memory", "kills"] and found["kills"] == {"samples": 1, "environment": {"cores": 2}}
    assert set(serve.PART_OF) == set(serve.PARTS)


def test_a_peer_that_is_not_there_is_named(bench, monkeypatch):
    serve = bench("serve")
    monkeypatch.setattr(sys, "argv", ["serve.py", "--quick", "--peer", "litserve"])
    monkeypatch.setattr(serve.serving_peer, "there", lambda: False)
    with pytest.raises(SystemExit, match="pip install litserve"):
        serve.main()


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    out = tmp_path / "serve.json"
    whole = ["--kills", "3", "--real", "1", "--samples", "2000", "--malformed", "80"]
    for more in ([], ["--engine"], whole):
        command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), "--quick", "--out", str(out), *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert set(found) == {"throughput", "engine", "kills", "malformed", "memory"}
    assert all({"command", "commit", "device", "cores"} <= set(part["environment"]) for part in found.values())
    row = found["throughput"]["models"]["tiny"]
    assert row["ratio"] > 0 and row["grouped"]["p99_ms"] >= row["grouped"]["p50_ms"] > 0
    for part in (found["kills"]["in_process"], found["kills"]["by_sigkill"]):
        assert (part["lost_commits"], part["double_steps"], part["hangs"], part["same_bits"]) == (0, 0, 0, True)
    assert found["malformed"]["changed_states"] == 0 and "200" not in found["malformed"]["statuses"]
    assert found["memory"]["resident_kb_after"].keys() == {"1000", "2000"}
    assert str(ROOT) not in json.dumps(found)
