"""Two methods compared: paired differences, intervals, and words that say no more than they do."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.eval import paired
from acclimate.experiment.settings import expand
from acclimate.running import compare
from acclimate.running import run as api
from acclimate.store import RunError


def run_folder(path, label, seed, accuracies, adapter="none", data="same", metrics=(), **card):
    """A finished run with these accuracies of clients, by stream and selection."""
    path.mkdir(parents=True)
    method, _, personal = label.partition("+")
    rows = [
        {"method": method, "personal": personal or "none", "adapter": adapter, "stream": stream, "settings": []}
        | {"seed": seed, "selection": selection, "per_client": own, "accuracy": sum(own) / len(own)}
        for (stream, selection), own in accuracies.items()
    ]
    results = {"schema": "acclimate.results/1", "label": label, "seed": seed, "table": rows}
    results["data"] = {"hash": data, **card}
    (path / "results.json").write_text(json.dumps(results))
    (path / "config.json").write_text('{"schema": "acclimate.config/1", "experiment": {}}')
    (path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))


def test_differences_are_of_the_same_client_and_seed():
    first, second = {0: [0.9, 0.5, 0.4], 1: [0.8, 0.8, 0.3]}, {0: [0.7, 0.3, 0.2], 1: [0.6, 0.6, 0.1]}
    d = compare.difference("original", "last", first, second)
    assert d.mean == pytest.approx(0.2) and d.low == pytest.approx(0.2) and d.high == pytest.approx(0.2)
    assert d.differs and d.better == 1.0 and (d.seeds, d.clients) == (2, 6)
    back = compare.difference("original", "last", second, first)
    assert back.mean == pytest.approx(-0.2) and back.better == 0.0


def test_pairing_is_what_makes_a_small_gain_visible():
    rng = np.random.default_rng(0)
    hard = {s: rng.uniform(0.2, 0.9, 20) for s in range(3)}  # clients differ by far more than the methods do
    better = {s: (v + 0.02 + rng.normal(0, 0.005, 20)).tolist() for s, v in hard.items()}
    d = compare.difference("x", "last", better, {s: v.tolist() for s, v in hard.items()})
    assert d.differs and 0.01 < d.low < 0.02 < d.high < 0.03


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        drawn = rng.normal(0.1, 1.0, (1, 40))
        low, high = compare.interval(drawn.tolist(), draws=500)
        hits += low <= 0.1 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_one_client_with_one_seed_says_nothing_of_chance():
    """A bootstrap of one number has no width, whatever the number is."""
    one, two = compare.difference("x", "last", {0: [0.9]}, {0: [0.1]}), {0: [0.9], 1: [0.9]}
    assert (one.low, one.high) == (-1.0, 1.0) and one.mean == pytest.approx(0.8) and not one.differs
    assert not compare.difference("x", "last", two, {0: [0.1], 1: [0.1]}).differs
    six = {n: [0.9] for n in range(6)}
    assert compare.difference("x", "last", six, {n: [0.1] for n in six}).differs


POINTS = [12.7062047, 4.3026527, 3.1824463, 2.7764451, 2.5705818, 2.4469119, 2.3646243, 2.3060041]
"""Student's 97.5 % points with 1 to 8 degrees of freedom, as printed tables have them."""


@pytest.mark.parametrize("count", range(2, 10))
def test_few_clients_have_students_interval(count):
    own = np.random.default_rng(count).normal(0.02, 0.01, count)
    half = POINTS[count - 2] * own.std(ddof=1) / count**0.5
    assert compare.interval([own.tolist()]) == pytest.approx((own.mean() - half, own.mean() + half), abs=1e-7)
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    theirs = stats.t.interval(0.95, count - 1, own.mean(), stats.sem(own))
    assert compare.interval([own.tolist()]) == pytest.approx(theirs, abs=1e-7)


def test_two_to_five_clients_that_agree_in_sign_are_not_more_than_chance_by_that_alone():
    """The bootstrap's interval of these left zero out, all four times."""
    for own in ([0.01, 0.09], [0.01, 0.02, 0.09], [0.01, 0.01, 0.03, 0.09], [0.01, 0.01, 0.02, 0.09, 0.13]):
        low, high = compare.interval([own])
        assert low < 0 < np.mean(own) < high
        assert np.quantile(paired.resampled([[np.array(own)[:, None]]]), 0.025) > 0
    low, high = compare.interval([[0.08, 0.09, 0.1, 0.11, 0.1]])
    assert 0 < low < 0.096 < high  # and some do differ


def test_few_clients_of_several_seeds_count_as_their_seeds_weigh():
    own = [[0.1, 0.2], [0.3, 0.5, 0.7]]
    every = np.concatenate(own)
    spread = every.std(ddof=1)
    mean, weight = (0.15 + 0.5) / 2, (0.25 / 2 + 0.25 / 3) ** 0.5
    half = POINTS[3] * spread * weight
    assert compare.interval(own) == pytest.approx((mean - half, mean + half))


def test_few_numbers_cover_as_often_as_they_say():
    rng = np.random.default_rng(2)
    hits = sum(low <= 0.01 <= high for low, high in (compare.interval([rng.normal(0.01, 0.05, 4)]) for _ in range(600)))
    assert 0.93 <= hits / 600 <= 0.97


def test_seeds_that_disagree_widen_the_interval():
    alike = compare.interval([[0.1, 0.1]] * 4)
    apart = compare.interval([[0.3, 0.3], [-0.1, -0.1], [0.3, 0.3], [-0.1, -0.1]])
    assert alike == pytest.approx((0.1, 0.1)) and apart[0] < 0 < apart[1]


def test_a_seed_that_is_drawn_twice_brings_other_clients_each_time():
    def exact(differences):
        """The same bootstrap as a slow loop that draws one seed, and then its clients, at a time."""
        draw, means = np.random.default_rng(5), []
        for _ in range(4000):
            seeds = [differences[i] for i in draw.integers(0, len(differences), len(differences))]
            means.append(np.mean([draw.choice(own, len(own)).mean() for own in seeds]))
        return np.quantile(means, [0.025, 0.975])

    own = np.random.default_rng(3).normal(0, 0.1, (10, 20)).tolist()
    low, high = compare.interval(own)
    slow = exact(own)
    assert high - low == pytest.approx(slow[1] - slow[0], rel=0.08)  # it was a fifth wider


def test_seeds_may_have_different_numbers_of_clients():
    low, high = compare.interval([[0.1] * 3, [0.3] * 7])
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.3))


def test_the_interval_of_one_seed_is_the_bootstrap_over_its_clients():
    own = np.array([0.0, 0.1, 0.4, 0.2, 0.3, -0.1, 0.0, 0.5, 0.1, 0.2])  # ten are enough for one
    drawn = own[np.random.default_rng(0).integers(0, 10, (10_000, 10))].mean(1)
    assert compare.interval([own.tolist()]) == tuple(np.quantile(drawn, [(1 - 0.95) / 2, (1 + 0.95) / 2]))


@pytest.fixture
def two(tmp_path):
    for seed in (0, 1):
        for label, plus in (("fedavg", 0.0), ("fedthe", 0.1)):
            off = plus / 10  # clients that gain exactly alike tell nothing of chance
            own = {("original", how): [0.5 + plus - off, 0.6 + plus + off] for how in ("last", "validation")}
            curve = [{"round": 1, "adapter": "none", "streams": {"original": 0.7 + plus}}, {"round": 2}]
            run_folder(tmp_path / f"{label}-{seed}", label, seed, own, metrics=curve)
    return tmp_path


def test_rows_without_any_difference_are_level(tmp_path):
    for label in ("fedavg", "fedthe"):
        run_folder(tmp_path / label, label, 0, {("original", "last"): [0.5, 0.6]})
    [said] = compare.compare(tmp_path, rows=["fedthe", "fedavg"]).sentences()
    assert said.startswith("On original, fedthe is level with fedavg (55.0 against 55.0 %; 95 % interval +0.0 to +0.0)")


def test_runs_are_compared_in_words_and_numbers(two):
    found = compare.compare(two, rows=["fedthe", "fedavg"])
    [said] = found.sentences()
    assert said.startswith("On original, fedthe is 10.0 points above fedavg (65.0 against 55.0 %")
    assert said.endswith("more than chance, and better for 100 % of clients.")
    assert {d.selection for d in found.differences} == {"last", "validation"}
    assert found.best == {"original": (pytest.approx(0.8), pytest.approx(0.7))}
    assert "chosen on test data" in found.to_markdown() and found.caveat() is None
    assert json.loads(found.to_json())["differences"][0]["mean"] == pytest.approx(0.1)


def test_the_command_prints_a_table_and_sentences(two, tmp_path):
    out = tmp_path / "c.json"
    done = CliRunner().invoke(app, ["compare", str(two), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "fedavg is 10.0 points below fedthe" in done.output.replace("\n", " ")
    assert json.loads(out.read_text())["schema"] == compare.SCHEMA


def test_runs_that_are_not_finished_are_named_before_what_cannot_be_paired(two):
    (two / "fedthe-1" / "results.json").unlink()
    done = CliRunner().invoke(app, ["compare", str(two)])
    assert done.exit_code != 0 and "seeds [0, 1] and [0] cannot be paired" in str(done.exception or done.output)
    said = "runs that are not finished, and left out: 1 of 4; go on with: acclimate resume FOLDER\n"
    assert done.stderr.startswith(said)


def test_a_row_may_be_named_as_it_is_printed_and_a_typing_error_gets_the_nearest(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0, {("original", "last"): [0.5, 0.6]})
    run_folder(tmp_path / "b", "fedthe", 0, {("original", "last"): [0.7, 0.8]}, adapter="the")
    told, printed = (compare.compare(tmp_path, rows=[name, "fedavg"]) for name in ("fedthe/the", "fedthe with the"))
    assert printed == told
    for typed, meant in (("fedteh", "fedthe"), ("fedthe with teh", "fedthe/the")):
        with pytest.raises(
            ValueError, match=f"'{typed}' names 0 rows; did you mean '{meant}'. these runs hold fedavg/"
        ):
            compare.compare(tmp_path, rows=[typed, "fedavg"])


def test_one_seed_says_what_it_does_not_cover(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0, {("original", "last"): [0.5, 0.7]})
    run_folder(tmp_path / "b", "fedthe", 0, {("original", "last"): [0.7, 0.5]})
    found = compare.compare(tmp_path / "a", tmp_path / "b")
    assert "One seed" in (found.caveat() or "")
    assert found.sentences()[0].endswith("no difference can be told from chance.")


def test_what_cannot_be_paired_is_refused(tmp_path):
    run_folder(tmp_path / "a", "fedavg", 0, {("original", "last"): [0.5, 0.7]})
    run_folder(tmp_path / "b", "fedthe", 1, {("original", "last"): [0.7, 0.5]})
    run_folder(tmp_path / "c", "fedbn", 0, {("original", "last"): [0.7, 0.5]}, data="other")
    run_folder(tmp_path / "d", "ditto", 0, {("original", "last"): [0.7]})
    run_folder(tmp_path / "e", "apfl", 0, {("mixture", "last"): [0.7, 0.2]})
    with pytest.raises(ValueError, match=r"seeds \[0\] and \[1\] cannot be paired"):
        compare.compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match="different data"):
        compare.compare(tmp_path / "a", tmp_path / "c")
    with pytest.raises(ValueError, match="2 and 1 clients"):
        compare.compare(tmp_path / "a", tmp_path / "d")
    with pytest.raises(ValueError, match="no stream in common"):
        compare.compare(tmp_path / "a", tmp_path / "e")
    with pytest.raises(ValueError, match="hold fedavg/none, fedthe/none"):
        compare.compare(tmp_path, rows=["fedavg", "nobody"])
    with pytest.raises(ValueError, match="of two rows"):
        compare.compare(tmp_path)
    with pytest.raises(RunError, match="holds no run"):
        compare.compare(tmp_path / "nothing")


def test_other_splits_are_refused_by_name(tmp_path):
    for name, test in (("a", "1"), ("b", "2")):
        splits = {"train": {"hash": "0"}, "test": {"hash": test}}
        run_folder(tmp_path / name, f"fed{name}", 0, {("original", "last"): [0.5, 0.7]}, splits=splits)
    with pytest.raises(ValueError, match=r"seed 0: .* different data \(not the same: test\)"):
        compare.compare(tmp_path / "a", tmp_path / "b")


def test_streams_of_other_examples_are_left_out_and_named(tmp_path):
    for name, severity in (("a", "1"), ("b", "5")):
        own = {(stream, "last"): [0.5, 0.7] for stream in ("original", "corrupted")}
        streams = {"original": {"hash": "0"}, "corrupted": {"hash": severity}}
        run_folder(tmp_path / name, f"fed{name}", 0, own, streams=streams)
        run_folder(tmp_path / f"{name}-one", f"fed{name}", 0, {("corrupted", "last"): [0.5]}, streams=streams)
    found = compare.compare(tmp_path / "a", tmp_path / "b")
    assert {d.stream for d in found.differences} == {"original"} and found.left_out == ("corrupted",)
    assert "different examples: corrupted" in (found.caveat() or "")
    with pytest.raises(ValueError, match=r"different examples in every stream that both have \(corrupted\)"):
        compare.compare(tmp_path / "a-one", tmp_path / "b-one")


def machine(hash, off, examples="same"):
    """The card of a stream whose inputs are this far from those of another machine, in levels of 255."""
    return {"corrupted": {"hash": hash, "examples": examples, "sketch": [10.0 + off, *[3.0] * 63]}}


def test_streams_of_two_machines_are_paired_and_ranked(tmp_path):
    own = {("corrupted", "last"): [0.5, 0.7]}
    cards = {"a": machine("1", 0.0), "b": machine("2", 0.6), "c": machine("3", 6.0), "d": machine("4", 0.0, "others")}
    for name, streams in cards.items():
        run_folder(tmp_path / name, f"fed{name}", 0, own, streams=streams)
    assert compare.compare(tmp_path / "a", tmp_path / "b").left_out == ()
    for other in "cd":
        with pytest.raises(ValueError, match="different examples in every stream"):
            compare.compare(tmp_path / "a", tmp_path / other)
    found = compare.ranked(tmp_path)
    assert [p.title for p in found.places] == ["feda", "fedb"]
    assert found.left_out == dict.fromkeys(["fedc", "fedd"], "it was tested on other examples")


def stream_hash(value):
    return {"streams": {"original": {"hash": value}}}


def test_hashes_and_curves_are_those_of_the_run_whose_numbers_count(tmp_path):
    curves = [[{"round": 1, "adapter": "none", "streams": {"original": top}}] for top in (0.8, 0.9)]
    own = {("original", "last"): [0.5, 0.7]}
    for i, curve in enumerate(curves):
        run_folder(tmp_path / f"a{i}", "fedavg", 0, own, metrics=curve)
    run_folder(tmp_path / "more", "fedavg", 0, {("mixture", "last"): [0.1, 0.2]})
    run_folder(tmp_path / "b", "fedbn", 0, own, metrics=curves[0])
    found = compare.compare(tmp_path, rows=["fedavg", "fedbn"])
    assert found.best == {"original": (0.8, 0.8)} and not found.differences[0].differs
    [side] = compare.sides([tmp_path / "a0", tmp_path / "more"])
    assert set(side.cells) == {("original", "last"), ("mixture", "last")}  # runs may share out their streams


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"data": "other"}, r"on different data \(not the same: examples\)"),
        (stream_hash("other"), "on different examples of original"),
        ({"accuracies": {("original", "last"): [0.5, 0.8]}}, "with different accuracies on original"),
    ],
)
def test_two_runs_of_one_seed_that_do_not_agree_are_refused_by_folder(tmp_path, second, why):
    own = {"accuracies": {("original", "last"): [0.5, 0.7]}, **stream_hash("same")}
    run_folder(tmp_path / "a", "fedavg", 0, **own)
    run_folder(tmp_path / "again", "fedavg", 0, **{**own, **second})
    run_folder(tmp_path / "b", "fedbn", 0, **own)
    run_folder(tmp_path / "c", "fedprox", 0, **own)
    with pytest.raises(ValueError, match=rf"fedavg: seed 0 was run in \S*/a and in \S*/again, {why}; give only one"):
        compare.compare(tmp_path, rows=["fedavg", "fedbn"])
    compare.compare(tmp_path, rows=["fedbn", "fedprox"])  # who is not compared does not matter


def test_a_sweep_over_an_adapter_is_compared_with_itself_and_with_no_adaptation(tmp_path):
    small = ["data.clients=3", "model=mlp", "model.norm=batch", "rounds=1", "streams=original"]
    api.run_all(expand([*small, "adapters=none,tent", "adapters.tent.opt.lr=0.01,0.3"]), tmp_path / "runs")
    slow, fast = (f"fedavg(adapters.tent.opt.lr={lr})" for lr in (0.01, 0.3))
    titles = [s.title for s in compare.sides([tmp_path / "runs"])]
    assert titles == ["fedavg", f"{slow} with tent", f"{fast} with tent"]
    assert compare.compare(tmp_path / "runs", rows=["fedavg", fast]).second == f"{fast} with tent"
    assert compare.compare(tmp_path / "runs", rows=[slow, fast]).first == f"{slow} with tent"


def test_runs_with_other_partitions_are_not_compared(tmp_path):
    def of(alpha, method):
        (e,) = expand(
            ["data.clients=3", "model=mlp", "rounds=1", "adapters=none", "streams=original", "data.partition=dirichlet"]
            + [f"data.partition.alpha={alpha}", f"method={method}"]
        )
        return e

    api.run(of(0.5, "fedavg"), tmp_path / "a")
    api.run(of(100, "fedprox"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"not the same: train, val, test"):
        compare.compare(tmp_path / "a", tmp_path / "b")


def test_equal_clients_are_not_said_to_be_better(tmp_path):
    """Clients of ten test examples are often equal: of four, one is better and three are the same."""
    lead = [0.9] * 8
    for label, own in (("fedavg", [0.5] * 8), ("fedthe", [0.5] * 6 + [0.9] * 2), ("local", lead)):
        for seed in (0, 1, 2):
            run_folder(tmp_path / f"{label}-{seed}", label, seed, {("original", "last"): own})
    up, down = (compare.compare(tmp_path, rows=rows) for rows in (["fedthe", "fedavg"], ["fedavg", "fedthe"]))
    assert up.differences[0].better == 0.625 and up.differences[0].equal == 0.75
    assert up.sentences()[0].endswith("more than chance, and better for 25 % of clients, equal for 75 %.")
    assert down.sentences()[0].endswith("more than chance, and worse for 25 % of clients, equal for 75 %.")
    whole = compare.compare(tmp_path, rows=["local", "fedavg"]).sentences()[0]
    assert whole.endswith("more than chance, and better for 100 % of clients.")


def test_choices_of_a_run_that_is_there_twice_count_once(tmp_path):
    for name, seed, gap in (("a", 0, 0.0), ("again", 0, 0.0), ("b", 1, 0.3)):
        run_folder(tmp_path / name, "fedavg", seed, {("original", "last"): [0.5, 0.6]})
        path = tmp_path / name / "results.json"
        pick = {"strategy": "entropy", "stream": "original", "by": "stream", "chosen": {"tent": 2}, "gap": gap}
        body = json.loads(path.read_text()) | {
            "selected": {"rows": [pick | {"accuracy": 0.5, "per_client": [0.5, 0.5]}]}
        }
        path.write_text(json.dumps(body))
    found = compare.compare(tmp_path, select="entropy")
    assert found.choices == ("On original, entropy chose tent for fedavg: 15.0 points below the oracle.",)


def test_seeds_of_unequal_numbers_of_clients_are_counted_as_they_are(tmp_path):
    """A client without test examples does not count: with the second seed there are 8 of 12."""
    for label in ("fedavg", "fedthe"):
        run_folder(tmp_path / f"{label}-0", label, 0, {("original", "last"): [0.5] * 12})
        run_folder(tmp_path / f"{label}-1", label, 1, {("original", "last"): [0.5] * 8})
    found = compare.compare(tmp_path)
    assert found.differences[0].per_seed == (12, 8) and found.cells()[0][-1] == "2 x 8 to 12"


def test_a_stream_that_one_side_lacks_is_named_and_the_others_are_compared(tmp_path):
    """As where an adapter diverged on one stream with one seed, and was not tested on another."""
    for seed in (0, 1):
        own = {("original", "last"): [0.5, 0.6], ("mixture", "last"): [0.5, 0.6], ("natural", "last"): [0.1, 0.2]}
        run_folder(tmp_path / f"a{seed}", "fedavg", seed, own | {("blend", "last"): [0.1, 0.2]})
        less = {("original", "last"): [0.7, 0.8]} | ({("mixture", "last"): [0.7, 0.8]} if seed else {})
        run_folder(tmp_path / f"b{seed}", "fedthe", seed, less)
    found = compare.compare(tmp_path)
    assert [d.stream for d in found.differences] == ["original"]
    assert found.not_shared == {
        "natural": "which only fedavg has",
        "blend": "which only fedavg has",
        "mixture": "which fedavg has with seeds 0 and 1, and fedthe has with seed 1",
    }
    assert found.caveat() == (
        "Left out: natural and blend, which only fedavg has. "
        "Left out: mixture, which fedavg has with seeds 0 and 1, and fedthe has with seed 1."
    )
    assert json.loads(found.to_json())["not_shared"] == found.not_shared


def test_names_are_whole_where_no_window_limits_the_table(tmp_path):
    first = "fedavg+a_personaliser_with_a_very_long_name"
    for label in (first, "scaffold"):
        run_folder(tmp_path / label, label, 0, {("original", "last"): [0.9, 0.8]})
    done = CliRunner().invoke(app, ["compare", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert any(first in line and "scaffold" in line and "interval" in line for line in done.output.splitlines())


def test_many_rows_are_ranked_and_ties_said(tmp_path):
    rng = np.random.default_rng(0)
    hard = rng.uniform(0.4, 0.6, 12)
    for label, plus in (("fedavg", 0.0), ("fedthe", 0.2), ("fedbn", 0.2), ("local", -0.2)):
        for seed in (0, 1):
            own = (hard + plus + rng.normal(0, 0.02, 12)).tolist()
            run_folder(tmp_path / f"{label}-{seed}", label, seed, {("original", "last"): own})
    out = tmp_path / "r.json"
    done = CliRunner().invoke(app, ["compare", str(tmp_path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    body = json.loads(out.read_text())
    assert {p["title"] for p in body["places"][:2]} == {"fedthe", "fedbn"} and body["schema"] == "acclimate.ranking/1"
    assert [set(g) for g in body["cannot_be_told_apart"]] == [{"fedthe", "fedbn"}]
    assert "Within chance of it:" in done.output and "One seed" not in done.output
    assert CliRunner().invoke(app, ["compare", str(tmp_path), "--row", "fedthe"]).exit_code != 0


def placed(path, label, seed, own, *settings):
    run_folder(path, label, seed, {("original", "last"): own})
    results = json.loads((path / "results.json").read_text())
    for row in results["table"]:
        row["settings"] = list(settings)
    (path / "results.json").write_text(json.dumps(results))


def test_seeds_of_two_devices_are_those_of_one_row(tmp_path):
    for seed, where in ((0, ()), (1, ("device=cuda", "backend.chunk=8", "checkpoint_every=5"))):
        placed(tmp_path / f"a{seed}", "fedavg", seed, [0.5, 0.6], *where, "rounds=3")
        placed(tmp_path / f"b{seed}", "fedthe", seed, [0.7, 0.9], "rounds=3")
    found = compare.sides([tmp_path])
    assert [(s.title, sorted(s.cells["original", "last"])) for s in found] == [("fedavg", [0, 1]), ("fedthe", [0, 1])]


def test_one_seed_on_two_devices_is_two_rows(tmp_path):
    placed(tmp_path / "cpu", "fedavg", 0, [0.5, 0.6])
    placed(tmp_path / "gpu", "fedavg", 0, [0.5, 0.7], "device=cuda")
    assert [s.title for s in compare.sides([tmp_path])] == ["fedavg", "fedavg(device=cuda)"]
