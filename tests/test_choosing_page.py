"""The guide to choosing says what is measured: its tables and ranges against the stored results."""

import json
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guides" / "choosing.md").read_text()
HOME = ("original", "corrupted", "continual", "label-sorted", "correlated")
LONG = ("continual", "correlated", "repeated")
ON_BATCHES = ("bn", "tent", "eata", "sar", "deyo", "santa", "roid", "surgical", "mbsl")
WORLDS = ("digits", "CIFAR-10")


@pytest.fixture(scope="module")
def heatmap(bench):
    return bench("heatmap")


@pytest.fixture(scope="module")
def stored(heatmap):
    """All cells of a world, by its name on the page."""
    names = dict(zip(WORLDS, (heatmap.DIGITS, heatmap.CIFAR10), strict=True))
    return {world: heatmap.cells(ROOT / "results" / "live", files) for world, files in names.items()}


@pytest.fixture(scope="module")
def changes(stored):
    """Change of accuracy: [world][adapter][stream], without fine-tuned models; those are `tent after FT`."""
    out = {}
    for world, cells in stored.items():
        found = defaultdict(lambda: defaultdict(list))
        for c in cells:
            method, adapter = c["case"].split("/")
            name = f"{adapter} after FT" if "finetune" in method else adapter
            found[name][c["stream"]].append(c["adapted"] - c["plain"])
        out[world] = {a: {s: statistics.mean(v) for s, v in row.items()} for a, row in found.items()}
    return out


def rows(after):
    """The first table behind a piece of text: its cells by row and column."""
    lines = PAGE[PAGE.index(after) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return {row[0]: dict(zip(table[0][1:], row[1:], strict=True)) for row in table[2:]}


def test_accuracies_are_the_means_of_the_stored_cells(stored):
    cases = {
        "FedAvg": ("fedavg/bn", "plain"),
        "FedAvg fine-tuned": ("fedavg+finetune/bn", "plain"),
        "fedthe with the": ("fedthe/the", "adapted"),
        "fedavg+memory with knn": ("fedavg+memory/knn", "adapted"),
        "FedAvg with em": ("fedavg/em", "adapted"),
    }
    table = rows("Accuracies of the models themselves")
    assert len(table) == 9
    for name, row in table.items():
        world, what = name.split(", ", 1)
        case, which = cases[what]
        for stream, said in row.items():
            own = [c[which] for c in stored[world] if (c["case"], c["stream"]) == (case, stream)]
            assert float(said) == pytest.approx(statistics.mean(own), abs=0.051), (name, stream)
    assert {w: f"{len(c):,}" in PAGE for w, c in stored.items()} == dict.fromkeys(WORLDS, True)


def said(pattern):
    """The two numbers of a sentence, which is on the page once."""
    (found,) = re.findall(pattern, PAGE)
    return tuple(float(n) for n in found)


def among(changes, adapters, streams):
    return [row[s] for w in WORLDS for a in adapters if (row := changes[w].get(a)) for s in streams if s in row]


@pytest.mark.parametrize(
    ("sentence", "adapters", "streams", "sign"),
    [
        (r"\(`the`, `tsa`, `knn`\) gains (\d+) to (\d+) points", ("the", "tsa", "knn"), HOME, 1),
        (r"class frequencies \(`em`\) (\d+) to (\d+)", ("em",), HOME, 1),
        (r"lose (\d+) to (\d+) points on the client's own data", ON_BATCHES, ("original",), -1),
        (r"classes come sorted, (\d+) to (\d+)", ON_BATCHES, ("label-sorted",), -1),
        (r"`bn` and `tent` lose (\d+) to (\d+) points at home", ("bn after FT", "tent after FT"), HOME[:2], -1),
        (r"and gain (\d+) to (\d+) on long streams", ("bn after FT", "tent after FT"), LONG, 1),
        (r"`theplus`\) loses (\d+) to (\d+)\.", ("the", "tsa", "knn", "theplus"), ("out-of-client",), -1),
        (r"`knn` and `the` gain (\d+) to (\d+) points", ("knn", "the"), ("mixture",), 1),
        (r"at home and loses (\d+) to (\d+) on long", ("icon",), LONG, -1),
        (r"`cotta` loses (\d+) to (\d+) points", ("cotta",), (*HOME, "out-of-client", "mixture", "repeated"), -1),
    ],
)
def test_ranges_hold_all_that_they_speak_of_and_little_more(changes, sentence, adapters, streams, sign):
    low, high = said(sentence)
    found = [sign * c for c in among(changes, adapters, streams)]
    assert low <= min(found) < low + 1.0 and high - 1.0 < max(found) <= high


def test_what_is_said_of_all_adapters_and_of_careful_ones(changes):
    everywhere = set().union(*(row for w in WORLDS for row in changes[w].values()))
    free = {a for w in WORLDS for a in changes[w]}
    assert max(among(changes, free, ("out-of-client",))) < 2.0
    for careful, limit in ((("rotta", "note", "memo", "ttt-episodic"), 2.0), (("ttt", "unmix", "odpfl"), 4.0)):
        assert max(abs(c) for c in among(changes, careful, everywhere)) < limit
    assert max(abs(c) for c in among(changes, ("icon",), ("original", "corrupted", "mixture", "label-sorted"))) < 2.0
    assert all(min(row.values()) < 0.0 for w in WORLDS for row in changes[w].values())


def test_single_numbers_of_other_clients_data(changes):
    for adapter, numbers in {"the": (15.6, 3.4), "knn": (16.5, 32.5)}.items():
        for world, number in zip(WORLDS, numbers, strict=True):
            assert -changes[world][adapter]["out-of-client"] == pytest.approx(number, abs=0.051)
            assert str(number) in PAGE


def adapted(name):
    """The stored rows of a file of `results/adapters`."""
    return json.loads((ROOT / "results" / "adapters" / f"{name}.json").read_text())["rows"]


TABLES = {
    "cifar10c": "### One model, fifteen corruptions",
    "cifar10c-iabn": "#### Models without the batch",
    "cifar10c-settings": "#### Other settings",
    "cifar10c-group": "#### With group norm",
}


@pytest.mark.parametrize("file", sorted(p.stem for p in (ROOT / "results" / "adapters").glob("cifar10c*.json")))
def test_the_tables_of_corruptions_are_the_stored_ones(file):
    kept, table = adapted(file), rows(TABLES[file])
    for name, row in table.items():
        for stream, said in row.items():
            mean = kept.get(f"{name} {stream}", {}).get("mean")
            assert said == ("" if mean is None else f"{mean:.1f}"), (name, stream)
    assert {r["adapter"] for r in kept.values() if "mean" in r} == set(table)


def test_claims_of_the_literature_are_held_against_the_stored_rows():
    lines = [line for line in PAGE.splitlines() if re.match(r"\| `(episodic|continual|correlated)` \| `", line)]
    claims = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    assert len(claims) == 17
    for stream, above, below, points, verdict in claims:
        kept = adapted("cifar10c-iabn" if above == "note" else "cifar10c")
        apart = kept[f"{above} {stream}"]["mean"] - kept[f"{below} {stream}"]["mean"]
        assert points == f"{apart:+.2f}", (stream, above, below)
        assert verdict.removesuffix(", with its own model") == ("holds" if apart > 0 else "does not hold")
    assert [c[1] for c in claims if c[4] == "does not hold"] == ["rotta", "rotta"]
    assert "Two do not hold, both of RoTTA" in PAGE
    same = adapted("cifar10c")
    assert same["eata continual"]["mean"] == same["bn continual"]["mean"]  # "`eata` is `bn` here"


def test_sentences_of_one_model_are_those_of_its_rows():
    kept, own = ({n: r["mean"] for n, r in adapted(f).items() if "mean" in r} for f in ("cifar10c", "cifar10c-iabn"))
    for other, said in {"tent": "5.6 points above `tent`", "bn": "6.8 above `bn`"}.items():
        assert f"{kept['cotta continual'] - kept[f'{other} continual']:.1f}" == said.split()[0] and said in PAGE
    assert own["none episodic"] - kept["none episodic"] == pytest.approx(14, abs=0.5)
    assert kept["none clean"] - own["none clean"] == pytest.approx(2, abs=0.5)
    gains = {n: own[n] - own[f"none {n.split()[1]}"] for n in own if not n.endswith("clean")}
    assert all(4.0 < gains[f"note {s}"] < 5.0 for s in ("episodic", "correlated"))
    assert all(5.5 < gains[f"{a} episodic"] < 9.0 and -13.0 < gains[f"{a} correlated"] < -12.0 for a in ("bn", "tent"))
    waves = {n: g for n, g in gains.items() if n.endswith("correlated")}
    assert sorted(waves, key=waves.get)[-2:] == ["lame correlated", "rotta correlated"]
    assert all(5.0 < waves[f"{a} correlated"] < 6.0 for a in ("lame", "rotta"))


def test_the_parts_of_rotta_are_the_stored_ones():
    kept = adapted("rotta")
    table, mean = rows("takes its parts away"), {name: row["mean"] for name, row in kept.items()}
    assert len(table) == len(kept)
    for row, known in zip(table.values(), kept.values(), strict=True):
        numbers = known["mean"], known["by_fifth"][0], known["by_fifth"][-1]
        assert [float(n) for n in row.values()] == pytest.approx(numbers, abs=0.051)
    last, recent, sure = (mean[f"statistics only{how}"] for how in (", the last 64", ", recent", ""))
    assert [round(c, 1) for c in (last - recent, recent - sure)] == [0.4, 3.0] and "costs 0.4 points" in PAGE
    assert abs(last - mean["bn"]) < 0.2 and abs(mean["rotta, recent"] - recent) < 0.2
    assert f"{mean['bn'] - mean['rotta, recent']:.1f} points are left to `bn`" in PAGE
    halves = [mean.get(name) for name in ("the surer half of the batch", "half of the batch")]
    if None not in halves:
        assert "surer half of each batch {:.1f} % are right, with those of a random half {:.1f} %".format(
            *halves
        ) in PAGE.replace("\n", " ")


def test_what_the_clients_own_prior_changes_is_stored():
    kept, table = adapted("prior"), rows("### The client's own class prior")
    assert set(table) == {"delta", "roid", "rotta", "note"}
    for name, row in table.items():
        seeds = [r for r in kept.values() if r["adapter"] == name]
        for stream, said in row.items():
            even, client = (statistics.mean(r[p][stream] for r in seeds) for p in ("uniform", "client"))
            assert said == f"{even:.1f} ({client - even:+.1f})"
            assert client <= even  # "it does not help"


def test_batch_sizes_and_normalisation_are_as_stored():
    kept = json.loads((ROOT / "results" / "adapters" / "batches.json").read_text())["rows"]
    cells = {(r["norm"], r["adapter"], r["classes"], r["batch"]): r for r in kept if r["stream"] == "continual"}
    assert {r["seed"] for r in kept} == {0} and "with one seed" in PAGE
    table = rows("### Batch size and normalisation")
    assert len(table) * 8 == len(cells)
    for name, row in table.items():
        norm, adapter = name.split()
        for column, said in row.items():
            classes, batch = column.split(", ")
            found, plain = (cells[norm, a, f"{classes} classes", int(batch)]["accuracy"] for a in (adapter, "none"))
            assert said == (f"{found:.1f}" if adapter == "none" else f"{found - plain:+.1f}"), (name, column)
    apart = {k: float(table["group none"][f"{k}, 1"]) - float(table["batch none"][f"{k}, 1"]) for k in ("few", "all")}
    assert f"{apart['few']:.1f} points above batch norm where classes are few, and {apart['all']:.1f} where" in PAGE
    few = {n: [float(row[f"few, {b}"]) for b in (1, 4, 16, 64)] for n, row in table.items()}
    for name in ("batch bn", "batch tent", "batch roid"):
        assert -37 <= few[name][0] <= -28.5 and 0 <= few[name][2] <= 3 and max(few[name][1], few[name][3]) < 0
        assert -75 <= float(table[name]["all, 1"]) <= -70.5


@pytest.fixture(scope="module")
def newer(heatmap):
    """Changes on the newer streams: [adapter][stream], and those of fine-tuned models as `tent after FT`."""
    return heatmap.federated(ROOT / "results" / "adapters" / "newer-streams.json", 0.05)


def test_newer_streams_are_as_stored(bench, newer):
    kept, table = adapted("newer-streams"), rows("### Slow blends, drifting labels, few samples")
    means = bench("brfl").means(kept, 0.05)
    plain = {s: f"{means['fedavg/none'][s]:.1f} / {means['fedavg+finetune/none'][s]:.1f}" for s in newer["bn"]}
    assert len(kept) == 3 * len(means) * len(plain) and {r["seed"] for r in kept} == {15, 16, 17}
    assert table.pop("none") == plain and set(table) == {a for a in newer if "after" not in a}
    for name, row in table.items():
        both = [newer[n] for n in (name, f"{name} after FT") if n in newer]
        assert row == {stream: " / ".join(f"{of[stream]:+.1f}" for of in both) for stream in plain}, name


def test_what_is_said_of_newer_streams(bench, newer):
    kept, streams = adapted("newer-streams"), list(newer["bn"])
    told = bench("brfl").verdicts(kept, streams, 0.05).splitlines()
    assert told[0].split(": ")[1] == "fedavg+memory/knn, fedavg/lame, fedthe/the, fedthe/tsa"
    assert "fedavg+finetune/none" in told[1]
    cells = {(r["case"], r["stream"], r["seed"]): r["accuracy"] for r in kept}

    def least(case, plain):
        return min(cells[case, s, k] - cells[plain, s, k] for s in streams for k in (15, 16, 17))

    assert least("fedavg+memory/knn", "fedavg/none") > 0 and least("fedthe/the", "fedthe/none") > 0
    assert least("fedthe/tsa", "fedthe/none") < 0 and round(least("fedavg/lame", "fedavg/none"), 1) == -2.8
    drift, still = [s for s in streams if "labels" in s], [s for s in streams if "labels" not in s]
    assert all(31.9 < newer["the"][s] < 36 for s in still)
    on_batches = [a for a in ON_BATCHES if a in newer]
    for name in on_batches:
        assert all(-22 < newer[name][s] < -3 for s in streams if s != "periodic")
        assert -1.35 < newer[name]["periodic"] < 1.15
    for name in (f"{a} after FT" for a in on_batches if f"{a} after FT" in newer):
        assert all(-24 < newer[name][s] < -12 for s in drift) and 6 < newer[name]["periodic"] < 7
    assert all(8 < newer[a][s] < 12 for a in ("lame", "t3a") for s in ("few-samples", "few-classes"))
    tuned = [newer[a][s] for a in newer if "after" in a for s in ("few-samples", "few-classes")]
    assert max(tuned) < 0.25
    assert max(abs(c) for a in ("rotta", "rotta after FT") for c in newer[a].values()) < 1.55


def test_the_picture_is_drawn_from_the_stored_results(heatmap):
    assert heatmap.draw(heatmap.panels(ROOT / "results")) == (ROOT / "docs" / "adapters.svg").read_text()


def test_what_is_said_of_a_federation_is_in_its_table():
    text = (ROOT / "results" / "adapters" / "brfl.md").read_text()
    few, many = text.split("## Dirichlet(1.0)")
    assert "above not adapting on every stream: fedavg/memo\n" in few and "above FedTHE on every stream: none" in few
    assert "above not adapting on every stream: fedavg+finetune/memo, fedavg/cotta\n" in many
    assert "above FedTHE on every stream: fedthe/theplus\n" in many
    (above,) = re.findall(r"above FedTHE in the mean over streams: (.*)", few)
    names = [n.removeprefix("fedavg+finetune/") for n in above.split(", ") if n != "fedthe/theplus"]
    said = f"`theplus`, and on fine-tuned models {', '.join(f'`{n}`' for n in names[:-1])} and `{names[-1]}`."
    assert len(names) == 12 and f"thirteen are above FedTHE with `the`: {said}" in PAGE
    kept = json.loads((ROOT / "results" / "adapters" / "brfl.json").read_text())["rows"]
    cells = {(r["case"], r["alpha"], r["stream"], r["seed"]): r.get("accuracy") for r in kept}

    def gaps(case, other, alpha):
        """By stream, the gap of every seed."""
        each = {s: [cells[case, alpha, s, k] - cells[other, alpha, s, k] for k in range(3)] for _, _, s, _ in cells}
        return {stream: (statistics.mean(found), found) for stream, found in each.items()}

    told = [
        (gaps("fedavg/memo", "fedavg/none", 0.1), "`memo` on FedAvg alone, by {:.1f} to {:.1f} points"),
        (gaps("fedavg/cotta", "fedavg/none", 1.0), "`cotta` on FedAvg, by {:.1f} to {:.1f},"),
        (gaps("fedavg+finetune/memo", "fedavg+finetune/none", 1.0), "`memo` on fine-tuned models, by {:.1f} to {:.1f}"),
    ]
    for found, sentence in told:
        means = [mean for mean, _ in found.values()]
        assert sentence.format(min(means), max(means)) in PAGE
        worst = {stream: min(each) for stream, (_, each) in found.items() if min(each) < 0.0}
        assert len(worst) == 1 and min(worst.values()) > -0.5, sentence
    plus = {stream: mean for stream, (mean, _) in gaps("fedthe/theplus", "fedthe/the", 1.0).items()}
    assert f"at Dirichlet(1.0), by {min(plus.values()):.1f} to {max(plus.values()):.1f} points" in PAGE
    plus = {stream: mean for stream, (mean, _) in gaps("fedthe/theplus", "fedthe/the", 0.1).items()}
    assert abs(plus.pop("correlated")) < 0.05
    assert f"above by {min(plus.values()):.1f} to {max(plus.values()):.1f} on five streams" in PAGE
    table = {row[0]: row[1:] for row in ([c.strip() for c in x.strip("|").split("|")] for x in few.splitlines() if x)}
    roid, the = table["fedavg+finetune/roid"], table["fedthe/the"]
    assert f"`roid` {roid[5]}, `the` {the[5]}) and lose on other clients' ({roid[2]} and {the[2]})" in PAGE
    steps = [float(x.split("|")[-3]) for x in text.splitlines() if x.startswith("| fed")]
    assert len(steps) == 120 and "120 rows" in PAGE
    assert f"{min(steps):.3f} to {max(steps):.2f} ms per sample" in PAGE
    seeds = [x.split("|")[-4].strip() for x in text.splitlines() if x.startswith("| fed")]
    assert set(seeds) == {"3"} and "All 120 rows have **three seeds**" in PAGE
