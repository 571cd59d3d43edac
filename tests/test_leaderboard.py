"""The leaderboard: what is stored holds, can be made again, and cannot be tampered with unseen."""

import copy
import html
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.eval import Table
from acclimate.eval.same_stream import names
from acclimate.experiment import catalogue, encode
from acclimate.experiment.settings import expand
from acclimate.leaderboard import TRACKS, Unfit, check, frozen, track
from acclimate.leaderboard import __main__ as plain
from acclimate.leaderboard import page as pages
from acclimate.leaderboard.folder import Rerun, file_name, read, rerun, submit
from acclimate.leaderboard.submission import _answered, _refusals, _seed, digest, text
from acclimate.leaderboard.sweep import entries
from acclimate.leaderboard.tracks import as_frozen, freeze, mismatch
from acclimate.models import CNN
from acclimate.running import run as api
from acclimate.shifts.base import frost
from acclimate.store import find_runs

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "results" / "leaderboard" / "brfl-v1"
FIRST = BOARD / "small" / "fedavg.v1.json"


@pytest.fixture(scope="module")
def first():
    return json.loads(FIRST.read_text())


@pytest.fixture
def ice(tmp_path, monkeypatch):
    """A data root that has pictures of ice, as users of the common corruptions do."""
    (tmp_path / "frost").mkdir()
    for i in range(5):
        Image.new("RGB", (120, 120), (40 * i, 200, 255)).save(tmp_path / "frost" / f"frost{i}.png")
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))


def test_tracks_draw_their_frost_whatever_the_data_root_has(ice, monkeypatch):
    assert frost().source == "files"
    with as_frozen():
        assert frost().source == "synthesised"
    assert frost().source == "files"
    monkeypatch.setenv("ACCLIMATE_FROST", "files")
    with pytest.raises(ValueError, match=r"ACCLIMATE_FROST='files' must be synthesised, or empty"):
        frost()


def test_a_run_with_other_frost_is_refused_with_the_remedy():
    streams = {"original": {"hash": "h"}, "corrupted": {"hash": "h", "frost": "files"}}
    with pytest.raises(Unfit, match="stream corrupted: its frost .* run the track with ACCLIMATE_FROST=synthesised"):
        _seed({"results": {"data": {"streams": streams}}})


def test_the_small_track_is_what_was_frozen(ice):
    found, known = freeze(track("small")), frozen("small")
    assert found | {"seeds": None} == known | {"seeds": None} and found["seeds"].keys() == known["seeds"].keys()
    for seed, own in known["seeds"].items():
        assert mismatch(found["seeds"][seed], own) is None
        for name, stream in own["streams"].items():
            assert found["seeds"][seed]["streams"][name]["sizes"] == stream["sizes"]


@pytest.fixture
def elsewhere(first):
    """The first submission as another machine writes it: its streams have sketches, and not the frozen bytes."""
    body = copy.deepcopy(first) | {"schema": "acclimate.submission/2"}
    for seed, own in body["seeds"].items():
        known = frozen("small")["seeds"][seed]["streams"]
        near = {s: [round(v + 0.05, 4) for v in c["sketch"]] for s, c in known.items()}  # 0.4 levels off
        own["streams"] = {s: {"hash": "f" * 16, "examples": c["examples"], "sketch": near[s]} for s, c in known.items()}
    body["digest"] = digest(body)
    return body


def test_a_submission_of_another_machine_holds_beside_the_old_ones(first, elsewhere, tmp_path):
    check(elsewhere)
    config = {**elsewhere["config"], "method": encode(catalogue.METHODS["fedprox"])}
    other = elsewhere | {"name": "fedprox", "config": config}
    other["digest"] = digest(other)
    for body in (first, other):
        (tmp_path / file_name(body)).write_text(text(body))
    board = pages.board_of(read(tmp_path))
    assert {r.name for r in board.rows} == {"fedavg", "fedprox"} and len({str(r.tested_on) for r in board.rows}) == 1


def far_off(streams):
    streams["corrupted"]["sketch"][7] += 5


def other_examples(streams):
    streams["mixture"]["examples"] = "0" * 16


def no_sketch(streams):
    del streams["corrupted"]["sketch"]


def no_stream(streams):
    del streams["corrupted"]


def one_more(streams):
    streams["easy"] = streams["original"]


STREAMS = {
    far_off: r"stream corrupted is not the track's: its inputs are 5\.\d+ levels of 255 off",
    other_examples: "stream mixture is not the track's: its examples, their order or labels are others, named 0000",
    no_sketch: "stream corrupted is not the track's: its hash is ffff",
    no_stream: "stream corrupted is missing",
    one_more: "stream easy is not of the track",
}


@pytest.mark.parametrize("change", STREAMS, ids=lambda c: c.__name__)
def test_another_stream_is_refused_with_the_reason(elsewhere, change):
    change(elsewhere["seeds"]["1"]["streams"])
    elsewhere["digest"] = digest(elsewhere)
    with pytest.raises(Unfit, match="seed 1: " + STREAMS[change]):
        check(elsewhere)


def test_all_that_is_stored_holds_and_the_table_is_made_again_to_the_byte():
    for name in TRACKS:
        if (BOARD / name).exists():
            found = read(BOARD / name)
            assert (BOARD / f"{name}.md").read_text() == pages.markdown(found, name)
            if name == "small":
                assert_all_are_there(found)
            else:
                told = f"`{name}` has {len(found)} submissions with {sum(map(count, found.values()))} rows"
                assert told in (ROOT / "docs" / "leaderboard.md").read_text()


def assert_all_are_there(found):
    """Every method and adapter of the catalogue, but for those that the page names with the reason."""
    told = (ROOT / "docs" / "leaderboard.md").read_text()
    absent = {e.name for e in entries()} - found.keys()
    assert absent == {"heterofedtta", "fedmd"} and all(f"`{name}`" in told for name in absent)
    tested = {r["adapter"] for versions in found.values() for r in versions[-1]["rows"]}
    unfit = set(catalogue.ADAPTERS) - tested
    assert unfit == {"unmix", "note", "dpa", "the-lora"} and all(f"`{name}`" in told for name in unfit)
    assert f"{len(found)} submissions" in told and f"{sum(map(count, found.values()))} rows" in told


def count(versions):
    return len({r["adapter"] for r in versions[-1]["rows"]})


def test_a_stored_row_run_again_matches(first):
    found = rerun(first, "none", 0)
    assert found.matches and found.gaps.keys() == {"original", "corrupted", "out-of-client", "mixture"}
    assert not Rerun(False, {"original": 0.0, "mixture": 0.03}).matches


def other_hash(body):
    body["seeds"]["0"]["data"]["train"] = "0" * 16


def other_stream(body):
    body["seeds"]["1"]["streams"]["corrupted"] = "0" * 16


def other_seed(body):
    body["seeds"]["7"] = body["seeds"].pop("2")


def extra_row(body):
    body["rows"].append({**body["rows"][0], "stream": "easy"})


def double_row(body):
    body["rows"].append(dict(body["rows"][0]))


def missing_row(body):
    body["rows"].pop()


def better_client(body):
    body["rows"][0]["per_client"][0] = 0.987654


def better_mean(body):
    body["rows"][0]["accuracy"] += 0.01


def other_rounds(body):
    body["config"]["rounds"] = 500


def other_skew(body):
    body["config"]["data"]["partition"]["alpha"] = 9.5


def other_batch(body):
    body["config"]["streams"][1]["batch"] = 7


def other_model(body):
    body["config"]["model"] = encode(CNN())


def fewer_streams(body):
    body["config"]["streams"] = body["config"]["streams"][:1]


def other_round(body):
    body["rows"][0]["round"] = 9


def extra_adapter(body):
    body["rows"] += [{**r, "adapter": "magic"} for r in body["rows"] if r["adapter"] == "none"]


def no_error_at_all(body):
    body["rows"][0]["ece"] = -0.1


def chosen_on_test(body):
    body["hyper_parameters"] = "test"


def unclean(body):
    body["commit"] += "-dirty"


def unclean_seed(body):
    body["seeds"]["1"]["commit"] = "abc-dirty"


def another_name(body):
    body["name"] = "fedthe"


REASONS = {
    other_hash: "seed 0: the hash of train is 0000000000000000",
    other_stream: "seed 1: stream corrupted is not the track's: its hash is 0000000000000000, and must be",
    other_seed: r"seeds \['0', '1', '7'\] must be \['0', '1', '2'\]",
    extra_row: "easy / 0 is not of the track",
    double_row: "1 rows are there twice",
    missing_row: "is missing; an adapter is submitted with all streams and seeds",
    better_client: "cannot have accuracy 0.987654",
    better_mean: "is not the mean over clients",
    other_rounds: r"config: rounds is 500, and the track's is 10; `python -m acclimate.leaderboard run small",
    other_skew: r"config: data\.partition\.alpha is 9\.5, and the track's is 0\.05;",
    other_batch: r"config: streams\[1\]\.batch is 7, and the track's is 32;",
    other_model: r"config: model is CNN, and the track's is MLP;",
    fewer_streams: r"config: streams is \[Original\], and the track's is \[Original, Corrupted, ",
    other_round: "none / original / 0: it is of round 9, and the track tests round 10",
    extra_adapter: "rows: adapter magic is not in the configuration",
    no_error_at_all: "ece -0.1 are not possible",
    chosen_on_test: "what was chosen on the test streams is no result",
    unclean: "run from a clean commit",
    unclean_seed: "commit='abc-dirty': run from a clean commit",
    another_name: "name='fedthe', and the configuration is of 'fedavg'",
}


@pytest.mark.parametrize("change", REASONS, ids=lambda c: c.__name__)
def test_a_tampered_submission_is_refused_with_the_reason(first, change):
    body = copy.deepcopy(first)
    change(body)
    with pytest.raises(Unfit, match="changed after it was written"):
        check(body)
    body["digest"] = digest(body)
    with pytest.raises(Unfit, match=REASONS[change]):
        check(body)


PLACES = [("name",), ("version",), ("note",), ("hyper_parameters",), ("config",), ("config", "method"), ("commit",)]
PLACES += [("environment",), ("seeds",), ("seeds", "0"), ("seeds", "0", "data"), ("seeds", "0", "streams")]
PLACES += [("seeds", "0", "serving"), ("up_bytes",), ("rows",), ("rows", 0), ("rows", 0, "per_client"), ("refused",)]


@pytest.mark.parametrize("place", PLACES, ids=lambda p: "-".join(map(str, p)))
@pytest.mark.parametrize("value", [None, "x", [], {"x": 1}, "gone"], ids=str)
def test_whatever_a_field_holds_a_malformed_submission_is_unfit_and_no_crash(first, place, value):
    small = {**first, "rows": first["rows"][:1]}
    body = copy.deepcopy(small)
    inner = body
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    if value == "gone":
        del inner[place[-1]]
    body["digest"] = digest(body)
    with pytest.raises(Unfit):
        check(body)


def test_every_seed_notes_the_commit_that_it_was_run_from(monkeypatch):
    module = importlib.import_module("acclimate.leaderboard.submission")  # the package has a function of that name

    def run(seed, commit):
        empty = {"table": [], "refused": [], "timings": {}, "data": {"hash": "h", "splits": {}, "streams": {}}}
        cost = {"up_bytes_per_client": 1, "down_bytes_per_client": 1}
        results = {"seed": seed, "label": "fedavg", "cost": cost, **empty}
        loaded = {"results": results, "config": {"experiment": {"data": {}}}, "env": {"commit": commit}}
        return SimpleNamespace(finished=True, load=lambda: loaded)

    monkeypatch.setattr(module.store, "find_runs", lambda path: [run(1, "later"), run(0, "first")])
    monkeypatch.setattr(module, "check", lambda body: None)
    body = module.submission(Path("runs"), "small", "defaults")
    assert {seed: own["commit"] for seed, own in body["seeds"].items()} == {"0": "first", "1": "later"}
    assert module.commits(body) == ["first", "later"]


def test_an_adapter_that_fails_with_one_seed_has_no_rows_and_the_reason_names_the_seed():
    def run(seed, *refused):
        return {"results": {"seed": seed, "refused": [{"adapter": a, "reason": r} for a, r in refused]}}

    cannot = ("tent", "it needs norms")
    runs = [run(0, cannot), run(1, cannot, ("cotta", "not finite on client 17")), run(2, cannot)]
    refused = _refusals(runs)
    assert refused == {"tent": "it needs norms", "cotta": "not finite on client 17, with seed 1"}
    few, too = ("sar", "stream a: too few values"), ("sar", "stream b: too few values")
    assert _refusals([run(0), run(1, few, too), run(2)]) == {"sar": "stream a: too few values, with seed 1"}
    assert _refusals([run(0), run(1, few, too)]) == {"sar": "stream a: too few values, with seed 1"}  # two of one seed
    assert _refusals([run(seed, few, too) for seed in (0, 1)]) == {"sar": "stream a: too few values"}
    table = [{"adapter": a, "selection": s} for a in ("none", "cotta") for s in ("last", "validation")]
    assert _answered(table, refused) == [{"adapter": "none", "selection": "last"}]


def test_the_table_names_adapters_that_failed_and_not_those_that_a_model_cannot_serve():
    told = (BOARD / "cifar10-cnn.md").read_text().splitlines()
    line = next(line for line in told if line.startswith("- fedavg, version 1"))
    assert "without rows: cotta produced values that are not finite on client(s) 17 of stream corrupted" in line
    assert "mbsl" in line and "with seed 0" in line and "tent" not in line


def test_seeds_that_were_run_from_several_commits_say_so(first):
    body = copy.deepcopy(first)
    body["seeds"]["1"]["commit"] = "0123abc"
    body["digest"] = digest(body)
    check(body)
    assert f"commit {body['commit']}, 0123abc," in pages.markdown({"fedavg": [body]}, "small")


def test_what_is_possible_but_was_not_measured_is_found_by_running_it_again(first, monkeypatch):
    body = copy.deepcopy(first)
    row = next(r for r in body["rows"] if (r["adapter"], r["stream"], r["seed"]) == ("none", "original", 0))
    honest = {**row, "selection": "last"}
    row["per_client"] = [1.0] * len(row["per_client"])
    row["accuracy"] = 1.0
    body["digest"] = digest(body)
    check(body)  # nothing in it contradicts anything else
    engine = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(api, "train", lambda experiment: SimpleNamespace(engine=engine))
    monkeypatch.setattr(api, "evaluate", lambda fit: Table((honest,)))
    found = rerun(body, "none", 0)
    assert not found.matches and not found.equal and found.gaps["original"] == pytest.approx(honest["accuracy"] - 1)


def test_a_rerun_that_measures_nothing_does_not_match(first, monkeypatch):
    """As where the adapter diverges, or is refused, when it runs again."""
    engine = SimpleNamespace(close=lambda: None)
    rows = [{**r, "selection": "last"} for r in first["rows"] if (r["adapter"], r["seed"]) == ("none", 0)]
    monkeypatch.setattr(api, "train", lambda experiment: SimpleNamespace(engine=engine))
    monkeypatch.setattr(api, "evaluate", lambda fit: Table(tuple(rows)))
    assert rerun(first, "none", 0) == Rerun(True, {r["stream"]: 0.0 for r in rows})
    some, *gone = [r["stream"] for r in rows]
    monkeypatch.setattr(api, "evaluate", lambda fit: Table(tuple(rows[:1])))
    part = rerun(first, "none", 0)
    assert not part.matches and not part.equal and part.missing == tuple(gone)
    assert part.said == f"differences in points: {some} +0.00; no number on {', '.join(gone)}"
    monkeypatch.setattr(api, "evaluate", lambda fit: Table())
    nothing = rerun(first, "none", 0)
    assert not nothing.matches and not nothing.equal and nothing.gaps == {}
    with pytest.raises(ValueError, match=r"adapter='none', seed=7 has no rows in the submission: it has seeds 0, 1, 2"):
        rerun(first, "none", 7)


def test_the_command_refuses_a_tampered_file_in_one_line(first, tmp_path, monkeypatch):
    body = copy.deepcopy(first)
    other_hash(body)
    body["digest"] = digest(body)
    (tmp_path / "x.json").write_text(text(body))
    monkeypatch.setattr(sys, "argv", ["leaderboard", "check", str(FIRST)])
    plain.main()
    monkeypatch.setattr(sys, "argv", ["leaderboard", "check", str(FIRST), str(tmp_path / "x.json")])
    with pytest.raises(SystemExit, match="error: .*the hash of train is 0000000000000000"):
        plain.main()


def test_versions_supersede_and_an_edited_one_is_found_out(first, tmp_path):
    second = copy.deepcopy(first) | {"version": 2, "supersedes": first["digest"], "note": "again"}
    second["digest"] = digest(second)
    for body in (first, second):
        (tmp_path / file_name(body)).write_text(text(body))
    found = read(tmp_path)
    assert [b["version"] for b in found["fedavg"]] == [1, 2]
    assert "fedavg, version 2" in pages.markdown(found, "small") and "version 1 is superseded" in pages.markdown(
        found, "small"
    )
    edited = copy.deepcopy(first) | {"note": "nobody will see"}
    edited["digest"] = digest(edited)
    (tmp_path / file_name(edited)).write_text(text(edited))
    with pytest.raises(Unfit, match="version 2 must supersede version 1 as it was written"):
        read(tmp_path)
    (tmp_path / file_name(edited)).unlink()
    with pytest.raises(Unfit, match="version 2 must supersede"):
        read(tmp_path)


def test_a_run_of_another_experiment_cannot_be_submitted(tmp_path):
    quick = ["data.clients=4", "model=mlp-bn", "rounds=1", "adapters=none", "streams=original"]
    (experiment,) = expand(quick)
    api.run_all([experiment], tmp_path / "run")
    world, _, engine = api.build(experiment)
    engine.close()
    (found,) = find_runs(tmp_path / "run")
    ((_, stream),) = api.streams_of(world, experiment.streams).values()
    assert _seed(found.load())["streams"] == {"original": names(stream)}
    with pytest.raises(Unfit, match="commit=|config: data.clients is 4, and the track's is 10"):
        submit(tmp_path / "run", "small", "defaults", tmp_path / "board")
    assert not (tmp_path / "board").exists()
    with pytest.raises(ValueError, match="track small fixes data"):
        track("small").experiment("data.clients=3")


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Three submissions of two machines: the page of all of them takes seconds."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "small").mkdir()
    for name in ("local.v1.json", "local.v2.json", "fedper.v1.json", "gma.v1.json"):
        shutil.copy(BOARD / "small" / name, folder / "small")
    return folder


def test_the_page_is_one_file_with_ties_and_costs(few, tmp_path):
    out = tmp_path / "board.html"
    done = CliRunner().invoke(app, ["leaderboard", "--folder", str(few), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert (few / "small.md").read_text() == pages.markdown(read(few / "small"), "small")
    made = out.read_text()
    for word in ("Worst tenth of clients", "ECE, %", "ms per sample", "Upload per client and round", 'class="tie"'):
        assert word in made
    assert "http://" not in made.replace("http://www.w3.org", "") and made == pages.html(few)


def test_times_of_several_machines_are_not_compared(few, tmp_path):
    told = "Times are of the submitters' machines (Linux aarch64 with torch 2.13.0+cpu; Linux x86_64 with torch"
    made = html.unescape(pages.html(few))
    assert told in made and told in pages.markdown(read(few / "small"), "small") and "It costs" not in made
    shutil.copytree(few, tmp_path / "one")
    (tmp_path / "one" / "small" / "fedper.v1.json").unlink()  # the only last version of the other machine
    made = pages.html(tmp_path / "one")
    assert "Times are of" not in made and "It costs" in made


def test_no_stored_submission_was_ever_edited():
    where = str(BOARD.relative_to(ROOT) / "*" / "*.json")
    command = ["git", "log", "--diff-filter=MD", "--name-only", "--format=", "--", where]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("there is no history here")
    assert done.stdout.strip() == ""
