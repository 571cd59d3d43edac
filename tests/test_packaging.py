"""What is published is whole: the wheel holds every file of the package and runs without the repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "acclimate"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = ["pyproject.toml", "README.md", "LICENSE", "src"]
"""All that building needs."""
LIMIT = 3600
"""Seconds for a command that hangs: to install torch takes a busy machine over a quarter of an hour."""


def files() -> set[str]:
    """Every file of the package, by its path in a wheel."""
    found = (p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {p.relative_to(PACKAGE.parent).as_posix() for p in found}


def packed() -> set[str]:
    """The files that the settings put into a wheel: modules of packages, and data by its patterns."""
    modules = {p for p in PACKAGE.rglob("*.py") if (p.parent / "__init__.py").exists()}
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["acclimate"]
    data = {p for pattern in patterns for p in PACKAGE.glob(pattern)}
    return {p.relative_to(PACKAGE.parent).as_posix() for p in modules | data}


def test_a_wheel_gets_every_file_of_the_package():
    assert sorted(files() - packed()) == []
    wanted = {"py.typed", "cli/index.json", "reporting/page.css", "leaderboard/frozen/small.json"}
    assert wanted <= {name.removeprefix("acclimate/") for name in packed()}


def test_every_pattern_of_package_data_finds_a_file():
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["acclimate"]
    assert [p for p in patterns if not any(PACKAGE.glob(p))] == []


def bare() -> dict[str, str]:
    """An environment in which nothing leads to the repository, and torch has one thread."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ACCLIMATE", "VIRTUAL_ENV"))}
    return {**kept, "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "OMP_NUM_THREADS": "1"}


def command(*words: object, **more: object) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=LIMIT, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{words}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the source archive, made of a copy: building leaves files beside the source."""
    if find_spec("build") is None:
        pytest.skip("the package build is not installed")
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    command(sys.executable, "-m", "build", "--outdir", out, copy)
    return out


def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_wheel_and_source_archive_hold_the_package_and_nothing_else(built):
    with zipfile.ZipFile(wheel(built)) as z:
        inside = {n for n in z.namelist() if ".dist-info/" not in n}
    assert inside == files()
    with tarfile.open(next(built.glob("*.tar.gz"))) as t:
        names = {n.partition("/")[2] for n in t.getnames()}
    assert {f"src/{f}" for f in files()} | {"LICENSE", "README.md", "pyproject.toml"} <= names


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_the_wheel_runs_in_a_bare_environment(built, tmp_path):
    """A new environment, the wheel and what it asks for, another folder, and no repository."""
    command(sys.executable, "-m", "venv", tmp_path / "venv")
    bin = tmp_path / "venv" / "bin"
    command(bin / "python", "-m", "pip", "install", "-q", wheel(built), env=bare())
    (work := tmp_path / "work").mkdir()
    here = {"cwd": work, "env": bare()}
    where = command(bin / "python", "-c", "import acclimate; print(acclimate.__file__)", **here)
    assert where.startswith(str(tmp_path))
    assert "fedthe" in command(bin / "acclimate", "list", "methods", **here)
    small = ["method=fedthe", "adapters=none,the", "data.clients=3", "model=mlp", "rounds=1", "streams=original"]
    said = command(bin / "acclimate", "run", *small, "-o", "first", "-q", **here)
    assert "fedthe" in said and (work / "first" / "report.html").stat().st_size > 10_000
    board = "from acclimate.leaderboard import frozen; print(frozen('small'))"
    assert "original" in command(bin / "python", "-c", board, **here)
    assert "fedthe" in command(bin / "acclimate", "reproduce", "list", **here)
    command(bin / "python", "-m", "pip", "check", env=bare())


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
@pytest.mark.skipif(find_spec("pipx") is None, reason="the package pipx is not installed")
def test_the_wheel_runs_by_pipx(built, tmp_path):
    homes = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    homes["PIPX_DEFAULT_BACKEND"] = "pip"  # uv, which it prefers, reads no settings of pip's, such as the constraints
    env = bare() | homes | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if (Path(p) / "pipx").is_dir())}
    said = command(sys.executable, "-m", "pipx", "run", "--spec", wheel(built), "acclimate", "--version", env=env)
    assert said.startswith("acclimate ")
