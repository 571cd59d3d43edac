"""Every example runs as a user would run it, stays short, and says what it should."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SAYS = {
    "first_run.py": [
        r"round 5: validation accuracy \d\d\.\d%",
        r"(?m)^fedavg +t3a( +\d\d\.\d ±\d+){4}",
        r"(?m)^fedavg\+finetune +none( +\d\d\.\d ±\d+){4}",
        r"changes the original stream by \+\d",
        r"changes the out-of-client stream by -\d",
    ],
    "own_method.py": [
        r"(?m)^fedavg\S* +none( +\d\d\.\d ±\d+){4}",
        r"(?m)^Blended\S* +t3a( +\d\d\.\d ±\d+){4}",
        r"Blended\S*: one client uploads 199,472 bytes",
    ],
    "own_adapter.py": [
        r"(?m)^fedavg\S* +Prior( +\d\d\.\d ±\d+){3}",
        r"with a reset after every batch:\naccuracy .*\nmethod +adapter +corrupted",
    ],
    "own_data_and_model.py": [
        r"1200 examples of 4 classes, training sizes \[\d+, \d+, \d+\]",
        r"(?m)^fedavg\S* +bn( +\d\d\.\d ±\d+){2}",
    ],
    "own_texts.py": [
        r"phrases: TextNet\(tokens=257, dim=32",
        r"(?m)^fedavg\S* +t3a( +\d\d\.\d ±\d+){2} *$",
        r"typos: '.+'\ncasing: '.+'\ntruncation: '.+'\ndropped_words: '.+'\nswapped_words: '.+'",
        r"reviews: 2 clients, classes \('1', '2'\)",
        r"(?m)^fedavg\S* +t3a( +\d+\.\d ±\d+){4}",
    ],
    "own_table.py": [
        r"cells: MLP\(hidden=\(200, 200\), norm='batch'",
        r"(?m)^fedthe\S* +the( +\d\d\.\d ±\d+){3}",
        r"visits: 4 clients, columns \['age', 'age', 'smokes=no', 'smokes=yes'\]",
        r"1 column has missing values \(age\): filled with the median of the training rows",
        r"(?m)^fedavg\S* +t3a( +\d\d\.\d ±\d+){4}",
    ],
    "resume_and_report.py": [
        r"interrupted after round 3",
        r"(?m)^fedbn\S* +tent( +\d\d\.\d ±\d+){4}",
        r"ends with the same bytes: True",
        r"run folder has config\.json, env\.json, metrics\.jsonl, pace\.json, report\.html, results\.json, state",
        r"one report over both runs: report\.html, \d",
    ],
}


def test_every_example_has_expectations_and_at_most_sixty_lines():
    files = sorted(EXAMPLES.glob("*.py"))
    assert [f.name for f in files] == sorted(SAYS)
    for f in files:
        assert len(f.read_text().splitlines()) < 60, f.name


SCRIPT = "own_data_and_model.py"
"""The one that runs as a script: a process takes seconds to import torch."""


def check(name, said, folder):
    for pattern in SAYS[name]:
        assert re.search(pattern, said), f"{pattern}\nnot in\n{said}"
    assert "nan" not in said
    assert not list(folder.iterdir()), "an example leaves files behind"


@pytest.mark.parametrize("name", [n for n in SAYS if n != SCRIPT])
def test_example_runs_and_says_what_it_should(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    check(name, capsys.readouterr().out, tmp_path)


def test_an_example_runs_as_a_script(tmp_path):
    """As a user starts it."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    check(SCRIPT, done.stdout, tmp_path)
