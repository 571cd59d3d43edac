"""Who may import whom, and what needs no more than torch and numpy."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "acclimate"
LAYERS = [
    {"version", "core"},
    {"ops"},
    {"methods", "adapters", "personal", "filters", "models", "data", "shifts"},
    {"backends", "eval"},
    {"experiment"},
    {"store"},
    {"reporting", "live"},
    {"running"},
    {"fleet", "recipes", "serving", "tuning", "leaderboard"},
    {"cli"},
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}
DOORS = {SRC / "__init__.py", SRC / "__main__.py"}
"""What imports from the top, for users: of no layer."""
FILES = sorted(p for p in SRC.rglob("*.py") if p not in DOORS)
LIGHT = [
    "core",
    "ops",
    "methods",
    "adapters",
    "personal",
    "filters",
    "models",
    "data",
    "shifts",
    "eval",
    "backends",
]


def part_of(path: Path) -> str:
    first = path.relative_to(SRC).parts[0]
    return first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Top-level parts of acclimate that a file imports, wherever in the file."""
    out = set()
    package = ["acclimate", *path.relative_to(SRC).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module.split(".") if node.module else [])]
            if full[:1] == ["acclimate"]:
                out |= {full[1]} if len(full) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            out |= {a.name.split(".")[1] for a in node.names if a.name.startswith("acclimate.")}
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down(path):
    own = part_of(path)
    assert own in RANK, f"{own} has no place in the layers: add it to LAYERS and to docs/design.md"
    for other in imported(path) - {own}:
        assert RANK[other] < RANK[own], f"{path.name}: {own} may not import {other}"


def test_layers_name_what_is_there_and_the_design_names_them_alike():
    assert set(RANK) == {part_of(path) for path in FILES}
    design = (SRC.parents[1] / "docs" / "design.md").read_text()
    listed = design.partition("## Who imports whom")[2].split("```")[1].removeprefix("text\n")
    assert [set(line.split()) for line in listed.strip().splitlines()] == LAYERS


def test_light_parts_import_with_torch_and_numpy_alone():
    """A meta-path hook refuses every third-party package but torch, numpy and what these import themselves."""
    code = f"""
import sys, importlib, torch, numpy
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        heavy = "safetensors typer rich sklearn scipy PIL click pandas h5py dp_accounting flwr ray"
        if top in heavy.split():
            raise ImportError(f"{{name}} is not a light dependency")
sys.meta_path.insert(0, Refuse())
for part in {LIGHT!r}:
    module = importlib.import_module("acclimate." + part)
from acclimate.experiment import catalogue, record
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == "ok", done.stderr


@pytest.mark.parametrize("line", ["import acclimate", "import acclimate.cli.main", "from acclimate import __version__"])
def test_import_and_help_need_no_torch(line):
    code = f"import sys\n{line}\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_public_names_resolve_and_have_docstrings():
    import inspect

    import acclimate

    for name in acclimate.__all__:
        value = getattr(acclimate, name)
        if name != "__version__":
            assert inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = acclimate.nonsense


def test_names_that_pages_use_are_there_at_once():
    """What is loaded on first use must not depend on what was used before it, as `ac.core` did."""
    import acclimate

    root = SRC.parents[1]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    used = {name for page in pages for name in re.findall(r"\bac\.([A-Za-z_]\w*)", page.read_text())}
    assert {"core", "data", "train"} <= used <= set(acclimate.__all__)
    code = "import acclimate as ac\nassert ac.core.Work(batch=8).batch == 8"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_every_public_name_has_a_docstring_and_every_module_too(path):
    module = ast.parse(path.read_text())
    if module.body:
        assert ast.get_docstring(module), f"{path}: no module docstring"
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"
