"""FedPCL's tables as its published code has them: settings by value, and weights from a folder."""

import gzip
import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from acclimate.data import BalancedTest, Dirichlet, PerClass, of
from acclimate.experiment import ConfigError
from acclimate.models import checkpoints, encoders
from acclimate.models.frozen import Frozen
from acclimate.recipes import RECIPES, coverage, needs, orders, plan, published, recipe
from acclimate.recipes.fedpcl import BACKBONES, ORDINARY, ROWS, STAND_INS, Bits, First, FrozenFederation, released
from acclimate.recipes.fedpcl_tables import table2
from acclimate.recipes.record import Cell
from acclimate.recipes.results import file_of

TABLES = ("table2", "table3", "table5", "table6", "table11", "table12", "table13", "table14", "table15")
NAMES = ("one", "two", "three")


def made(row="FedPCL", data="Digit-5", shift="both", backbones=1, **changes):
    version = released(NAMES)
    return version.at(data, shift, backbones, **changes).training(version.rows[row], "paper")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights")
    for seed, name in enumerate(STAND_INS):
        torch.manual_seed(seed)
        save_file(encoders._ResNet18(kernel=5).state_dict(), path / f"{name}.safetensors")
    return path


def test_features_classifier_and_pixels_are_those_of_the_code():
    for data in ("Digit-5", "Office-10"):
        for shift in ("feature", "label", "both"):
            training = made(data=data, shift=shift, backbones=3)
            assert training.data.encoder == Bits(NAMES, size=64, width=None) and training.model.head == "released"
    assert made(backbones=1).data.encoder.backbones == ("one",)
    without = released().at(backbones=2).training(ROWS["FedPCL"], "paper").data.encoder
    assert without == Bits(BACKBONES[:2], size=64, width=512)
    ordinary = ORDINARY.at("Office-10").training(ROWS["FedPCL"], "paper")
    assert ordinary == FrozenFederation("Office-10").training(ROWS["FedPCL"], "paper")
    assert ordinary.model.head == "linear" and ordinary.data.encoder.size == 128


def test_clients_are_dealt_images_as_by_the_published_loader():
    digits, office = made(shift="label").data, made(data="Office-10", shift="label").data
    assert digits.data.data.domains == ("mnistm",) and digits.data.data.part == "all" and digits.data.each == 550
    assert digits.partition == office.partition == Dirichlet(1.0, "natural", floor=30)
    many = [made(shift="label", clients=n).data for n in (20, 40, 80)]  # a batch of 32 out of a third, and out of 2 / 3
    assert [d.partition.floor for d in many] == [30, 96, 48]
    assert (digits.clients, digits.fraction, office.clients, office.fraction) == (5, 1.0, 5, 0.8)
    assert digits.split == (1 / 11, 0.0, 1 - 1 / 11) and office.split == (0.5, 0.0, 0.5)
    for clients, share, each in ((40, 1 / 3, 1200), (80, 1 / 1.5, 1200)):
        many = made(shift="label", clients=clients).data
        assert many.split[0] == share and many.data.each == each and many.clients == clients
    both, four = made().data, made(data="Office-10").data
    assert both.data.each == 150 and both.data.data.part == "test" and both.partition.alpha is None
    assert both.split == BalancedTest(train=10, test=90, clients=5)
    assert four.split == BalancedTest(train=10, test=100, most=0.2, clients=4) and four.clients == 4
    assert made(shift="feature").data.split == PerClass(train=10, val=0, test=90)


def test_rounds_batches_and_means_are_those_of_the_code():
    places = (("Digit-5", "feature"), ("Digit-5", "label"), ("Digit-5", "both"), ("Office-10", "label"))
    places += (("Office-10", "both"),)
    assert [made("FedPCL", *at).rounds for at in places] == [50, 50, 100, 100, 100]
    assert [made("FedAvg", *at).rounds for at in places] == [200] * 5
    assert [made("Solo", *at).rounds for at in places] == [100] * 5
    assert [made("FedAvg", *at).method.record.work.batch for at in places] == [32, 32, 32, 32, 16]
    works = {made(row).method.record.work.drop_last for row in ROWS}
    assert works == {True} and not ROWS["FedAvg"].record.work.drop_last
    assert made("FedAvg").method.record.weights == made("FedRep").method.record.weights == "uniform"
    assert made("FedAvg", shift="label", clients=80).participation == 0.25
    version = released()
    assert version.rows["FedPCL"].record.variant == "released" and version.plain.record.variant == "paper"
    assert list(version.rows) == list(ROWS) and ORDINARY.plain == ROWS["FedPCL"]


def test_the_first_of_every_class_and_domain_are_kept_in_order():
    y = torch.tensor([0, 1, 0, 0, 1, 1, 0, 0, 1])
    domain = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0])
    data = of(torch.arange(9.0)[:, None], y, domain=domain)
    assert First(data=data, each=1).load().x.flatten().tolist() == [0, 1, 4, 6]
    assert First(data=data, each=2).load().x.flatten().tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    with pytest.raises(ValueError, match="each=0"):
        First(data=data, each=0)


def test_every_table_has_a_recipe_that_compares_with_the_same_numbers():
    for name in TABLES:
        own, other = RECIPES[f"fedpcl/released-{name}"], RECIPES[f"fedpcl/{name}"]
        assert own.starts and own.takes == STAND_INS
        mine, theirs = coverage.places(own), coverage.places(other)
        assert mine == {at: place for at, place in theirs.items() if "DomainNet" not in at[1]} and mine


def test_a_folder_brings_one_backbone_for_each_name(folder):
    found = plan(RECIPES["fedpcl/released-table14"], "paper", weights=str(folder))
    files = [folder / f"{name}.safetensors" for name in STAND_INS]
    named = tuple(f"resnet18@{file}#{checkpoints.digest(file)}" for file in files)
    assert found.weights.backbone == named and found.weights.network == "resnet18"
    rows = {c.row: c.training.data.encoder.backbones for c in recipe("fedpcl/released-table14").cells("paper", named)}
    assert rows == {f"{n} backbones": named[:n] for n in (1, 2, 3)}
    assert file_of(found, folder).name == "released-table14-paper-resnet18.json"
    with pytest.raises(ConfigError, match=r"must be a folder with drawings.safetensors, machines.safetensors, animals"):
        plan(RECIPES["fedpcl/released-table2"], "paper", weights=str(files[0]))
    with pytest.raises(ConfigError, match=re.escape("fedpcl/table1 starts from no weights")):
        plan(RECIPES["fedpcl/table1"], "paper", weights=str(folder))


def test_a_table_with_an_ordinary_classifier_takes_the_same_folder(folder):
    """Nothing but the encoder differs from the table on EfficientNets: all features, and images are not enlarged."""
    named = plan(RECIPES["fedpcl/table14"], "paper", weights=str(folder)).weights.backbone
    for name in ("table2", "table11"):
        own, other = (recipe(f"fedpcl/{name}").cells("paper", given) for given in (named, None))
        for mine, theirs in zip(own, other, strict=True):
            if isinstance(mine, Cell):
                before = theirs.training.data.encoder
                count = len(before.backbones)
                assert mine.training.data.encoder == Frozen(named[:count], size=before.size // 2, width=None)
                data = replace(mine.training.data, encoder=before)
                assert replace(mine, training=replace(mine.training, data=data)) == theirs
    assert RECIPES["fedpcl/table2"].cells("smoke") == list(table2("smoke"))


def test_cells_whose_backbone_a_folder_lacks_are_left_out(folder, tmp_path, monkeypatch):
    """The first must be there; all digits count as being there."""
    with pytest.raises(ConfigError, match=r"drawings.safetensors must be a .safetensors file.*there is no such file"):
        plan(RECIPES["fedpcl/released-table2"], "paper", weights=str(tmp_path))
    (tmp_path / "drawings.safetensors").write_bytes((folder / "drawings.safetensors").read_bytes())
    found = plan(RECIPES["fedpcl/table14"], "paper", weights=str(tmp_path))
    digest = checkpoints.digest(folder / "drawings.safetensors")
    one, *more = found.weights.backbone
    assert one.endswith(f"drawings.safetensors#{digest}") and found.weights.digest == digest
    assert more == [f"resnet18@{tmp_path / name}.safetensors" for name in STAND_INS[1:]]
    assert needs.missing(Frozen((one,))) == ()
    gone = tuple(f"backbone {name}.safetensors: there is no such file" for name in STAND_INS[1:])
    assert needs.missing(Frozen((one, *more))) == gone
    cells = [c for c in recipe("fedpcl/table14").cells("paper", (one, *more)) if c.row == "2 backbones"]
    monkeypatch.setattr(needs, "_lacking", lambda record, root: "")
    assert needs.fitted(cells[0]) == (None, gone[:1])


def test_a_domain_that_is_missing_is_left_out_inside_of_wrappers():
    have = [f"Digit5 ({d})" for d in ("mnist", "svhn", "usps", "mnistm")]
    cell = next(c for c in recipe("fedpcl/released-table11").cells("paper") if c.column == "both shift single Digit-5")
    fitted, lacks = needs.fitted(cell, have)
    assert fitted.training.data.clients == 4 and lacks
    assert fitted.training.data.data.data.domains == ("mnist", "svhn", "usps", "mnistm")
    assert fitted.training.data.data.each == 150


def stored(folder, name, numbers):
    cells = [{"row": r, "column": c, "percent": True, "ours": [v], "mean": v} for (r, c), v in numbers.items()]
    body = {"schema": "acclimate.reproduction/1", "recipe": f"fedpcl/{name}", "scale": "paper", "cells": cells}
    (folder / f"{name}.json").write_text(json.dumps(body))


def test_coverage_counts_the_table_with_an_ordinary_classifier(tmp_path):
    """Whether the recipe as the published code has it is nearer does not matter."""
    at = ("FedAvg", "both shift single Digit-5")
    key = next(c.key for c in recipe("fedpcl/table11").cells("paper") if (c.row, c.column) == at)
    theirs = published.find("fedpcl/table11", key).mean
    stored(tmp_path, "released-table11", {at: theirs})
    stored(tmp_path, "table11", {at: theirs + 10})
    own = [RECIPES["fedpcl/table11"], RECIPES["fedpcl/released-table11"]]
    found = coverage.standings(own, coverage.collected(tmp_path), {"Digit5"})
    assert [s.state for s in found if s.table == "fedpcl/table11" and s.ours is not None] == ["far"]


def test_orders_are_judged_with_either_classifier():
    names = {order.recipe for order in orders.ORDERS}
    assert {"fedpcl/table2", "fedpcl/table11", "fedpcl/released-table2", "fedpcl/released-table11"} <= names
    for order in orders.ORDERS:
        known = {c.column for c in RECIPES[order.recipe].cells("paper") if isinstance(c, Cell)}
        assert set(order.columns) <= known, order


def test_stand_ins_are_trained_on_what_they_are_named_after(tmp_path, monkeypatch):
    """Rows of CIFAR-10's classes by name, numbered from 0, and a card and weights that a recipe's backbone can read."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("stand_ins")
    assert tuple(script.SOURCES) == STAND_INS
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    x = (torch.arange(60) * 4).to(torch.uint8)[:, None, None, None].expand(60, 3, 32, 32).contiguous()
    held = SimpleNamespace(x=x, y=torch.arange(60) % 10, classes=classes)
    monkeypatch.setattr(script.ac.data, "CIFAR10", lambda part: SimpleNamespace(load=lambda: held))
    got, y = script.images("machines", 7)
    assert (got[:, 0, 0, 0] // 4).tolist() == [0, 1, 8, 9, 10, 11, 18] and y.tolist() == [0, 1, 2, 3, 0, 1, 2]
    seen = script.shown(got, 64, moved=False)
    assert seen.shape == (7, 3, 64, 64)
    assert float(seen[1, 0, 5, 5]) == pytest.approx((4 / 255 - 0.485) / 0.229, abs=1e-5)
    monkeypatch.setattr(script, "BATCH", 4)
    monkeypatch.setattr(sys, "argv", ["stand_ins.py", "animals", "--epochs", "1", "1", "--device", "cpu"])
    monkeypatch.chdir(tmp_path)
    script.main()
    card = json.loads((tmp_path / "stand-ins" / "animals.json").read_text())
    file = tmp_path / "stand-ins" / "animals.safetensors"
    assert card["digest"] == checkpoints.digest(file) and card["images"] == 33 and card["epochs"] == {"32": 1, "64": 1}
    assert encoders.load(f"resnet18@{file}").module.conv1.weight.shape == (64, 3, 5, 5)


def test_drawings_are_quickdraws_where_a_folder_of_them_is_given(tmp_path, monkeypatch):
    """A kind for every file in the order of names, white on black; a network half as wide that a recipe can read."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("stand_ins")
    for name, value in (("bat", 0.2), ("ant", 1.0)):
        with gzip.open(tmp_path / f"{name}.ndjson.gz", "wt") as out:
            out.write("".join(json.dumps([value] * 784) + "\n" for _ in range(20)))
    x, y = script.drawn(tmp_path)
    assert x.shape == (40, 3, 28, 28) and x[:, 0, 0, 0].tolist() == [255] * 20 + [51] * 20
    assert y.tolist() == [0] * 20 + [1] * 20
    assert script.steps(2, 8) == [8, 8] and script.steps(1.25, 8) == [8, 2] and script.steps(0, 8) == []
    monkeypatch.setattr(script, "BATCH", 4)
    words = ["drawings", "--quickdraw", str(tmp_path), "--width", "2", "--epochs", "1", "0.5", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["stand_ins.py", *words])
    monkeypatch.chdir(tmp_path)
    script.main()
    card = json.loads((tmp_path / "stand-ins" / "drawings.json").read_text())
    assert card["trained on"] == "2 kinds of QuickDraw" and card["width"] == 2 and card["images"] == 36
    encoder = encoders.load(f"resnet18@{tmp_path / 'stand-ins' / 'drawings.safetensors'}").module.eval()
    assert encoder.conv1.weight.shape == (2, 3, 5, 5) and encoder(torch.zeros(1, 3, 64, 64)).shape == (1, 16)
    with pytest.raises(SystemExit, match="no .*ndjson.gz is there"):
        script.drawn(tmp_path / "stand-ins")


def test_one_training_is_written_for_several_sides(tmp_path, monkeypatch):
    """In a folder of each side's name: the same weights, and batch norm's statistics of images of that side."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    script = importlib.import_module("stand_ins")
    with gzip.open(tmp_path / "ant.ndjson.gz", "wt") as out:
        out.write("".join(json.dumps([0.3 + 0.4 * (i % 2)] * 392 + [0.1] * 392) + "\n" for i in range(20)))
    monkeypatch.setattr(script, "BATCH", 4)
    words = ["drawings", "--quickdraw", str(tmp_path), "--width", "2", "--epochs", "1", "0.5", "--side", "64", "32"]
    monkeypatch.setattr(sys, "argv", ["stand_ins.py", *words, "--device", "cpu"])
    monkeypatch.chdir(tmp_path)
    script.main()
    cards, nets = {}, {}
    for side in (64, 32):
        cards[side] = json.loads((tmp_path / "stand-ins" / str(side) / "drawings.json").read_text())
        nets[side] = checkpoints.read(tmp_path / "stand-ins" / str(side) / "drawings.safetensors")
    assert [card["side"] for card in cards.values()] == [64, 32] and cards[64]["digest"] != cards[32]["digest"]
    same = {name: torch.equal(value, nets[32][name]) for name, value in nets[64].items()}
    assert same["conv1.weight"] and same["layer4.1.bn2.weight"] and not same["bn1.running_mean"]


def test_what_the_page_says_of_three_networks_is_in_its_files():
    """The rule that was settled before, what it gave, and what was run all the same."""
    root = Path(__file__).parents[2]
    page, causes = (root / "docs/papers/fedpcl.md").read_text(), root / "results" / "causes"

    def told(name, domain):
        found = json.loads((causes / f"{name}.json").read_text())["accuracy"]
        return tuple(found[net][domain]["whole"] for net in ("stand-in", "untrained"))

    large, small = "nearest-means-three", "nearest-means-three-32"
    (mnist, plain), (usps, other), (things, rest) = (told(large, d) for d in ("mnist", "usps", "caltech10"))
    assert mnist > plain and usps > other and things > rest
    assert f"{mnist} % of MNIST's digits and {usps} % of USPS' (with random weights {plain} and {other})" in page
    assert f"{things} % of Caltech's things ({rest})" in page
    (amazon, least), (little, more) = told(large, "amazon"), told(small, "mnist")
    assert amazon < least and little < more  # so they do not count
    assert f"{amazon} % of Amazon's, where random weights tell {least}" in page
    assert f"{little} % of MNIST's, where random weights tell {more}" in page
    alone = [told("nearest-means-drawings", d)[0] for d in ("mnist", "usps")]
    assert "tells {} % of MNIST's and {} % of USPS' digits at 64".format(*alone) in page
    study = json.loads((causes / "three-backbones.json").read_text())
    sides = [b["side"] for b in study["study"]["backbones"]]
    assert sides == [64, 64, 64] and not list((root / "results").glob("stand-ins/*"))
    by, columns = study["accuracy"]["released"], ("feature Digit-5", "label Digit-5", "both Digit-5")
    for row in ("FedAvg", "FedProto", "Solo", "FedPCL"):
        numbers = [n for column in columns for n in by[column][row]["0"]]
        (line,) = re.findall(rf"^\| {row} \| ((?:[\d.]+ \([\d.]+\) \| ?){{6}})$", page, re.M)
        assert re.findall(r"([\d.]+) \(", line) == [f"{n:.1f}" for n in numbers]
        off = [float(theirs) - float(n) for n, theirs in re.findall(r"([\d.]+) \(([\d.]+)\)", line)]
        assert min(off) > 4.5 and max(off) < 48.5
