"""Readings of what FedICON's paper leaves open (benchmarks/fedicon_readings.py): each changes what it names alone."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest
import torch

from acclimate import recipes
from acclimate.core import SGD, rng
from acclimate.data import Digits, PerClass, TrainTest
from acclimate.ops.augment import Views
from acclimate.recipes import why
from acclimate.shifts import Corrupted, Original, UnseenDomain

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def readings():
    """The benchmark's module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("fedicon_readings")
    sys.path.remove(str(ROOT / "benchmarks"))


def first(recipe, row):
    """The first cell of a row."""
    return next(c for c in recipe.make("paper") if c.row == row)


def test_own_size_is_the_image_made_smaller_in_the_middle_of_black(readings):
    x = torch.full((2, 3, 32, 32), 200, dtype=torch.uint8)
    small = readings.at_own_size(x, 16)
    assert small.dtype == torch.uint8 and small.shape == x.shape
    assert (small[:, :, 8:24, 8:24] == 200).all()
    assert int(small.sum(dtype=torch.int64)) == 200 * 2 * 3 * 16 * 16
    ramp = torch.arange(32, dtype=torch.uint8).expand(1, 1, 32, 32)
    assert readings.at_own_size(ramp, 16)[0, 0, 16, 9:23].tolist() == [round(2 * i + 0.5) for i in range(1, 15)]


def test_a_stream_at_own_size_changes_the_sets_that_were_smaller(readings, monkeypatch):
    world = Digits(clients=2, fraction=0.1, domains=("plain", "clutter")).world(0)
    key = rng.key(3)
    before, same = Corrupted().build(world, key), readings.OwnSize().build(world, key)
    assert torch.equal(before.shards.x, same.shards.x)
    monkeypatch.setattr(readings, "OWN", {"clutter": 8})
    after = readings.OwnSize().build(world, key)
    domains = world.examples.domain[after.copied]
    assert torch.equal(after.shards.x[domains == 0], before.shards.x[domains == 0])
    assert not torch.equal(after.shards.x[domains == 1], before.shards.x[domains == 1])


def test_wrapped_bytes_at_own_size_are_those_of_the_smaller_image(readings, monkeypatch):
    world = Digits(clients=2, fraction=0.1, domains=("plain", "clutter")).world(0)
    monkeypatch.setattr(readings, "OWN", {"clutter": 8})
    found, large = (getattr(readings, n)().build(world, rng.key(3)) for n in ("WrappedOwnSize", "WrappedBytes"))
    small = readings.WrappedBytes().build(readings.resized(world), rng.key(3))
    assert torch.equal(found.shards.x, small.shards.x) and not torch.equal(found.shards.x, large.shards.x)


def test_a_domain_that_nobody_has_seen_is_met_at_its_own_size(readings, monkeypatch):
    world = Digits(clients=1, fraction=0.1, domains=("plain", "clutter"), held_out=("clutter",)).world(0)
    key = rng.key(3)
    monkeypatch.setattr(readings, "OWN", {"clutter": 8})
    before, after = UnseenDomain().build(world, key), readings.UnseenOwnSize().build(world, key)
    assert torch.equal(before.shards.y, after.shards.y)
    seen = world.examples.domain == list(world.examples.domains).index("plain")
    assert torch.equal(after.shards.x[seen], before.shards.x[seen])
    assert torch.equal(after.shards.x[~seen], readings.at_own_size(before.shards.x[~seen], 8))


def test_a_domain_that_nobody_has_seen_is_met_in_0_to_1(readings):
    world = Digits(clients=1, fraction=0.1, domains=("plain", "clutter"), held_out=("clutter",)).world(0)
    plain, other = (s.build(world, rng.key(3)) for s in (UnseenDomain(), readings.UnseenNotScaled()))
    assert torch.equal(other.shards.y, plain.shards.y)
    seen = (other.shards.x.double() / 255 - 0.5) / 0.5
    assert (seen - plain.shards.x.double() / 255).abs().max() <= 1 / 255 + 1e-12


def test_a_reading_of_training_changes_one_setting(readings):
    own = first(recipes.recipe("fedicon/table1"), "FedAvg").training
    moved, seen = (first(readings.read_so("fedicon/table1", n), "FedAvg").training for n in ("momentum 0.5", "views"))
    assert moved == replace(own, method=own.method.but(opt=SGD(lr=0.01, momentum=0.5, weight_decay=5e-4)))
    assert seen == replace(own, data=replace(own.data, augment=Views(flip=False)))
    both = first(readings.read_so("fedicon/table1", "views and momentum 0.5"), "FedAvg").training
    assert both == replace(moved, data=seen.data)
    assert first(readings.read_so("fedicon/table1", "as it is"), "FedAvg").training == own


def test_the_momentum_of_the_later_release_is_that_of_every_row_with_sgd(readings):
    own = first(recipes.recipe("fedicon/table7"), "Local").training
    moved = first(readings.read_so("fedicon/table7", "momentum 0.9"), "Local").training
    assert moved == replace(own, method=own.method.but(opt=SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)))
    both = first(readings.read_so("fedicon/table7", "views and momentum 0.9"), "Local").training
    assert both == replace(moved, data=replace(own.data, augment=Views(flip=False)))


def test_fifty_per_class_leaves_out_training_images_of_large_classes_alone(readings):
    y, key = torch.tensor([0] * 100 + [1] * 20), rng.key(5)
    few, whole = readings.Fifty().cut(y, key), TrainTest().cut(y, key)
    assert torch.equal(few[2], whole[2]) and len(few[1]) == 0
    assert (y[few[0]] == 0).sum() == 50 < (y[whole[0]] == 0).sum()
    assert few[0][y[few[0]] == 1].tolist() == whole[0][y[whole[0]] == 1].tolist()
    office = first(readings.read_so("fedicon/table2", "fifty per class"), "FedAvg").training
    assert office.data.split == readings.Fifty()
    digits = first(readings.read_so("fedicon/table1", "fifty per class"), "FedAvg").training
    assert digits == first(recipes.recipe("fedicon/table1"), "FedAvg").training


@pytest.mark.parametrize("count", [20, 30, 74])
def test_more_per_class_change_the_split_of_digits_alone(readings, count):
    own = first(recipes.recipe("fedicon/table1"), "Local").training
    more = first(readings.read_so("fedicon/table1", f"{count} per class"), "Local").training
    assert more == replace(own, data=replace(own.data, split=PerClass(train=count)))
    moved = first(readings.read_so("fedicon/table1", f"{count} per class and momentum 0.9"), "Local").training
    assert moved.data == more.data and moved.method.record.opt.momentum == 0.9
    office = first(readings.read_so("fedicon/table2", f"{count} per class"), "Local").training
    assert office == first(recipes.recipe("fedicon/table2"), "Local").training


def test_office_is_seen_mirrored_and_fedicon_keeps_its_own_views(readings):
    office = first(readings.read_so("fedicon/table5", "views"), "Local").training
    assert office.data.augment == Views(flip=True)
    own = first(recipes.recipe("fedicon/table1"), "FedICON").training
    assert first(readings.read_so("fedicon/table1", "views"), "FedICON").training == own


def test_corrupted_digits_are_tested_in_five_ways_and_the_rest_as_it_is(readings):
    cells = [c for c in readings.read_so("fedicon/table1", "as it is").make("paper") if c.row == "Local"]
    tests = ["", ", plain", ", own size", ", not scaled", ", wrapped"]
    assert [c.column for c in cells[:5]] == [f"MNIST{test}" for test in tests]
    ways = [Corrupted, Original, readings.OwnSize, readings.NotScaled, readings.WrappedBytes]
    assert [type(c.stream) for c in cells[:5]] == ways and len({c.training for c in cells}) == 1
    unseen = [c for c in readings.read_so("fedicon/table7", "as it is").make("paper") if c.row == "Local"]
    assert [type(c.stream) for c in unseen] == [UnseenDomain, readings.UnseenOwnSize, readings.UnseenNotScaled] * 5
    office = [c for c in readings.read_so("fedicon/table5", "as it is").make("paper") if c.row == "Local"]
    assert [c.column for c in office] == ["Amazon", "Caltech", "DSLR", "Webcam"]


def test_tests_are_chosen_by_name_beside_the_recipes_own(readings):
    few = readings.read_so("fedicon/table1", "as it is", ["not scaled"])
    assert [c.column for c in few.make("paper") if c.row == "Local"][:3] == ["MNIST", "MNIST, not scaled", "SVHN"]


def numbers(cell):
    return f"{cell['mean']:.1f} ± {cell['std']:.1f}"


def test_the_page_has_the_numbers_of_the_file():
    found = json.loads((ROOT / "results/causes/fedicon-readings.json").read_text())["accuracy"]
    page, domains = (ROOT / "docs/papers/fedicon.md").read_text(), ("MNIST", "SVHN", "USPS", "MNIST-M")
    table, unseen = found["fedicon/table1"], found["fedicon/table7"]
    for reading in ("as it is", "views", "views and momentum 0.5"):
        rows = table[reading]
        assert len(rows) == 11
        near = [
            sum(abs(c[d + test]["mean"] - c[d]["published"]) <= 3.0 for c in rows.values() for d in domains)
            for test in ("", ", own size")
        ]
        means = {row: sum(c[d]["mean"] for d in domains) / 4 for row, c in rows.items()}
        first = ", ".join(f"{row} {means[row]:.1f}" for row in sorted(means, key=means.__getitem__, reverse=True)[:3])
        assert f"| {reading} | {near[0]} | {near[1]} | {first} |" in page
    for row, c in table["views and momentum 0.5"].items():
        tests = dict(zip(domains, ("", "", ", own size", ", own size"), strict=True))
        said = [f"{numbers(c[d + t])} ({c[d]['published']:.1f})" for d, t in tests.items()]
        mnist, svhn, usps, mnistm = said
        line = (mnist, svhn, numbers(c["USPS"]), usps, numbers(c["MNIST-M"]), mnistm)
        assert f"| {row} | {' | '.join(line)} |" in page
    for row, c in unseen["views and momentum 0.5"].items():
        for test in ("", ", own size"):
            assert f"| {row}{test} | {' | '.join(numbers(c[d + test]) for d in domains)} |" in page
        assert f"| {row}, paper | {' | '.join(format(c[d]['published'], '.1f') for d in domains)} |" in page
    usps = unseen["as it is"]["FedAvg"]
    said = (f"{usps[column]['mean']:.1f}" for column in ("USPS", "USPS, own size"))
    assert "FedAvg has {} on an enlarged USPS and {} at its own size".format(*said) in page
    alone, plain = table["momentum 0.5"], table["as it is"]
    assert all(abs(alone[r][d]["mean"] - plain[r][d]["mean"]) < 1.2 for r in alone for d in domains)


def differences(number):
    """Ours minus the published numbers of a table, by column."""
    found = {}
    for cell in json.loads((ROOT / f"results/fedicon/table{number}-paper.json").read_text())["cells"]:
        if cell["mean"] is not None and cell["published"]:
            found.setdefault(cell["column"], []).append(cell["mean"] - cell["published"]["mean"])
    return found


def test_what_the_page_says_of_differences_by_domain_is_computed_from_the_tables():
    page, near, central, count = (ROOT / "docs/papers/fedicon.md").read_text(), 0, 0, 0
    for number, title in ((1, "corrupted"), (7, "left out"), (5, "corrupted"), (2, "left out")):
        columns = differences(number)
        said = [f"{fmean(d):+.1f}, {sum(x > 0 for x in d)} of {len(d)}" for d in columns.values()]
        assert f"| Table {number}, {title} | {' | '.join(said)} |" in page
        for d in columns.values():
            near, count = near + sum(abs(x) <= 3.0 for x in d), count + len(d)
            central += sum(abs(x - median(d)) <= 3.0 for x in d)
    assert f"taken out, {central} of these {count} numbers lie within 3 points of the paper instead of {near}." in page


def test_a_client_of_usps_hardly_helps_on_usps_in_the_paper():
    page, theirs = (ROOT / "docs/papers/fedicon.md").read_text(), []
    for table in ("fedicon/table1", "fedicon/table7"):
        rows = json.loads((ROOT / f"src/acclimate/recipes/published/{table}.json").read_text())["rows"]
        theirs.append({r["method"]: r["mean"] for r in rows if r["domain"] == "USPS"})
    helped = {row: theirs[0][row] - theirs[1][row] for row in theirs[0]}
    alike = sorted(abs(x) for x in helped.values())[:8]
    assert len(helped) == 11 and f"to within {max(alike):.1f} points in eight of eleven rows" in page
    own = [-helped[row] for row in ("FedBN", "Local", "FedRep")]
    assert f"are {min(own):.0f} to {max(own):.0f} points *lower*" in page
    rows = json.loads((ROOT / "results/causes/fedicon-readings.json").read_text())["accuracy"]["fedicon/table1"]
    cost = [c["USPS, plain"]["mean"] - c["USPS"]["mean"] for c in rows["as it is"].values()]
    assert f"which cost our rows {min(cost):.0f} to {max(cost):.0f} points there" in page


def test_what_the_page_says_of_momentum_is_in_its_file():
    body = json.loads((ROOT / "results/causes/fedicon-momentum.json").read_text())
    before = json.loads((ROOT / "results/causes/fedicon-readings.json").read_text())["accuracy"]
    page, domains, gains = (ROOT / "docs/papers/fedicon.md").read_text(), ("MNIST", "SVHN", "USPS", "MNIST-M"), {}
    assert (body["study"]["seeds"], body["study"]["rounds"]) == (3, 20)
    for table, row in (("table1", "Local"), ("table1", "FedAvg"), ("table7", "FedAvg")):
        found, old = (x[f"fedicon/{table}"] for x in (body["accuracy"], before))
        cells, old = found["momentum 0.9"][row], old["as it is"][row]
        place = f"Table {table[-1]}, {row}"
        for name, line in {
            "": [numbers(cells[d]) for d in domains],
            ", own size": [numbers(cells[f"{d}, own size"]) for d in domains],
            ", as it is, 100 rounds": [numbers(old[d]) for d in domains],
            ", paper": [f"{cells[d]['published']:.1f}" for d in domains],
        }.items():
            assert f"| {place}{name} | {' | '.join(line)} |" in page
        gains[place] = [cells[d]["mean"] - old[d]["mean"] for d in domains]
    alone = gains.pop("Table 1, Local")
    assert max(map(abs, alone)) < 1.0 and "changes Local by less than a point" in page
    shared = [gain for several in gains.values() for gain in several]
    assert f"gets FedAvg {min(shared):.0f} to {max(shared):.0f} points further in a fifth of the rounds" in page


def test_what_the_page_says_of_images_that_are_not_scaled_is_in_its_files():
    page, domains = (ROOT / "docs/papers/fedicon.md").read_text(), ("MNIST", "SVHN", "USPS", "MNIST-M")
    files = (json.loads((ROOT / f"results/causes/fedicon-{n}.json").read_text()) for n in ("released", "scaling"))
    more, ten = (body["accuracy"]["fedicon/table1"] for body in files)
    more, ten = more["30 per class and momentum 0.9"], ten["momentum 0.9"]
    tests = ("", ", not scaled", ", wrapped")
    for row, c in more.items():
        for test in tests:
            assert f"| {row}{test} | {' | '.join(format(c[d + test]['mean'], '.1f') for d in domains)} |" in page
        assert f"| {row}, paper | {' | '.join(format(c[d]['published'], '.1f') for d in domains)} |" in page
    for row, c in ten.items():
        for test in tests:
            assert f"| {row}{test} | {' | '.join(numbers(c[d + test]) for d in domains)} |" in page
    both = [(more["FedAvg"][d], more["Local"][d]) for d in domains]
    gains = [", ".join(f"{a['published'] - b['published']:+.1f}" for a, b in both)]
    for test in (", wrapped", ""):
        pairs = ((more["FedAvg"][d + test]["mean"], more["Local"][d + test]["mean"]) for d in domains)
        gains.append(", ".join(f"{a - b:+.1f}" for a, b in pairs))
    assert "the paper {}; wrapped {}; as the recipe scales {}.".format(*gains) in page
    usps = (f"{ten['Local'][f'USPS, {test}']['mean']:.1f}" for test in ("not scaled", "wrapped"))
    assert "(not scaled {}, wrapped {}; paper 16.9)".format(*usps) in page
    off = {
        (r, d): more[r][f"{d}, wrapped"]["mean"] - more[r][d]["published"] for r in ("Local", "FedAvg") for d in domains
    }
    assert {place for place, x in off.items() if abs(x) <= 3} == {("FedAvg", "MNIST"), ("Local", "MNIST-M")}
    said = (f"{abs(off['FedAvg', d]):{f}}" for d, f in (("MNIST-M", ".1f"), ("SVHN", ".0f"), ("USPS", ".0f")))
    assert "FedAvg has {} too few on MNIST-M, {} too few on SVHN and {} too many on USPS".format(*said) in page
    bn, mean = more["FedBN"], more["FedAvg"]
    said = (f"{c[f'MNIST{test}']['mean']:.1f}" for test in (", not scaled", "") for c in (bn, mean))
    line = "has {} not scaled, where FedAvg has {}, and {} as the recipe scales, where FedAvg has {}"
    assert line.format(*said) in page
    assert "on USPS {:.1f} and {:.1f} (paper".format(*(c["USPS, not scaled"]["mean"] for c in (bn, mean))) in page
    assert all(bn[f"{d}, wrapped"]["mean"] < bn[d]["published"] - 12 for d in domains)


def test_what_the_page_says_of_whole_files_with_wrapped_bytes_is_in_its_file():
    page, domains = (ROOT / "docs/papers/fedicon.md").read_text(), ("MNIST", "SVHN", "USPS", "MNIST-M")
    found = json.loads((ROOT / "results/causes/fedicon-wrapped.json").read_text())["accuracy"]["fedicon/table1"]
    whole, five = found["74 per class"], ("Local", "FedAvg", "FedBN", "Tent", "FedICON")
    assert tuple(whole) == five

    def off(reading, test, rows=five):
        """How far every number is from the published one."""
        cells = ((row, d, found[reading][row]) for row in rows for d in domains)
        return {(row, d): c[d + test]["mean"] - c[d]["published"] for row, d, c in cells}

    def told(reading, test, rows=five):
        """Numbers within 3 points, and the median difference."""
        apart = [abs(x) for x in off(reading, test, rows).values()]
        return sum(x <= 3 for x in apart), f"{median(apart):.1f}"

    wrapped = off("74 per class", ", wrapped")
    near = {place for place, x in wrapped.items() if abs(x) <= 3}
    (n, apart), recipe, plain = told("74 per class", ", wrapped"), told("as it is", ""), told("74 per class", "")
    assert f"**{n} of these 20 numbers are within 3 points of the paper, {apart} in the median**" in page
    assert (
        f"the recipe has {recipe[0]} and {recipe[1]}, and 74 images without wrapped bytes {plain[0]} and {plain[1]}."
        in page
    )
    assert not [place for place in near if place[1] == "USPS"]
    high = [wrapped[row, "USPS"] for row in five]
    assert f"USPS stays {min(high):.0f} to {max(high):.0f} points" in why.WRAPPED
    assert f"{n} of 15 numbers of five rows" in why.WRAPPED
    meant = {(m, d) for reason, d, methods in why.READ if reason is why.WRAPPED for m in methods}
    assert meant == near
    tent, bn = (
        [c[f"{d}, not scaled"]["mean"] - c[d]["mean"] for d in domains] for c in (whole["Tent"], whole["FedBN"])
    )
    assert max(map(abs, tent)) <= 0.2
    assert (
        "by {:.1f} points on MNIST, by {:.1f} on SVHN, by {:.1f} on USPS and by {:.1f} on MNIST-M".format(
            *(-x for x in bn)
        )
        in page
    )
    rows = tuple(found["30 per class"])
    some = [told("30 per class", test, rows) for test in (", wrapped", ", not scaled", "")]
    assert len(rows) == 11 and [n for n, _ in some] == [9, 8, 9] and [m for _, m in some[1:]] == ["6.9", "16.6"]


def test_what_the_page_says_makes_adapting_help_is_in_its_file():
    page = (ROOT / "docs/papers/fedicon.md").read_text()
    body = json.loads((ROOT / "results/causes/fedicon-adapting.json").read_text())
    found, tests = body["accuracy"]["fedicon/table8"], ("mean", "mean, not scaled", "mean, wrapped")
    assert body["study"]["rounds"] == 20 and body["study"]["seeds"] == 1

    def gains(rows, of):
        pairs = (("nothing", "adapt"), ("share", "share+adapt"))
        return ", ".join(f"{of(rows[b]) - of(rows[a]):.1f}" for a, b in pairs)

    for images, reading in (("ten", "as it is"), ("74", "74 per class")):
        told = [gains(found[reading], lambda columns, test=test: columns[test]["mean"]) for test in tests]
        printed = gains(found[reading], lambda columns: columns["mean"]["published"])
        assert f"| {images} | {' | '.join(told)} | {printed} |" in page
    few, many = (found[r]["share"]["mean, wrapped"]["mean"] for r in ("as it is", "74 per class"))
    assert f"FedAvg has {few:.1f} there, wrapped, and {many:.1f} with 74" in page


def test_what_the_page_says_of_fifty_images_is_in_its_file():
    found = json.loads((ROOT / "results/causes/fedicon-fifty.json").read_text())
    assert (found["study"]["seeds"], found["study"]["rounds"]) == (1, 100)
    page = (ROOT / "docs/papers/fedicon.md").read_text().split("### Office-10 with fifty training images")[1]
    moved = {"Amazon": [], "Caltech": [], "DSLR": [], "Webcam": []}
    for table in ("table5", "table2"):
        own = {
            (c["row"], c["column"]): c
            for c in json.loads((ROOT / f"results/fedicon/{table}-paper.json").read_text())["cells"]
        }
        for row, cells in found["accuracy"][f"fedicon/{table}"]["fifty per class"].items():
            told = []
            for domain, pairs in moved.items():
                if domain not in cells:
                    told.append("-")
                    continue
                published = cells[domain]["published"]
                before, after = own[row, domain]["ours"][0] - published, cells[domain]["mean"] - published
                told.append(f"{before:+.1f} → {after:+.1f}")
                pairs.append((table, row, before, after))
            assert f"| Table {table[-1]}, {row} | {' | '.join(told)} |" in page
    nearer = {d: [abs(b) - abs(a) for *_, b, a in pairs] for d, pairs in moved.items()}
    assert (
        len(nearer["Amazon"]) == 7 and f"by {min(nearer['Amazon']):.1f} to {max(nearer['Amazon']):.1f} points" in page
    )
    assert [sum(x > 0 for x in nearer["Caltech"]), len(nearer["Caltech"])] == [3, 7]
    below = sorted(-a for table, _, _, a in moved["Caltech"] if table == "table5" and a < 0)
    above = sorted(a for table, *_, a in moved["Caltech"] if table == "table2")
    assert len(below) == 3 and f"{below[0]:.1f} to {below[-1]:.1f} points below the paper for three rows" in page
    assert f"still {above[0]:.1f} to {above[-1]:.1f} above it" in page
    small = [abs(b) - abs(a) for d in ("DSLR", "Webcam") for _, row, b, a in moved[d] if row != "Local"]
    assert [sum(x > 0 for x in small), sum(x == 0 for x in small)] == [5, 1]
