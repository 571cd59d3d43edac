"""The guide to tuning says what strategies chose, as it is stored."""

import json
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "tuning.md").read_text()
STORED = json.loads((ROOT / "results" / "adapters" / "select.json").read_text())
ROWS = STORED["selection"]["rows"]
STRATEGIES = ("oracle", "fixed", "source", "entropy", "consistency", "snd")


def mean(field, strategy, stream=None):
    """In percent; over streams where none is named, of which all have the same seeds."""
    return 100 * statistics.mean(r[field] for r in ROWS if r["strategy"] == strategy and stream in (None, r["stream"]))


def chosen(strategy):
    """What a strategy chose, of every stream and seed."""
    return [next(iter(r["chosen"])) for r in ROWS if r["strategy"] == strategy]


def test_the_table_of_strategies_is_the_stored_one():
    lines = PAGE[PAGE.index("| stream | oracle |") :].split("\n\n")[0].splitlines()
    assert [c.strip() for c in lines[0].strip("|").split("|")] == ["stream", *STRATEGIES]
    streams = dict.fromkeys(r["stream"] for r in ROWS)
    assert len(lines) == 2 + len(streams) + 1 and len(ROWS) == len(STRATEGIES) * len(streams) * 3
    for line, stream in zip(lines[2:], (*streams, None), strict=True):
        name, *told = (c.strip() for c in line.strip("|").split("|"))
        wanted = []
        for s in STRATEGIES:
            gap = f"{-mean('gap', s, stream):.1f}".removeprefix("-0.0").removeprefix("0.0") or "0"
            wanted.append(f"{mean('accuracy', s, stream):.1f}" + (f" ({gap})" if s != "oracle" else ""))
        assert name == (stream or "mean") and told == wanted


def test_sentences_about_strategies():
    best = {r["stream"]: [] for r in ROWS}
    for r in ROWS:
        if r["strategy"] == "oracle":
            best[r["stream"]] += r["chosen"]
    assert (
        sum(set(own) == {"none"} for own in best.values()) == 3 and "three of the five streams with every seed" in PAGE
    )
    assert set(chosen("source")) == set(chosen("snd")) == {"none"}
    assert chosen("entropy").count("tent(opt.lr=0.1)") == 12 and "in 12 of 15 cases" in PAGE
    words = " ".join(PAGE.split())
    assert f"loses {mean('gap', 'source', 'continual'):.1f} points on `continual`" in words
    assert f"it lost {mean('gap', 'entropy', 'corrupted'):.1f} points on `corrupted`" in words
    others = [mean("gap", s) for s in STRATEGIES if s not in ("oracle", "consistency")]
    assert mean("gap", "consistency") < min(others)
    assert f"the best here, {mean('gap', 'consistency'):.1f} points below the oracle" in words
