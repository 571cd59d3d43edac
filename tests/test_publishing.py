"""What stands around the code: whom to cite, how to contribute, forms, the container and the app of Flower."""

import json
import re
import tomllib
from pathlib import Path

import yaml

from acclimate.version import __version__

ROOT = Path(__file__).parents[1]
FORMS = sorted(p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")


def test_the_citation_has_this_version_and_the_five_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__ and cited["cff-version"] == "1.2.0"
    papers = {}
    for paper in cited["references"]:
        page = ROOT / re.search(r"docs/papers/\w+\.md", paper["notes"])[0]
        papers[page] = paper
        head = page.read_text().partition("\n## ")[0]
        assert f"*{paper['title']}*" in head, page
        assert paper["authors"][0]["family-names"] in head
        short = re.search(r"\((.+)\)", paper["conference"]["name"])[1]
        assert short == "SDM" or (short in head and str(paper["year"]) in head), "the page cites a preprint of SDM's"
    assert sorted(papers) == sorted((ROOT / "docs" / "papers").glob("*.md"))


def test_the_version_of_the_readme_is_this_one():
    assert f"version = {{{__version__}}}" in (ROOT / "README.md").read_text()


def test_forms_ask_for_what_a_reviewer_needs():
    assert len(FORMS) == 3
    for path in FORMS:
        form = yaml.safe_load(path.read_text())
        asked = [field for field in form["body"] if field["type"] != "markdown"]
        ids = [field["id"] for field in asked]
        assert form["name"] and form["description"] and len(ids) == len(set(ids)), path.name
        assert {field["type"] for field in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
        assert all(field["attributes"]["label"] for field in asked)
        assert any(field.get("validations", {}).get("required") for field in asked)
    assert yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text()) == {"blank_issues_enabled": False}


def test_what_contributors_are_told_is_there():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for line in re.findall(r"`make ([\w -]+)`", text) for word in line.split()}
    assert named and named <= targets
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert any((base / path).exists() for base in (ROOT, ROOT / "src" / "acclimate")), path
    for heading in ("Set up", "Code", "Tests", "A pull request", "A release", "A row of the leaderboard"):
        assert f"\n## {heading}\n" in text


def test_the_platforms_that_are_said_to_be_tested_have_stored_results():
    stored = "\n".join(p.read_text() for p in (ROOT / "results").rglob("*.json"))
    text = (ROOT / "docs" / "platforms.md").read_text()

    def named(field):
        return {part for value in re.findall(rf'"{field}": "([^"]+)"', stored) for part in value.split(", ")}

    assert named("platform") == {"Linux x86_64", "Linux aarch64"}
    assert all(f"| {system}, " in text for system in named("platform"))
    assert "and".join(sorted(f" {v} " for v in named("python"))).strip() in text
    for name, state in (("macOS", "untested"), ("Windows", "untested")):
        assert f"| {name} | **{state}**" in text and not any(name in system for system in named("platform"))
    assert {v.partition("+")[0] for v in named("torch")} == set(re.findall(r"\d\.\d+\.\d+(?= \(C)", text))


# --- the container of a site ------------------------------------------------------------------------------------------


def instructions():
    """(word, rest) of every instruction of the Dockerfile, with lines that go on put together."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_the_image_runs_as_a_plain_user_and_holds_no_secret():
    steps = instructions()
    known = ["FROM", "WORKDIR", "COPY", "RUN", "ARG", "ENV", "USER", "VOLUME", "ENTRYPOINT"]  # ADD also downloads
    assert [word for word, _ in steps if word not in known] == []
    users = [rest for word, rest in steps if word == "USER"]
    assert users and users[-1] not in ("root", "0") and any(f"--create-home {users[-1]}" in rest for _, rest in steps)
    order = [word for word, _ in steps]
    assert order.index("USER") > max(i for i, word in enumerate(order) if word == "RUN"), "it only installs as root"
    for word, rest in steps:
        assert not re.search(r"(?i)(password|passwd|token|api_?key|private|\.key|\.pem)", rest), (word, rest)
        assert not re.search(r"curl|wget|sudo|chmod\s+777|--trusted-host|\|\s*sh\b", rest), (word, rest)
    declared = [rest for word, rest in steps if word in ("ARG", "ENV")]
    assert not any("SECRET" in d and "=/state" not in d for d in declared), "a place for keys, and never a key"


def test_the_image_pins_what_it_is_built_of():
    steps, constraints = instructions(), (ROOT / "constraints.txt").read_text().splitlines()
    for word, rest in steps:
        if word == "FROM":
            image, _, tag = rest.split()[0].partition(":")
            assert image == "python" and re.match(r"3\.1[123]-slim", tag), "a supported Python, and not the latest"
        if word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest
            assert "-c /tmp/constraints.txt" in rest or re.search(r"torch==[\d.]+$", rest), rest
    (torch,) = {m for _, rest in steps for m in re.findall(r"torch==[\d.]+", rest)}
    assert torch in constraints


def test_the_image_gets_files_that_exist_and_nothing_else():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    copied = {
        name for word, rest in instructions() if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    }
    assert copied == allowed and all((ROOT / name).exists() for name in copied)


def test_the_image_starts_what_fleet_init_writes():
    from acclimate.fleet import site_folders

    entry = json.loads(next(rest for word, rest in instructions() if word == "ENTRYPOINT"))
    assert entry == ["sh", "/site/start.sh", "/data", "/state"]
    assert "start.sh DATA STATE" in site_folders.NODE
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.search(r"\$\{wheel\}\[([\w,]+)\]", (ROOT / "Dockerfile").read_text())[1].split(",")
    assert {"flower", "serve"} <= set(asked) <= set(extras)
    guide = (ROOT / "docs" / "fleet.md").read_text().partition("### In a container")[2].partition("\n### ")[0]
    may = {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    assert set(re.findall(r"--build-arg (\w+)=", guide)) == may
    mounts = {place.removesuffix("/start.sh") for place in entry[1:]}
    assert set(re.findall(r"-v \S+?:(/\w+)", guide)) == mounts


def test_the_documentation_is_published_by_version():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(name.startswith("mike") for name in extras["docs"])
    assert "provider: mike" in (ROOT / "mkdocs.yml").read_text()
    assert "mike deploy --update-aliases" in (ROOT / "Makefile").read_text()
