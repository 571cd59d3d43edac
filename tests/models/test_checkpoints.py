"""Checkpoints: one reader and one way to fill a network, for ResNet-20, ResNet-18 and encoders alike."""

import logging

import pytest
import torch
from torch import nn

from acclimate.core import Task, rng
from acclimate.models import ResNet, ResNet20, encoders
from acclimate.models.checkpoints import fill

SHAPE = (3, 8, 8)


def resnet20(file, classes=10, norm="batch"):
    return ResNet20(norm=norm, weights=str(file)).build(SHAPE, classes)


LOADERS = {
    "resnet20": resnet20,
    "resnet18": lambda file: ResNet(stem="small", weights=str(file)).build(SHAPE, 10),
    "encoder": lambda file: encoders.load(f"resnet18@{file}").module,
}


def source(loader):
    """A network with weights of its own that the loader's file may hold."""
    torch.manual_seed(3)
    nets = {"resnet20": ResNet20(norm="batch"), "resnet18": ResNet(stem="small")}
    return nets[loader].build(SHAPE, 10) if loader in nets else encoders._ResNet18()


def saved(content, file):
    torch.save(content, file)
    return file


@pytest.mark.parametrize("loader", LOADERS)
def test_every_model_reads_the_same_files(loader, tmp_path):
    from safetensors.torch import save_file

    net = source(loader)
    weights = net.state_dict()
    parallel = {f"module.{k}": v for k, v in weights.items()}
    save_file(parallel, tmp_path / "a.safetensors")
    files = [tmp_path / "a.safetensors"]
    for i, content in enumerate((weights, parallel, {"state_dict": parallel, "epoch": 3}, {"model": weights})):
        files.append(saved(content, tmp_path / f"{i}.pt"))
    for file in files:
        loaded = LOADERS[loader](file).state_dict()
        assert all(torch.equal(loaded[k], v) for k, v in weights.items() if "num_batches" not in k)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_file_that_is_no_checkpoint_is_refused_by_its_path(loader, tmp_path):
    text, cut = tmp_path / "notes.pt", tmp_path / "cut.safetensors"
    text.write_text("these are no weights")
    cut.write_bytes(b"short")
    listed = saved([torch.zeros(1)], tmp_path / "list.pt")
    empty = saved({"epoch": 3}, tmp_path / "empty.pt")
    whole = saved(nn.Linear(2, 2), tmp_path / "pickled.pt")
    for file in (text, cut, listed, empty, whole):
        with pytest.raises(ValueError, match="allowed is a .safetensors file, or a file of torch.save") as error:
            LOADERS[loader](file)
        assert str(file) in str(error.value)
    with pytest.raises(FileNotFoundError, match="nowhere.pt': there is no such file"):
        LOADERS[loader](tmp_path / "nowhere.pt")


def test_a_batch_norm_checkpoint_in_a_group_norm_network_is_refused_in_a_sentence(tmp_path):
    file = saved(source("resnet20").state_dict(), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"has bn1.running_mean, .* more, which it should not .*norm='batch'"):
        resnet20(file, norm="group")
    larger = saved(ResNet(50, stem="small").build(SHAPE, 10).state_dict(), tmp_path / "b.pt")
    with pytest.raises(ValueError, match="should not") as error:
        LOADERS["resnet18"](larger)
    assert "norm='batch'" not in str(error.value)  # both have it


def test_a_classifier_of_resnet20_for_other_classes_starts_afresh(tmp_path, caplog):
    weights = source("resnet20").state_dict()
    file = saved(weights, tmp_path / "a.pt")
    caplog.set_level(logging.INFO, logger="acclimate")
    t = Task(ResNet20(norm="batch", weights=str(file)), SHAPE, 100)
    one, other = (t.init(rng.key(seed))["params"] for seed in (0, 1))
    assert one["linear.weight"].shape == (100, 64) and not torch.equal(one["linear.weight"], other["linear.weight"])
    assert torch.equal(one["layer3.2.conv2.weight"], weights["layer3.2.conv2.weight"])
    assert "10 classes and the data 100" in caplog.text


def test_an_encoder_leaves_out_a_classifier_of_any_name_and_nothing_else(tmp_path):
    weights = source("encoder").state_dict()
    file = saved({**weights, "cls_fn.weight": torch.zeros(7, 512)}, tmp_path / "a.pt")
    assert set(LOADERS["encoder"](file).state_dict()) == set(weights)
    deeper = saved({**weights, "layer1.2.conv1.weight": torch.zeros(64, 64, 3, 3)}, tmp_path / "b.pt")
    with pytest.raises(ValueError, match="has layer1.2.conv1.weight, which it should not"):  # of a ResNet-34
        LOADERS["encoder"](deeper)
    flat = saved({**weights, "conv1.weight": torch.zeros(64)}, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="no conv1.weight of a convolution"):
        LOADERS["encoder"](flat)


def test_a_head_without_its_weight_is_named_as_missing():
    net = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"checkpoint 'here' does not fit this network: it lacks 0.weight"):
        fill(net, {"0.bias": torch.zeros(2)}, "here", head="0")
