"""The tab key, as bash, zsh and fish ask for it: names of commands, settings, records and recipes, without torch."""

import os
import shutil
import subprocess
import sys

import pytest

from acclimate.cli import completion, index
from acclimate.recipes import RECIPES

CODE = "import sys; sys.argv[0] = 'acclimate'\nfrom acclimate.cli.main import main\nmain()"


def asked(shell, *words):
    """What a shell gets. Bash cuts words at `=`, which readline counts as the end of a word."""
    line, env = " ".join(("acclimate", *words)), {**os.environ, "_ACCLIMATE_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        cut = [w for word in ("acclimate", *words) for w in word.replace("=", " = ").split()]
        env |= {"COMP_WORDS": "\n".join(cut), "COMP_CWORD": str(len(cut) - 1)}
    else:
        env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, timeout=250)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_names_of_records(shell):
    wanted = "fedthe" if shell == "bash" else "method=fedthe"
    assert wanted in asked(shell, "run", "rounds=2", "method=fedth").replace('"', "").replace("))'", "").split()[-1]


def test_bash_gets_what_goes_on_after_the_equals_sign():
    assert asked("bash", "run", "method=").split()[:2] == ["local", "fedavg"]
    assert asked("bash", "run", "method=fedprox", "method.m").split() == ["method.mu="]
    assert asked("bash", "run", "adapters=none,t3").split() == ["none,t3a"]
    assert asked("bash", "tune", "method=fedprox", "streams=br").split() == ["brfl"]
    assert asked("bash", "reproduce", "show", "fedthe/table1").split()[0] == "fedthe/table1"
    assert "compare" in asked("bash", "comp").split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_script_that_is_installed(tmp_path):
    program = tmp_path / "acclimate"
    program.write_text(f"#!{sys.executable}\nfrom acclimate.cli.main import main\nmain()\n")
    program.chmod(0o755)
    script = (
        'eval "$(acclimate --show-completion bash)"; COMP_WORDS=(acclimate run method = fedth); COMP_CWORD=4; '
        '_acclimate_completion acclimate fedth =; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == "fedthe", done.stderr


def test_words_are_joined_where_a_shell_cut_them():
    assert completion.joined(["a", "=", "b", "c", "=", "d"]) == ["a=b", "c=d"]
    assert completion.joined(["a=b", "c"]) == ["a=b", "c"]


def test_the_index_names_the_recipes():
    assert index.read()["recipes"] == list(RECIPES)
    assert completion.one_of("recipes")("fedpcl/")[0].startswith("fedpcl/")
    assert "cifar10" in completion.one_of("datasets")("cif")
