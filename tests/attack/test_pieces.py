"""Attacks in pieces: what is done is not done again, and what several calls did is one record."""

import json
import os
import tempfile

import bombarded
import bombarded_sums
import damaged_folders
import figures
import malicious
import pieces
import pytest
import run
import wild_settings

from acclimate import store

SETTINGS, LISTS = run.ATTACKS["settings"], wild_settings.PIECE


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(wild_settings, "PIECE", 4)


def test_a_call_goes_on_where_another_stopped_and_they_are_merged(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    assert pieces.run("settings", SETTINGS, one, range(2), 1, 1e9) == (2, 0)
    assert pieces.run("settings", SETTINGS, one, range(3), 1, 0) == (0, 1), "the time is over, and two were done"
    (killed,) = one.iterdir()
    killed.write_text(killed.read_text() + '{"piece": 2, "found": {"tri')
    assert pieces.run("settings", SETTINGS, other, range(1, 4), 1, 1e9) == (3, 0), "another machine did piece 1 too"
    run.merge([one, other], tmp_path / "out")
    found = json.loads((tmp_path / "out" / "settings.json").read_text())
    alone = [wild_settings.attack(4, seed=number) for number in range(4)]
    assert found["tried"] == 16 and found["pieces"] == 4 and found["pieces_asked_for"] == 200
    assert all(found[word] == sum(one[word] for one in alone) for word in ("refused", "made"))
    assert found["code"] == [pieces.code()] and found["processes"] == 1


@pytest.mark.parametrize("named", [False, True])
def test_keys_of_attacked_runs_go_with_them_unless_a_folder_is_named(tmp_path, monkeypatch, named):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("ACCLIMATE_SECRETS", raising=False)
    if named:
        monkeypatch.setenv("ACCLIMATE_SECRETS", str(tmp_path / "named"))
    held = []

    def attacked(*_):
        store.secrets.keep(tmp_path / "run", store.secrets.new())
        held.extend(tmp_path.rglob("*.key"))
        return 1, 0

    monkeypatch.setattr(pieces, "run", attacked)
    run.main(["settings", "--pieces", "0-0", "--out", str(tmp_path / "out")])
    (key,) = held
    assert key.parent == store.secrets.place() if named else "ACCLIMATE_SECRETS" not in os.environ
    assert {p.name for p in tmp_path.iterdir()} == ({"run", "named"} if named else {"run"})


def test_a_piece_that_is_done_again_stands_in_the_place_of_the_first(tmp_path):
    for folder, began, made in (("a", 2.0, 7), ("b", 1.0, 3)):
        (tmp_path / folder).mkdir()
        line = {"piece": 5, "began": began, "found": {"made": made}}
        (tmp_path / folder / "settings-0-9-x.jsonl").write_text(json.dumps(line) + "\n")
    for order in ("ab", "ba"):
        (line,) = pieces.lines([tmp_path / folder for folder in order], "settings")
        assert line["found"] == {"made": 7}


def test_every_attack_has_as_many_pieces_as_it_says():
    assert {n: run.ATTACKS[f"liars-{n}"].count for n in (4, 10)} == {n: len(malicious.plan(n)) for n in (4, 10)}
    assert run.ATTACKS["messages"].count * bombarded.PIECE == 1_000_000
    assert run.ATTACKS["sums"].count * bombarded_sums.PIECE == 10_000
    assert run.ATTACKS["folders"].count * damaged_folders.PIECE == 5_000
    assert run.ATTACKS["settings"].count * LISTS == 100_000


def test_memory_is_told_by_how_much_a_process_grew():
    told = {"code": "c", "commit": "", "machine": "m", "core_seconds": 1.0}
    found = {"targets": 1, **dict.fromkeys(bombarded.NUMBERS, 0), "faults": {}, "sent": {}, "first": []}
    lines = [
        {"piece": n, "process": p, "began": at, **told, "found": {**found, "memory_mb": mb}}
        for n, p, at, mb in ((0, "a", 1.0, 100.0), (1, "b", 1.0, 90.0), (2, "b", 3.0, 95.5), (3, "a", 2.0, 99.0))
    ]
    whole = pieces.merged(run.ATTACKS["messages"], lines)
    assert whole["memory_mb"] == {"least": 90.0, "most": 100.0, "most_grown": 5.5} and whole["core_seconds"] == 4.0


def test_the_words_of_a_call_are_checked(capsys):
    with pytest.raises(SystemExit):
        run.main(["messages", "--pieces", "7-2"])
    assert "'7-2' must be two numbers such as 0-99" in capsys.readouterr().err


def test_the_page_has_the_figures_of_the_results():
    results, page = run.ROOT / "results" / "attack", run.PAGE.read_text()
    assert {json.loads((results / f"{name}.json").read_text())["schema"] for name in run.ATTACKS} == {run.SCHEMA}
    assert page == figures.placed(page, figures.text(results))
