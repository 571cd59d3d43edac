"""FedPCL's recipes: the sizes of the paper's Tables 8 to 10, the rounds of the published scripts, and its features."""

import pytest
import torch

from acclimate.core import rng
from acclimate.data import BalancedTest, Counted, Dirichlet, Noisy, PerClass
from acclimate.models.frozen import Frozen
from acclimate.recipes import published, recipe
from acclimate.recipes.fedpcl import ROWS, Bits, FrozenFederation


def paper(row="FedPCL", **setting):
    return FrozenFederation(**setting).training(ROWS[row], "paper")


def sizes(split, y):
    parts = split.cut(torch.as_tensor(y), rng.key(0))
    assert len(torch.cat(parts).unique()) == sum(map(len, parts))
    return [len(p) for p in parts]


def test_feature_shift_has_ten_training_images_per_class():
    data = paper(shift="feature").data
    assert data.clients == 5 and data.data.part == "test" and isinstance(data.split, PerClass)
    y = torch.arange(1200) % 10
    train = data.split.cut(y, rng.key(0))[0]
    assert torch.bincount(y[train]).tolist() == [10] * 10


def test_label_shift_is_mnist_m_alone_with_a_hundred_training_images_per_client():
    for clients in (None, 5, 10, 20, 40):
        data = paper(shift="label", clients=clients).data
        assert data.data.domains == ("mnistm",) and data.data.part == "all" and data.fraction == 1.0
        assert isinstance(data.partition, Dirichlet) and data.clients == (clients or 5)
        assert sizes(data.split, [0] * (9298 // data.clients))[0] == 100
    assert sizes(paper(shift="label", clients=80).data.split, [0] * 116) == [87, 14, 15]


def test_both_shifts_deal_training_images_by_a_mix_and_test_all_classes_alike():
    digits, office = paper(shift="both").data, paper(data="Office-10", shift="both", balanced=True).data
    assert digits.partition.alpha is None and digits.split == BalancedTest(train=10, test=90)
    assert office.data.size == 64 and office.clients == 4
    assert office.split == BalancedTest(train=10, test=100, most=0.2)  # a fifth of every domain, as in its test files
    whole = paper(data="Office-10", shift="both").data
    assert whole == paper(data="Office-10", shift="both", balanced=False).data and whole.partition.alpha == 1.0
    assert sizes(whole.split, [0] * 479)[0] == 100
    assert sizes(whole.split, [0] * 78)[0] == 58  # DSLR, as in Table 10


def test_learning_rates_were_tried_on_clients_that_have_validation_images():
    trained = {c.training for c in recipe("fedpcl/tuning").cells("paper")}
    assert {type(t.data.split) for t in trained} == {Counted}
    for name in ("released", "bits", "norm"):  # which were measured with the same clients
        cells = [c for c in recipe(f"fedpcl/{name}").cells("paper") if c.column == "both shift Digit-5"]
        assert {type(c.training.data.split) for c in cells} == {Counted}


def test_a_balanced_test_has_every_class_alike_and_training_images_in_a_mix():
    y = torch.arange(2000) % 10
    counts, split = [], BalancedTest(train=10, test=90)
    for seed in range(200):
        train, val, test = split.cut(y, rng.key(seed))
        assert len(val) == 0 and len(torch.cat([train, test]).unique()) == len(train) + len(test)
        assert torch.bincount(y[test]).tolist() == [90] * 10
        counts.append(torch.bincount(y[train], minlength=10))
    dealt = torch.stack(counts).double()
    # A share is Beta(1, 4), times 50 and rounded down: sum over k = 1 to 50 of (1 - k / 50)^4 is 9.50; with Beta's
    # deviation of 0.163 one image more or less is 8.2.
    assert float(dealt.mean()) == pytest.approx(9.50, abs=0.5)
    assert float(dealt.std()) == pytest.approx(8.2, abs=0.5)


def test_a_balanced_test_takes_no_more_of_a_rare_class_than_its_share():
    y = torch.tensor([0] * 200 + [1] * 10)
    train, _, test = BalancedTest(train=1000, test=100, most=0.2).cut(y, rng.key(0))
    assert torch.bincount(y[test]).tolist() == [40, 2]
    assert torch.bincount(y[train]).tolist() == [160, 8]
    for bad in ({"train": 0}, {"test": 0}, {"most": 1.5}, {"alpha": 0.0}, {"clients": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            BalancedTest(**bad)


def test_a_split_by_count_leaves_what_is_not_for_training_to_the_others():
    assert sizes(Counted(train=7, val=2), range(20)) == [7, 2, 11]
    assert sizes(Counted(train=7, val=9, most=0.5), range(10)) == [5, 2, 3]
    for bad in ({"train": 0}, {"val": -1}, {"most": 1.5}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Counted(**bad)


def test_the_first_rows_of_table_5_are_fedavg_and_fedproto_of_table_11():
    """The paper prints the same numbers and deviations in both places, so they are the same runs."""
    rows = {"Cross Entropy": "FedAvg", "Cross Entropy + ProtoDist": "FedProto", "FedPCL": "FedPCL"}
    losses = {c.row: c for c in recipe("fedpcl/table5").cells("paper")}
    column = "both shift multi Digit-5"
    table = {c.row: c for c in recipe("fedpcl/table11").cells("paper") if c.column == column}
    for row, known in rows.items():
        assert losses[row].training == table[known].training
        assert published.find("fedpcl/table5", losses[row].key) == published.find("fedpcl/table11", table[known].key)
    assert [row for row, cell in losses.items() if cell.key is None] == ["FedPCL, ce", "FedPCL, ce+distance"]
    assert losses["FedPCL, ce"].training.method == losses["FedPCL"].training.method.but(loss="ce")


def test_rounds_are_those_of_the_published_scripts():
    assert {row: paper(row).rounds for row in ("FedAvg", "Solo", "FedPCL")} == {
        "FedAvg": 200,
        "Solo": 100,
        "FedPCL": 50,
    }
    many = [paper(row, shift="label", clients=80) for row in ("FedAvg", "FedPCL")]
    assert [t.participation for t in many] == [0.25, 1.0]
    assert {c.training.rounds for c in recipe("fedpcl/table1").cells("paper")} == {50}


def test_table_15_names_the_scales_of_the_paper_and_perturbs_training_images():
    cells = {c.row: c.training for c in recipe("fedpcl/table15").cells("paper")}
    noise = cells["prototypes, Laplace, p = 0.1"].filters[0]
    assert (noise.kind, noise.s, noise.p, noise.revision) == ("laplace", 0.05, 0.1, 2)
    images = cells["images, Gaussian, p = 0.2"].data.data
    assert isinstance(images, Noisy) and (images.kind, images.s, images.p, images.revision) == ("gaussian", 0.2, 0.2, 2)


def test_features_of_the_published_code_are_zero_or_one():
    part = torch.tensor([[0.0, 2.5, 1e-3], [4.0, 0.0, 0.0]])
    assert Bits().fuse([part, part]).tolist() == [[0, 1, 1, 0, 1, 1], [1, 0, 0, 1, 0, 0]]
    assert Frozen().fuse([part]).tolist() == part.tolist()
    trained = {c.training for c in recipe("fedpcl/bits").cells("paper")}
    assert {type(t.data.encoder) for t in trained} == {Bits} and {t.model.head for t in trained} == {"released"}
    assert {c.training.model.norm for c in recipe("fedpcl/norm").cells("paper")} == {"batch"}
