"""The front door: the first table and its sentence, the README's numbers and picture, and what needs no torch."""

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from acclimate.cli import describe, first, index
from acclimate.eval.table import Table
from acclimate.experiment import catalogue, labels
from acclimate.experiment.settings import expand

pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")  # typer imports a name click renamed
ROOT = Path(__file__).parents[1]
STORED = ROOT / "results" / "benchmarks" / "first-run.json"


def table(**rows):
    """A table of `method_personal_adapter=(home, abroad, new)` in percent."""
    out = []
    for key, values in rows.items():
        method, personal, adapter = key.split("_")
        for stream, value in zip(("original", "out-of-client", "new-clients"), values, strict=False):
            row = {"method": method, "personal": personal, "adapter": adapter, "stream": stream, "settings": []}
            out.append({**row, "selection": "last", "accuracy": value / 100, "std": 0.0})
    return Table(tuple(out))


def test_the_sentence_says_what_the_numbers_show():
    said = first.story(
        table(
            fedavg_none_none=(70, 72),
            fedavg_finetune_none=(95, 40),
            fedthe_none_the=(93, 71),
            fedtta_none_none=(60, 60, 40),
            fedtta_none_fedtta=(72.5, 80, 55),
        )
    )
    assert said == (
        "Against fedavg, fedavg+finetune gains 25 points at home but loses 32 points abroad; fedthe/the gains 23 "
        "points at home and keeps the level abroad; fedtta/fedtta gains 2 points at home and 8 "
        "abroad; the mean of the two is highest for fedthe/the, 82.0 %. On clients that joined later, against no "
        "adapter, fedtta/fedtta gains 15 points."
    )


def test_adapters_that_do_the_same_for_newcomers_are_named_together():
    said = first.story(
        table(
            fedavg_none_none=(70, 72),
            fedthe_none_none=(60, 60, 40),
            fedthe_none_the=(93, 71, 41),
            fedthe_none_tent=(93, 71, 30.4),
            fedtta_none_none=(60, 60, 40),
            fedtta_none_fedtta=(72.5, 80, 39),
            fedtta_none_tent=(72.5, 80, 40),
        )
    )
    assert said.endswith(
        " On clients that joined later, against no adapter, fedthe/the, fedtta/fedtta and fedtta/tent keep the level; "
        "fedthe/tent loses 10 points."
    )


def test_the_sentence_turns_with_the_numbers():
    said = first.story(table(fedavg_none_none=(90, 92), fedavg_finetune_none=(80, 95)))
    assert said == (
        "Against fedavg, fedavg+finetune loses 10 points at home but gains 3 points abroad; the mean of the two is "
        "highest for fedavg, 91.0 %."
    )
    near = first.story(table(fedavg_none_none=(90, 92), fedavg_finetune_none=(80, 95), fedbn_none_none=(90, 90)))
    level = first.story(table(fedavg_none_none=(90, 92), fedbn_none_none=(90, 91)))
    assert level.startswith("Against fedavg, fedbn keeps the level at home and abroad; ")
    assert near.endswith("highest for fedavg, 91.0 %, less than 2 points above fedbn.")
    assert first.story(table(fedprox_none_none=(90, 92))) == ""
    assert first.story(table(fedavg_none_none=(90,), fedthe_none_the=(91,))) == ""


def test_rows_that_had_more_training_are_named():
    assert first.unequal(expand(["method=fedavg,fedprox"])) == ""
    assert first.unequal(expand(["method=fedavg,fedprox", "method.opt.lr=0.1,0.2"])) == (
        "rows differ in learning rate (SGD 0.1: fedavg, fedprox; SGD 0.2: fedavg, fedprox)"
    )
    assert first.unequal(expand(["method=fedavg,fedtta"])) == (
        "rows differ in local work (5 epochs, batch 32: fedavg; 20 steps, batch 64: fedtta)"
    )
    assert first.unequal(expand(["method=fedavg", "method.work.epochs=1,2"])) == (
        "rows differ in local work (1 epoch, batch 32: fedavg; 2 epochs, batch 32: fedavg)"
    )
    assert "rounds (5: fedavg; 6: fedavg)" in first.unequal(expand(["rounds=5,6"]))


def test_the_first_table_takes_settings():
    found = first.experiments([], set())
    assert [e.label for e in found] == list(first.ROWS)
    assert {e.method.opt.lr for e in found} == {0.2} and {e.data.new_clients for e in found} == {5}
    assert found[-1].method.inner_lr == 0.05 and catalogue.METHODS["fedtta"].inner_lr == 0.5  # the paper's
    assert [e.label for e in first.experiments(["personal=lp"], {"personal"})] == [
        "fedavg+lp",
        "fedthe+lp",
        "fedtta+lp",
    ]
    fewer = first.experiments(["adapters=none", "streams=original"], {"adapters", "streams"})
    assert {(len(e.adapters), len(e.streams)) for e in fewer} == {(1, 1)}
    cells = first.experiments(["data=cells"], {"data"})
    assert cells[-1].method == catalogue.METHODS["fedtta"]  # what was chosen for the digits is for them alone
    assert {e.data.new_clients for e in cells} == {0} and {labels.name(e.model) for e in cells} == {"mlp-bn"}


def test_a_sweep_over_a_setting_of_the_first_run_keeps_its_names():
    rows = [
        {**r, "settings": [f"method.inner_lr={v}"]} for v in (0.05, 0.5) for r in table(fedtta_none_none=(1, 2)).rows
    ]
    assert first.shown(Table(tuple(rows))) == (Table(tuple(rows)), "")
    assert first.shown(Table(tuple(rows[:2])))[0].rows[0]["settings"] == []


def test_a_group_of_streams_has_a_name():
    (e,) = expand(["streams=brfl,new-clients"])
    names = ["original", "corrupted", "out-of-client", "mixture", "new-clients"]
    assert [labels.name(s) for s in e.streams] == names


def test_the_index_is_that_of_the_records():
    assert json.loads(json.dumps(index.build())) == index.read(), "python -m acclimate.cli.index"


def test_list_and_show_import_no_torch():
    code = (
        "import sys; sys.argv = ['acclimate', *sys.argv[1:]]\nfrom acclimate.cli.main import main\n"
        "try: main()\nexcept SystemExit as e: print('torch' in sys.modules, e.code)"
    )
    for args, ends in ((["list"], "False 0"), (["show", "fedavg"], "False 0"), (["show", "fedbm"], "False 2")):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=250)
        assert done.stdout.endswith(f"{ends}\n"), done.stderr
    assert "did you mean 'fedbn'" in done.stderr


def test_settings_are_completed():
    assert index.complete("met", []) == ["method="]
    assert index.complete("method=fedth", []) == ["method=fedthe"]
    assert index.complete("adapters=none,t3", []) == ["adapters=none,t3a"]
    assert index.complete("streams=br", []) == ["streams=brfl"]
    assert index.complete("method.m", ["method=fedprox"]) == ["method.mu="]
    assert index.complete("method.m", []) == []


def stored():
    return json.loads(STORED.read_text())


def test_the_readme_has_the_table_and_the_sentence_of_the_stored_run():
    text = (ROOT / "README.md").read_text()
    rows = tuple({**r, "selection": "last", "round": 0} for r in stored()["rows"] if r["seed"] == 0)
    out = Console(file=io.StringIO(), width=describe.WIDE, markup=False)
    title = "accuracy at the last round, % ± std over clients; upload per client and round"
    short, own = first.shown(Table(rows))
    assert own == "fedtta has method.inner_lr=0.05"
    describe.print_pivot(out, short, "last", title)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]
    assert "\n".join(lines).strip() in text
    assert max(map(len, lines)) <= describe.NARROW
    assert first.story(short) in " ".join(text.split())


def test_the_first_table_took_less_than_a_minute_of_computing():
    found = json.loads((ROOT / "results" / "benchmarks" / "first-run-cost.json").read_text())
    seconds = found["user_seconds"] + found["system_seconds"]
    assert found["threads"] == 1 and seconds < 60
    assert f"takes {seconds:.0f} s of one core" in (ROOT / "docs" / "quickstart.md").read_text()


def test_the_readme_is_short_and_counts_right():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 200
    assert f"| methods by name | {len(catalogue.METHODS)} |" in text
    for page in ("gallery.md", "leaderboard.md", "tutorials/compare.md", "tutorials/deploy.md"):
        assert f"(docs/{page})" in text
    assert f"| test-time adapters | {len(catalogue.ADAPTERS) - 1} |" in text  # `none` is no adapter


def loaded():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "benchmarks" / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    return picture


def test_nothing_hides_a_label_of_the_picture():
    picture = loaded()
    dots = picture.points(stored())
    axes = picture.Axes(dots.values())
    ends = {key: axes.at(dot) for key, dot in dots.items()}
    starts = {key[0]: end for key, end in ends.items() if key[1:] == ("none", "none")}
    arrows = [(starts[key[0]], end) for key, end in ends.items() if end != starts[key[0]]]
    texts = {end: (picture.name(key), "88.8 / 88.8") for key, end in ends.items()}
    placed = picture.place_labels(texts, arrows)
    points = [(x - 7, y - 7, x + 7, y + 7) for x, y in ends.values()]
    for at, (_, _, box) in placed.items():
        others = [other[2] for end, other in placed.items() if end != at]
        assert picture.covered(box, others + points, arrows) == 0, texts[at]
    assert len(arrows) == 4 and picture.covered(placed[ends["fedthe", "none", "the"]][2], [placed[at][2]], ()) == 0
    left, top, right, bottom = box
    assert picture.covered(box, [(left - 1, top - 1, left + 2, top + 3)], ()) == 6  # two by three of it
    assert picture.covered(box, (), [((left - 50, (top + bottom) / 2), (right + 50, (top + bottom) / 2))]) > 1000
    assert picture.covered((left, picture.HEIGHT - 20, right, picture.HEIGHT), (), ()) > 1000


def test_the_picture_is_that_of_the_stored_run():
    picture = loaded()
    for theme in picture.THEMES:
        drawn = (ROOT / "docs" / f"first-run-{theme}.svg").read_text()
        assert drawn == picture.draw(stored(), theme)
    home = [100 * r["accuracy"] for r in stored()["rows"] if r["adapter"] == "the" and r["stream"] == "original"]
    abroad = [100 * r["accuracy"] for r in stored()["rows"] if r["adapter"] == "the" and r["stream"] == "out-of-client"]
    assert re.search(rf">fedthe \+ the<tspan [^>]*>{sum(home) / 3:.1f} / {sum(abroad) / 3:.1f}<", drawn)
    assert {r["seed"] for r in stored()["rows"]} == {0, 1, 2}


def test_the_rate_of_the_first_run_is_the_one_that_the_guide_says():
    guide = (ROOT / "docs" / "guides" / "data.md").read_text().partition("### The rate of the first run")[2]
    rows = [line.split(" | ") for line in re.findall(r"(?m)^\| (0\.\d+ .*) \|$", guide)[:4]]
    assert max(rows, key=lambda row: float(row[-1]))[0] == first.SETTINGS["method.opt.lr"]
    inner = [line.split(" | ") for line in re.findall(r"(?m)^\| (0\.\d+ .*) \|$", guide)[4:7]]
    assert max(inner, key=lambda row: float(row[-1]))[0] == first.OWN["fedtta"]["method.inner_lr"]
    for _, *_, home, abroad, mean in inner:
        assert (float(home) + float(abroad)) / 2 == pytest.approx(float(mean), abs=0.101)
    for _, *methods, mean in rows:
        assert sum(map(float, methods)) / 3 == pytest.approx(float(mean), abs=0.051)
