"""What stands around the code: whom to cite, how to contribute, forms, the container and the app of Flower."""

import re
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
