"""Mutation testing changes what it says, one place at a time, and draws the same mutants whatever else is edited."""

import ast
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import mutate
from mutation import judging, record, tests
from mutation.operators import mutants, mutated

SCRIPTS = str(Path(mutate.__file__).parent)
TOY = '''
"""A toy: 1 + 1."""
import torch
__all__ = ["a"] * 1
KIND = int | float

class Record:
    rate: "Annotated[int, 3]" = 0.5

    def __post_init__(self):
        check.within(self, "rate", 0.0, 1.0)
        if self.rate > 7:
            raise ValueError(f"rate={self.rate + 9}")

    def run(self, x, y):
        assert x > 12
        kept = torch.where(x < y, x.detach(), -y)
        return max(kept.sum(dim=1, keepdim=True), 3) if x is not y and self.rate else g(f"{x + 1}") * x
'''


def changes(source):
    return [(m.function, m.operator, m.text, m.new) for m in mutants(source, "toy.py")]


def test_every_operator_and_nothing_that_is_left_out():
    where, total = "torch.where(x < y, x.detach(), -y)", "kept.sum(dim=1, keepdim=True)"
    assert sorted(changes(TOY)) == sorted(
        [
            ("Record", "number", "0.5", "1.5"),
            ("Record.run", "where", where, "torch.where(x < y, -y, x.detach())"),
            ("Record.run", "comparison", "x < y", "x <= y"),
            ("Record.run", "drop call", "x.detach()", "x"),
            ("Record.run", "unary", "-y", "y"),
            ("Record.run", "name", f"max({total}, 3)", f"min({total}, 3)"),
            ("Record.run", "name", total, "kept.mean(dim=1, keepdim=True)"),
            ("Record.run", "drop keyword", "dim=1", "kept.sum(keepdim=True)"),
            ("Record.run", "drop keyword", "keepdim=True", "kept.sum(dim=1)"),
            ("Record.run", "dim", "1", "0"),
            ("Record.run", "flag", "True", "False"),
            ("Record.run", "number", "3", "4"),
            ("Record.run", "negate", "x is not y and self.rate", "not (x is not y and self.rate)"),
            ("Record.run", "boolean", "x is not y and self.rate", "x is not y or self.rate"),
            ("Record.run", "comparison", "x is not y", "x is y"),
            ("Record.run", "arithmetic", 'g(f"{x + 1}") * x', "g(f'{x + 1}') / x"),
        ]
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a + b", "a - b"),
        ("a / b", "a * b"),
        ("a // b", "a / b"),
        ("a ** b", "a * b"),
        ("a & b", "a | b"),
        ("a << b", "a >> b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a or b", "a and b"),
        ("not a", "a"),
        ("~a", "a"),
        ("a.clamp_min(b)", "a.clamp_max(b)"),
        ("f(a, dim=0)", "f(a, dim=1)"),
        ("f(a, dim=-1)", "f(a, dim=0)"),
        ("a if b else c", "a if not b else c"),
        ("[x for x in a if b(x)]", "[x for x in a if not b(x)]"),
    ],
)
def test_an_operator_changes_one_place(before, after):
    source = f"def f(a, b, c):\n    return {before}\n"
    made = [ast.unparse(mutated(source, m)) for m in mutants(source, "toy.py")]
    assert f"def f(a, b, c):\n    return {after}" in made
    assert ast.unparse(ast.parse(source)) not in made


def test_lists_and_types_are_not_arithmetic():
    assert changes("def f(a, g):\n    return [*a] + g(a)") == []
    assert changes("def f(a):\n    return isinstance(a, int | float)") == []
    assert changes("f(a, device=b.device, strict=True)") == []


def test_the_same_text_twice_is_two_mutants_and_each_changes_its_own():
    source = "def f(x):\n    return g(x - 1, x - 1)\n"
    twice = [m for m in mutants(source, "toy.py") if m.operator == "arithmetic"]
    assert [m.occurrence for m in twice] == [0, 1]
    texts = [ast.unparse(mutated(source, m)).splitlines()[1].strip() for m in twice]
    assert texts == ["return g(x + 1, x - 1)", "return g(x - 1, x + 1)"]


def test_an_edit_changes_the_sample_of_its_own_place_alone():
    before = mutants(TOY, "a.py") + mutants(TOY, "b.py")
    edited = TOY.replace("import torch", "import torch\n\n\ndef new(x):\n    return x + 2\n")
    after = mutants(TOY, "a.py") + mutants(edited, "b.py")
    old, new = ([m.identity for m in mutate.drawn(some, 10, seed=3)] for some in (before, after))
    added = {m.identity for m in after} - {m.identity for m in before}
    assert len(added) == 2 and {m.identity for m in before} <= {m.identity for m in after}
    assert [m for m in new if m not in added] == old[: 10 - len(added & set(new))]
    assert [m.identity for m in mutate.drawn(before, 10, seed=4)] != old


def test_a_changed_module_is_imported_and_no_file_is():
    source = (tests.PACKAGE / "ops" / "masks.py").read_text()
    mutant = mutants(source, "ops/masks.py")[0]
    loader = judging.Changed("ops/masks.py", mutated(source, mutant))
    assert loader.name == "acclimate.ops.masks" and loader.find_spec("acclimate.ops.losses", None) is None
    assert loader.find_spec("acclimate.ops.masks", None).loader is loader
    assert loader.get_code("") != compile(source, loader.path, "exec")


def test_quick_tests_are_asked_first_and_of_these_the_near_ones():
    source = "def f(x):\n    return x + 1\n"
    mutant = mutants(source, "ops/toy.py")[0]

    def test(name, seconds, words=(), lines=(2,)):
        return {
            "id": f"tests/test_a.py::{name}",
            "seconds": seconds,
            "words": list(words),
            "lines": {"ops/toy.py": lines},
        }

    some = [
        test("test_b[1]", 0.1),
        test("test_b[2]", 0.2),
        test("test_c", 0.5),
        test("test_near", 0.7, ["f"]),
        test("test_near_but_long", 4.0, ["f"]),
        test("test_other", 0.1, lines=[7]),
        test("test_too_long", 9.0),
    ]
    ids = [i.partition("::")[2] for i in tests.chosen(mutant, some, 9, 8.0)]
    assert ids == ["test_near", "test_b[1]", "test_c", "test_b[2]", "test_near_but_long"]
    assert len(tests.chosen(mutant, some, 2, 8.0)) == 2
    # the one of a function's cases that names the file is its first, however slow
    cases = [
        test("test_b[1]", 0.1),
        test("test_b[toy]", 0.3),
        test("test_toy[1]", 0.1, ["f"]),
        test("test_toy[2]", 0.2, ["f"]),
    ]
    ids = [i.partition("::")[2] for i in tests.chosen(mutant, cases, 4, 8.0)]
    assert ids == ["test_toy[1]", "test_b[toy]", "test_toy[2]", "test_b[1]"]


def test_the_score_leaves_equivalent_mutants_out_and_counts_timeouts_as_killed():
    sample = mutants(TOY, "ops/toy.py")[:5]
    outcomes = ["killed", "timeout", "survived", "survived"]
    results = {m.identity: {"outcome": o, "by": ""} for m, o in zip(sample, outcomes, strict=False)}
    lines = mutate.summary(sample, results, {sample[3].identity: "why"}).splitlines()
    assert lines[-1].split() == ["all", "1", "1", "1", "1", "1", "66.7", "%"]
    shown = mutate.survivors(sample, results, {})
    assert f"+ {sample[2].new}" in shown and sample[0].identity not in shown


def test_a_record_has_the_score_of_each_package_and_names_who_survived(monkeypatch):
    sample = [*mutants(TOY, "ops/toy.py")[:4], *mutants(TOY, "filters/toy.py")[:2]]
    outcomes = ["killed", "timeout", "survived", "survived", "killed"]
    results = {
        m.identity: {"outcome": o, "by": "no test runs it" if o == "survived" else "t", "commit": "abc"}
        for m, o in zip(sample, outcomes, strict=False)
    }
    monkeypatch.setattr(sys, "argv", ["/home/me/scripts/mutate.py", "--summary=/home/me/a.json", "--sample", "6"])
    found = record.record(sample, results, {sample[3].identity: "why"}, {"mutants": 9, "seed": 0})
    assert found["command"] == "python scripts/mutate.py --summary=a.json --sample 6"
    assert (found["mutants"], found["count"], found["commits"]) == (9, 6, ["abc"])
    assert [found[k] for k in ("killed", "killed_by_time", "survived", "equivalent", "not_run")] == [3, 1, 1, 1, 1]
    assert found["score"] == 75.0
    packages = {name: (n["count"], n["killed"], n["score"]) for name, n in found["packages"].items()}
    assert packages == {"filters": (2, 1, 100.0), "ops": (4, 2, 66.7)}
    assert found["survivors"] == [{"mutant": sample[2].identity, "change": sample[2].new, "why": "no test runs it"}]
    assert record.figures(dict.fromkeys(("killed", "timeout", "survived", "equivalent", "not run"), 0))["score"] is None


def test_a_summary_is_written_of_what_a_file_holds(tmp_path, monkeypatch, capsys):
    everything = [m for file, text in tests.sources().items() for m in mutants(text, file)]
    equivalent = json.loads(mutate.EQUIVALENT.read_text())
    first = next(m for m in mutate.drawn(everything, 20, 3) if m.identity not in equivalent)
    line = {"mutant": first.identity, "outcome": "survived", "by": "", "seconds": 1.0, "commit": "abc"}
    (tmp_path / "some.jsonl").write_text(json.dumps(line) + "\n")
    words = ["--out", "some.jsonl", "--sample", "20", "--seed", "3", "--list", "--summary", "some.json"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutate.py", *words])
    mutate.main()
    found = json.loads((tmp_path / "some.json").read_text())
    assert (found["count"], found["survived"], found["score"]) == (20, 1, 0.0)
    assert found["survivors"][0]["mutant"] == first.identity in capsys.readouterr().out
    assert found["not_run"] + found["equivalent"] == 19 and found["mutants"] == len(everything)


STORED = Path(__file__).parents[1] / "results"
DESIGN = (STORED.parent / "docs" / "design.md").read_text()


@pytest.mark.parametrize("name", ["mutation", "mutation-again", "mutation-fresh"])
def test_the_design_page_tells_a_score_as_it_was_measured(name):
    found = json.loads((STORED / f"{name}.json").read_text())
    said = " ".join(DESIGN.split("## Tests that would notice\n")[1].split("\n## ")[0].split())
    ran = found["killed"] + found["survived"]
    assert found["schema"] == record.SCHEMA and found["not_run"] == 0
    assert ran + found["equivalent"] == found["count"] == sum(n["count"] for n in found["packages"].values())
    assert found["score"] == round(100 * found["killed"] / ran, 1) and len(found["survivors"]) == found["survived"]
    assert f"{found['killed']} of {ran} are killed, {found['score']} %" in said
    assert found["command"] in DESIGN and f"`results/{name}.json`" in said
    assert all(commit[:8] in said for commit in found["commits"])


def test_the_design_page_has_the_table_of_the_score():
    found = json.loads((STORED / "mutation.json").read_text())
    lines = record.table(found)
    assert "\n".join(lines) in DESIGN and len(lines) == 2 + len(tests.FOLDERS) + 1
    drawn = f"{found['count']:,} mutants drawn with seed {found['seed']} of {found['mutants']:,}"
    assert drawn in " ".join(DESIGN.split())


def test_a_test_that_takes_too_long_is_left_out_of_a_map(tmp_path):
    """In a process of its own: it runs pytest, with limits of its own."""
    (tmp_path / "test_toy.py").write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(9)\n")
    script = "import sys; from pathlib import Path; from mutation import tests; "
    script += "tests.trace(sys.argv[1], 0, 1, 0.5, Path(sys.argv[2]))"
    line = [sys.executable, "-c", script, str(tmp_path / "test_toy.py"), str(tmp_path / "note")]
    subprocess.run(line, env={**os.environ, "PYTHONPATH": SCRIPTS}, timeout=60, check=True, capture_output=True)
    found = json.loads((tmp_path / "note").read_text())
    assert [t["id"].rpartition("::")[2] for t in found["tests"]] == ["test_a"]
    assert [name.rpartition("::")[2] for name in found["bad"]] == ["test_b"]


def test_every_equivalent_mutant_exists_and_has_a_reason():
    known = {m.identity for file, text in tests.sources().items() for m in mutants(text, file)}
    listed = json.loads(mutate.EQUIVALENT.read_text())
    assert set(listed) - known == set()
    assert all(reason.endswith(".") for reason in listed.values())


def test_a_job_that_hangs_is_ended():
    def hang(note):
        threading.Event().wait()

    def well(note):
        note.write_text(json.dumps("said"))
        return 3

    jobs = [judging.Job("hang", hang, 0.5), judging.Job("well", well, float("inf"))]
    done = {d.name: d for d in judging.forked(jobs, 2, float("inf"))}
    assert done["hang"].code is None and done["hang"].seconds >= 0.5
    assert (done["well"].code, done["well"].note) == (3, "said")


def test_a_job_whose_time_is_over_before_its_process_has_begun_is_ended(monkeypatch):
    """A machine that stands still for a moment: the fork has neither a group of its own nor a log."""
    monkeypatch.setattr(judging.os, "setsid", lambda: threading.Event().wait())
    (done,) = judging.forked([judging.Job("late", lambda note: 0, 0.1)], 1, float("inf"))
    assert (done.code, done.log) == (None, "")
