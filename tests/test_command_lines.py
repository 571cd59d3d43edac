"""Every command line that a page tells is one that its parser takes: in blocks, in sentences and in tables."""

import dataclasses
import functools
import json
import re
import shlex
import subprocess
import sys

import pytest

from acclimate.experiment import catalogue
from test_docs import FENCE, PAGES, ROOT, commands, name_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning"),  # typer imports a name click renamed
    pytest.mark.usefixtures("nobody_is_trusted_after"),
]
WITHOUT_PARSER = {
    "benchmarks/newest.py",
    "benchmarks/tables.py",
    "benchmarks/worlds.py",
    "scripts/draw_layers.py",
}
"""Scripts that take no options, at most the name of a file."""
FINE = ("parsed", "needs triton")
"""Triton is there where a GPU is."""
WRONG = (("benchmarks/gpu.py", "--onyl", "zipf"), ("benchmarks/gpu.py", "--only", "zippf"))


def spans(page):
    """What stands between backticks in a page's sentences and tables, on one line each."""
    text = FENCE.sub("", page.read_text())
    return [" ".join(span.split()) for part in text.split("\n\n") for span in re.findall(r"`([^`]+)`", part)]


def words_of(line):
    """A command line split into words, without variables before it."""
    words = shlex.split(line)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    return words


def script_of(words):
    """(path, argument, ...) of words that run or name a script of the repository; None of any other."""
    path, *arguments = words[words[:1] == ["python"] :] or [""]
    if arguments and (ROOT / "benchmarks" / path).is_file():
        path = f"benchmarks/{path}"  # tables name them so
    return (path, *arguments) if re.fullmatch(r"(benchmarks|scripts|tests)/\w+\.py", path) else None


def told():
    """Of every script in blocks, sentences and tables: {its command line: page}, and {the name alone: page}."""
    run, named = {}, {}
    for page in PAGES:
        lines = [*map(shlex.join, commands(page)), *(s for s in spans(page) if ".py" in s and "'" not in s)]
        for words in map(words_of, lines):
            if script := script_of(words):
                (run if words[0] == "python" or script[1:] else named)[script] = name_of(page)
    return run, named


@pytest.fixture(scope="module")
def answers():
    """What the scripts' own parsers say of every command line, and of two wrong ones, in a process of their own."""
    asked = [line for line in told()[0] if line[0] not in WITHOUT_PARSER and not line[0].startswith("tests/")]
    lines = [*asked, *WRONG]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "parse_scripts.py")],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(lines, json.loads(done.stdout), strict=True))


def test_scripts_take_the_arguments_that_pages_give_them(answers):
    run, named = told()
    assert len(run) > 60 and ("benchmarks/gpu.py", "--only", "zipf") in run and ("benchmarks/backbones.py",) in run
    assert [(page, line) for line, page in (run | named).items() if not (ROOT / line[0]).is_file()] == []
    assert {(run[line], line): a for line, a in answers.items() if a not in FINE and line not in WRONG} == {}
    plain = [line[1:] for line in run if line[0] in WITHOUT_PARSER]
    assert [words for words in plain if len(words) > 1 or "".join(words).startswith("-")] == []


def test_the_check_of_scripts_can_fail(answers):
    unknown, wrong = (answers[line] for line in WRONG)
    assert "unrecognized arguments: --onyl" in unknown and "invalid choice: 'zippf'" in wrong


def told_of_acclimate():
    """(page, words) of every `acclimate SUB ...` in a sentence or a table."""
    found = {}
    for page in PAGES:
        for span in spans(page):
            if re.match(r"acclimate [a-z]", span):
                words = [w for w in shlex.split(span) if w not in ("...", "acclimate")]
                found.setdefault(tuple(words), name_of(page))
    return found


@functools.cache
def app():
    """The whole command line."""
    import typer

    from acclimate.cli import main as cli

    return typer.main.get_command(cli.app)


def command_of(words):
    """The command that these words name, and what is left of them."""
    command, rest = app(), list(words)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize("words", [pytest.param(w, id=" ".join(w)) for w in told_of_acclimate()])
def test_commands_in_sentences_are_those_of_the_command_line(words):
    """A command alone must be there; with words behind it, they must be taken."""
    command, rest = command_of(words)
    assert command.name != "acclimate" and len(rest) < len(words), words
    if rest and not hasattr(command, "commands"):
        assert command.make_context(command.name, rest).params


def test_the_check_of_sentences_can_fail():
    with pytest.raises(Exception, match="(?i)no such option"):
        test_commands_in_sentences_are_those_of_the_command_line(("resume", "FOLDER", "--agian"))
    with pytest.raises(AssertionError):
        test_commands_in_sentences_are_those_of_the_command_line(("resmue", "FOLDER"))


def fields_of(record, path):
    """Whether a record, or a record in it, has this field; None where that cannot be told, behind a choice."""
    for name in path:
        if not dataclasses.is_dataclass(record):
            return None
        if name not in {field.name for field in dataclasses.fields(record)}:
            return False
        record = getattr(record, name)
    return True


def known(setting):
    """Whether some record of its kind has the field that a setting such as `backend.chunk=16` names."""
    kind, *path = setting.partition("=")[0].split(".")
    entries = {k.plural: k.entries for k in catalogue.KINDS}
    if kind in ("adapters", "streams", "filters"):
        name, *path = path
        records = [entries[kind].get(name.removeprefix("guarded-"))]
    elif kind == "data" and path[0] in ("partition", "split", "augment") and path[1:]:
        records, path = entries[f"{path[0]}s"].values(), path[1:]
    else:
        records = entries["datasets" if kind == "data" else f"{kind}s"].values()
    return any(fields_of(record, path) is not False for record in records)


def settings(page):
    """What looks like a dotted setting of an experiment, in a page's sentences and tables."""
    kinds = "adapters|streams|filters|method|model|data|personal|backend"
    return {w for span in spans(page) for w in re.findall(rf"(?<![\w.])(?:{kinds})(?:\.[\w-]+)+=(?!=)", span)}


def test_settings_in_sentences_name_fields_that_records_have():
    found = {(name_of(page), setting) for page in PAGES for setting in settings(page)}
    assert len(found) > 80 and [pair for pair in sorted(found) if not known(pair[1])] == []
    assert known("backend.chunk=") and not known("backend.chunks=") and not known("adapters.tent.rate=")
