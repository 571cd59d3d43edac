"""The page of methods says what is stored of adapters on the embedded digits, and its tables are whole."""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text()
TRUNKS = (ROOT / "docs" / "guides" / "foundation-models.md").read_text()
STREAMS = ("original", "corrupted", "correlated", "continual")


@pytest.fixture(scope="module")
def mean():
    """Means over seeds of a case's cells, stream by stream."""
    cells = json.loads((ROOT / "results" / "live" / "no-harm.json").read_text())["cells"]
    assert {c["seed"] for c in cells} == {15, 16, 17}

    def of(case, which="adapted"):
        kept = [c for c in cells if c["case"] == case]
        return [statistics.mean(c[which] for c in kept if c["stream"] == s) for s in STREAMS]

    return of


def listed(values):
    *most, last = (f"{v:.1f}" for v in values)
    return f"{', '.join(most)} and {last}"


def test_the_table_of_adapters_is_the_stored_cells(mean):
    said = {"none": mean("fedavg/bn", "plain"), "note": mean("fedavg/note")}
    said |= {name: mean(f"fedavg/{name}") for name in ("bn", "tent", "lame", "rotta", "sar", "cotta")}
    rows = {name: f"| `{name}` | {' | '.join(f'{v:.1f}' for v in values)} |" for name, values in said.items()}
    own = f"| `cnn-small`, `norm=iabn` | `none` | {' | '.join(f'{v:.1f}' for v in mean('fedavg/note', 'plain'))} |"
    model = f"where the same training gives a model with {listed(mean('fedavg/rotta', 'plain'))} %"
    assert [line for line in (*rows.values(), own, model) if line not in PAGE] == []


def test_what_adapters_cost_is_what_was_stored(mean):
    plain, client = mean("fedavg/bn", "plain"), mean("fedavg+means/neo-client")

    def lost(case):
        return [a - b for a, b in zip(plain, mean(case), strict=True)]

    batch = [lost(case) for case in ("fedavg/bn", "fedavg/tent", "fedavg/deyo", "fedavg+means/santa")]
    spans = [sorted({f"{min(c):.1f}", f"{max(c):.1f}"}, key=float) for c in zip(*batch, strict=True)]
    first, second, third, fourth = (" to ".join(span) for span in spans)
    said = [f"the model itself has {listed(plain)} %", f"and `santa` {first}, {second}, {third} and {fourth} points"]
    said += [f"`roid` {listed(lost('fedavg/roid'))}.", f"`unmix` costs {listed(lost('fedavg/unmix'))}."]
    said += ["which costs {:.1f} and {:.1f} points".format(*lost("fedavg/delta")[2:])]
    neo = lost("fedavg/neo")
    said += [f"`neo` loses {min(neo):.1f} to {max(neo):.1f} points", f"has {listed(client)} %: more than the model"]
    assert all(a > b for a, b in zip(client, plain, strict=True))
    prior = json.loads((ROOT / "results" / "adapters" / "prior.json").read_text())["rows"].values()
    moved = {}
    for row in (r for r in prior if r["adapter"] in ("roid", "delta")):
        for stream, value in row["client"].items():
            moved.setdefault((row["adapter"], stream), []).append(value - row["uniform"][stream])
    most = max(abs(statistics.mean(values)) for values in moved.values())
    said += [f"changes `roid` and `delta` by at most {most:.1f} points"]
    assert [text for text in said if text not in PAGE] == []


def test_adapters_that_lose_more_than_5_points_are_all_named(mean):
    """On the client's own stream, with defaults, whatever the model they need was trained by."""
    cells = json.loads((ROOT / "results" / "live" / "no-harm.json").read_text())["cells"]
    cases = {c["case"].split("/")[1]: c["case"] for c in cells if "finetune" not in c["case"]}
    lost = {name: mean(case, "plain")[0] - mean(case)[0] for name, case in cases.items()}
    above = {"bn", "tent", "deyo", "santa", "roid", "delta", "neo", "neo-continual", "cotta"}
    batch, others = (
        ("eata", "mbsl", "sar", "shot", "surgical", "tent-all"),
        ("bbse", "fedtta-plus", "atp", "atp-online"),
    )
    assert {name for name, points in lost.items() if points > 5} == {*above, *batch, *others}
    most, least = (f(lost[n] for n in batch) for f in (max, min))
    said = [f"by {least:.1f} to {most:.1f} points; `bbse` by {lost['bbse']:.1f},"]
    said += [
        f"`fedtta-plus` by {lost['fedtta-plus']:.1f}",
        f"by {lost['atp']:.1f} and {lost['atp-online']:.1f} (of a model",
    ]
    said += ["gain {:.1f}, {:.1f} and {:.1f} points, and a".format(*(-lost[n] for n in ("lame", "em", "t3a")))]
    assert [text for text in said if text not in PAGE] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.stem)
def test_rows_of_a_table_have_as_many_cells_as_its_head(page):
    """A bar within a cell cuts it in two, even between backticks."""
    lines = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL).splitlines()
    bars = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    broken = [line[:80] for line, a, b in zip(lines[1:], bars, bars[1:], strict=False) if a and b and a != b]
    assert broken == []


def stored(world):
    """Stored rows by method; those of the last round are [stream][seed]."""
    rows = json.loads((ROOT / "results" / "methods" / f"{world}.json").read_text())["rows"].values()
    return {name: [r for r in rows if r["method"] == name] for name in sorted({r["method"] for r in rows})}


@pytest.fixture
def cifar10():
    return stored("cifar10")


@pytest.mark.parametrize(
    ("title", "world", "streams"),
    [
        ("On CIFAR-10", "cifar10", ("original", "corrupted", "out-of-client", "mixture")),
        ("On the embedded digits", "digits", ("original", "out-of-client")),
        ("What a trunk brings", "foundation-cpu", ("original", "corrupted", "out-of-client", "mixture")),
        ("Starting from it, or from nothing", "foundation", ("original", "corrupted", "out-of-client", "mixture")),
    ],
)
def test_tables_of_methods_are_those_stored(title, world, streams):
    section = f"{PAGE}\n{TRUNKS}".split(f"## {title}\n")[1].split("\n##")[0]
    lines = [line for line in section.splitlines() if re.match(r"\| [a-z]", line)][1:]
    told, kept = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in lines}, stored(world)
    assert told.keys() == kept.keys()
    for name, rows in kept.items():
        good = [r for r in rows if "accuracy" in r]
        for stream, cell in zip(streams, told[name], strict=False):
            last, chosen = ([r["accuracy"][selection][stream] for r in good] for selection in ("last", "validation"))
            if good:
                assert cell == f"{sum(last) / len(last):.1f} ({sum(chosen) / len(chosen):.1f})", (name, stream)
            else:
                assert cell == "diverges", name
        assert told[name][-1].removesuffix(" |") == ", ".join(str(s) for s in sorted(r["seed"] for r in rows)), name
    order = [float(cells[len(streams) - 1].split()[0]) for cells in told.values() if cells[0] != "diverges"]
    assert order == sorted(order, reverse=True)


def test_what_is_said_of_them_is_so(cifar10):
    def last(name, stream, seed=None):
        return statistics.mean(r["accuracy"]["last"][stream] for r in cifar10[name] if seed in (None, r["seed"]))

    at_home, abroad = (
        [round(last(n, s)) for n in ("fedper", "fedas", "fedpac")] for s in ("original", "out-of-client")
    )
    assert f"has {min(at_home)} to {max(at_home)} % on `original`" in PAGE
    assert f"({min(abroad)} to {max(abroad)} % `out-of-client`)" in PAGE
    able = {n: rows for n, rows in cifar10.items() if any("accuracy" in r for r in rows)}
    best = sorted(able, key=lambda n: -last(n, "mixture"))
    assert set(best[:2]) == {"ditto", "fedavg+finetune"}
    assert [n for n in able if last(n, "original") > 75 and last(n, "out-of-client") > 50] == ["fedthe"]
    for name in ("fedrep", "scaffold"):
        assert all("failed" in r for r in cifar10[f"{name}/work.clip=none"]) and name in able
    exact = json.loads((ROOT / "results" / "methods" / "cifar10-fp32.json").read_text())
    assert exact["study"]["precision"] == "fp32" and "in fp32 too (seed 1, round 35;" in PAGE
    assert exact["rows"]["fedrep/work.clip=none 1"]["failed"].startswith("round 35: client(s) 17 produced")
    assert 9 < last("fedavg", "original") - last("moon", "original") < 11
    assert abs(last("fedavg", "original", 0) - last("moon/mu=0.1", "original")) < 1.5
    for name in ("fedlc", "fedntd"):
        assert 2 < last("fedavg", "original") - last(name, "original") < 3


def test_methods_far_below_fedavg_on_the_digits_are_named():
    rows = stored("digits")
    assert all("accuracy" in r for own in rows.values() for r in own)
    own = {n: statistics.mean(r["accuracy"]["last"]["original"] for r in kept) for n, kept in rows.items()}
    far = {name for name, value in own.items() if value < own["fedavg"] - 5}
    assert far == {"fedlc", "fedntd", "fedatp/pretrain=5"} and own["fedatp"] > own["fedavg"] - 5
    assert "only `fedlc`, `fedntd` and `fedatp/pretrain=5` end more than 5 points below FedAvg on `original`" in PAGE


def test_odpfl_trains_to_the_end_on_cifar10():
    rows = json.loads((ROOT / "results" / "adapters" / "brfl.json").read_text())["rows"]

    def own(case, alpha):
        found = {
            r["seed"]: r["accuracy"] for r in rows if (r["case"], r["alpha"], r["stream"]) == (case, alpha, "original")
        }
        assert set(found) == {0, 1, 2}
        return statistics.mean(found.values())

    even, skewed, plain = own("odpfl/odpfl", 1.0), own("odpfl/odpfl", 0.1), own("fedavg/none", 0.1)
    said = (
        f"to {even:.1f} % on `original` at Dirichlet(1.0), and to {skewed:.1f} % at 0.1, where FedAvg has {plain:.1f} ("
    )
    assert said in " ".join(PAGE.split())


def test_epochs_of_fine_tuning_are_told_as_they_are_stored():
    page = " ".join((ROOT / "docs" / "methods.md").read_text().split())
    parts = json.loads((ROOT / "results" / "methods" / "finetune.json").read_text())
    assert list(parts) == ["1 epoch", "5 epochs", "10 epochs"]
    for method in ("fedbabu", "fedavg"):
        (said,) = re.findall(rf"`{method}\+finetune` ([\d., and]+) %[^0-9]*([\d., and]+) %", page)
        for stream, numbers in zip(("original", "out-of-client"), said, strict=True):
            stored = [
                next(r for r in p["rows"] if (r["method"], r["stream"]) == (f"{method}+finetune", stream))
                for p in parts.values()
            ]
            told = list(map(float, re.findall(r"\d+\.\d", numbers)))
            assert told == pytest.approx([r["accuracy"] for r in stored], abs=0.051)


def test_what_a_trunk_brings_is_told_as_it_is_stored():
    page, rows = " ".join(TRUNKS.split()), stored("foundation-cpu")
    last = {name: of[0]["accuracy"]["last"] for name, of in rows.items()}
    own, abroad = ({n: a[s] for n, a in last.items()} for s in ("original", "out-of-client"))
    assert f"is {own['full'] - own['lora']:.1f} points below who trains" in page
    assert rows["lora"][0]["up_bytes"] < 0.05 * rows["full"][0]["up_bytes"]
    alone = ("lora, alone", "feddpa")
    more, fewer = sorted(own[n] - own["lora"] for n in alone), sorted(abroad["lora"] - abroad[n] for n in alone)
    assert f"has {more[0]:.0f} to {more[1]:.0f} points more at home, and {fewer[0]:.0f} to {fewer[1]:.0f} fewer" in page
    back, lost = abroad["feddpa, weighed"] - abroad["feddpa"], own["feddpa"] - own["feddpa, weighed"]
    assert f"gives back {back:.1f} of these for {lost:.1f} at home" in page
    assert max(last, key=lambda n: last[n]["mixture"]) == "feddpa, weighed"
    study = json.loads((ROOT / "results" / "methods" / "foundation-cpu.json").read_text())["study"]
    assert f"({study['trunk']['val_accuracy']:.1f} % of its own validation data)" in page and study["rounds"] == 2


def test_what_starting_from_a_trunk_brings_is_told_as_it_is_stored():
    page, rows = " ".join(TRUNKS.split()), stored("foundation")
    trunk = json.loads((ROOT / "results" / "methods" / "foundation.json").read_text())["study"]["trunk"]
    own = {name: statistics.mean(r["accuracy"]["last"]["original"] for r in of) for name, of in rows.items()}
    said = [f"{trunk['val_accuracy']:.1f} % of its own validation data after {trunk['trained']['epochs']} epochs"]
    said += [f"has {own['full'] - own['full, from scratch']:.1f} points more on own data"]
    early = [r["rounds"]["validation"] for r in sorted(rows["full"], key=lambda r: r["seed"])]
    said += ["an early round ({}, {} and {} of 20)".format(*early)]
    assert [text for text in said if text not in page] == []
