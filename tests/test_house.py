"""The tree shows the architecture: few rooms, no circles, short files, one name for one thing."""

import ast
import functools
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from test_imports import LAYERS, SRC

ROOT = SRC.parents[1]
FILES = sorted(SRC.rglob("*.py"))
LINES = {p.relative_to(SRC).as_posix(): len(p.read_text().splitlines()) for p in FILES}
METHODS = {name: n for name, n in LINES.items() if re.fullmatch(r"methods/(?!__init__)\w+\.py", name)}
LISTINGS = {name: n for name, n in LINES.items() if re.fullmatch(r"(methods|adapters)/(?!__init__)\w+\.py", name)}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(p): p for p in FILES}


def imported(path: Path) -> set[str]:
    """The modules of acclimate that a file imports, wherever in it, as precisely as its text says."""
    package = module_of(path).split(".") if path.name == "__init__.py" else module_of(path).split(".")[:-1]
    out = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            inner = {f"{full}.{a.name}" for a in node.names} & MODULES.keys()
            out |= inner or ({full} & MODULES.keys())
        elif isinstance(node, ast.Import):
            out |= {a.name for a in node.names} & MODULES.keys()
    return out - {module_of(path)}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, or none."""
    done: set[str] = set()

    def walk(module: str, way: list[str]) -> list[str]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if found := walk(other, [*way, module]):
                return found
        done.add(module)
        return []

    return next((found for module in sorted(graph) if (found := walk(module, []))), [])


def test_no_two_modules_import_each_other():
    # the package's own __init__ loads names when they are asked for, so its imports are for type checkers alone
    graph = {name: imported(path) for name, path in MODULES.items() if name != "acclimate"}
    assert circle({name: others - {"acclimate"} for name, others in graph.items()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


def test_the_root_has_rooms_and_no_furniture():
    assert {p.name for p in SRC.glob("*.py")} == {"__init__.py", "__main__.py", "version.py"}
    assert len(LAYERS) <= 10


def test_no_file_is_long():
    assert {name: n for name, n in LINES.items() if n > 350} == {}
    assert {name: n for name, n in LISTINGS.items() if n > 120} == {}


def defined_again(body: list[ast.stmt]) -> list[str]:
    """Functions and classes of a module or a class whose name is given to something else further down."""
    seen: set[str] = set()
    out = []
    for node in body:
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        plain = not named or not node.decorator_list  # `overload` and `setter` give a name again
        targets = node.targets if isinstance(node, ast.Assign) else []
        names = [node.name] if named else [t.id for t in targets if isinstance(t, ast.Name)]
        out += [name for name in names if name in seen and plain]
        seen |= {name for name in names if named}
    return out + [n for node in body if isinstance(node, ast.ClassDef) for n in defined_again(node.body)]


def test_a_function_that_is_defined_twice_is_found():
    twice = "def f(): ...\nf = 1\nclass A:\n def g(self): ...\n def g(self): ..."
    assert defined_again(ast.parse(twice).body) == ["f", "g"]


def test_no_function_is_silently_replaced_by_another_of_its_name():
    found = {p.name: defined_again(parsed(p).body) for p in FILES}
    assert not {name: names for name, names in found.items() if names}


def test_no_two_files_of_tests_have_one_name():
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest refuses the second, wherever it is"


def test_a_method_is_a_small_file():
    assert statistics.median(METHODS.values()) <= 70


def public_classes() -> dict[str, dict[str, set[str]]]:
    """Class name -> package -> modules that define it."""
    out: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                out[node.name][module_of(path).split(".")[1]].add(module_of(path))
    return out


def test_one_name_one_class():
    """A method and its own adapter may share the paper's name, and `ac.data.Table` is what users call a table, as
    results are one (`ac.Table`); nothing else may share a name."""
    for name, packages in public_classes().items():
        shared = {"data", "eval"} if name == "Table" else {"methods", "adapters"}
        assert set(packages) in (shared, {next(iter(packages))}), (name, dict(packages))
        assert all(len(modules) == 1 for modules in packages.values()), (name, dict(packages))


DESIGN = (ROOT / "docs" / "design.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next one of the same depth."""
    depth = title.split(" ")[0]
    found = DESIGN.partition(f"\n{title}\n")[2]
    assert found, f"docs/design.md has no section '{title}'"
    return re.split(rf"\n#{{1,{len(depth)}}} ", found)[0]


@pytest.mark.parametrize("title", ["## Where do I change X?", "### A message's way", "### A test sample's way"])
def test_the_design_names_files_and_functions_that_exist(title):
    text = section(title)
    named = re.findall(r"`((?:[\w]+/)+\w+\.\w+|(?:\w+/)+)(?::([\w.]+))?`", text)
    assert len(named) >= 8
    for path, name in named:
        at = next((base / path for base in (SRC, ROOT) if (base / path).exists()), None)
        assert at is not None, f"{title}: {path} does not exist"
        for part in filter(None, name.split(".")):
            assert re.search(rf"(def|class) {part}\b|^{part}\b", at.read_text(), re.M), f"{path} has no {part}"


@pytest.mark.parametrize("room", ["core", "backends", "backends/flower", "backends/vmap", "backends/workers", "fleet"])
def test_the_layout_names_every_file_of_the_rooms_that_are_hard_to_guess(room):
    words = set(re.findall(r"\w+", section("## Layout")))
    assert [p.stem for p in sorted((SRC / room).glob("*.py")) if p.stem not in words | {"__init__"}] == []


def test_the_map_answers_each_change_by_one_file():
    rows = [line for line in section("## Where do I change X?").splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 12
    assert all(len(re.findall(r"`[\w/]+\.\w+", row.split("|")[2])) == 1 for row in rows), rows


@pytest.mark.parametrize("title", ["### A message's way", "### A test sample's way"])
def test_each_way_is_told_in_ten_lines(title):
    steps = [line for line in section(title).splitlines() if re.match(r"\d+\. ", line)]
    assert 8 <= len(steps) <= 10


def test_the_glossary_has_one_meaning_for_each_word():
    words = re.findall(r"^\| \*?\*?([\w -]+?)\*?\*? \|", section("## Glossary"), re.M)[1:]
    assert len(words) >= 25 and len(words) == len({w.lower() for w in words})


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_source_files_that_docs_name_exist(page):
    named = re.findall(r"`((?:\w+/)+\w+\.py)[`:]", page.read_text())
    assert [n for n in named if not any((base / n).exists() for base in (SRC, ROOT))] == []


def test_no_page_of_a_test_has_the_browsers_own_limit():
    """Playwright gives up after 30 seconds, which a busy machine may need."""
    opened = re.compile(r"(.*)\b(?:browser|context)\.new_page\(")
    every = (line for p in (ROOT / "tests").rglob("test_*.py") for line in p.read_text().splitlines())
    lines = [m[1] for line in every if ".new_page(" in line for m in opened.finditer(line)]
    assert len(lines) >= 8 and [line for line in lines if not line.endswith("patient(")] == []
