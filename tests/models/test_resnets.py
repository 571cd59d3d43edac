"""ResNet-18 and -50: the names of the usual checkpoints, what loads, and what is refused by name."""

import logging

import pytest
import torch

from acclimate.core import Task, rng
from acclimate.models import ResNet
from acclimate.models.resnets import _ResNet


def parameters(depth):
    """Names and shapes, without making numbers."""
    with torch.device("meta"):
        net = _ResNet(ResNet(depth), 3, 1000)
    return {k: tuple(v.shape) for k, v in net.state_dict().items()}


def test_names_and_shapes_are_those_of_the_usual_checkpoints():
    small, large = parameters(18), parameters(50)
    assert (len(small), len(large)) == (122, 320)
    learned = [k for k in small if "running" not in k and "num_batches" not in k]
    assert sum(torch.Size(small[k]).numel() for k in learned) == 11_689_512
    learned = [k for k in large if "running" not in k and "num_batches" not in k]
    assert sum(torch.Size(large[k]).numel() for k in learned) == 25_557_032
    assert list(small)[:2] == ["conv1.weight", "bn1.weight"] and list(small)[-2:] == ["fc.weight", "fc.bias"]
    assert small["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert small["layer4.1.conv2.weight"] == (512, 512, 3, 3)
    assert large["layer1.0.downsample.1.running_var"] == (256,)
    assert large["layer3.5.conv3.weight"] == (1024, 256, 1, 1)
    assert small["fc.weight"] == (1000, 512) and large["fc.weight"] == (1000, 2048)


@pytest.mark.parametrize(("depth", "dim"), [(18, 512), (50, 2048)])
def test_features_enter_the_head(depth, dim):
    t = Task(ResNet(depth, stem="small"), (1, 8, 8), 4)
    assert t.dim == dim and t.head == {"fc.weight", "fc.bias"} and len(t.stages) == 4
    out = t.apply(t.init(rng.key(0)), torch.rand(2, 1, 8, 8))
    assert out.features.shape == (2, dim) and out.logits.shape == (2, 4)


def test_the_large_stem_quarters_images():
    t = Task(ResNet(), (3, 64, 64), 4)
    assert t.stages == ("bn1", "layer1", "layer2", "layer3", "layer4")
    assert Task(ResNet(50), (3, 64, 64), 4).stages == t.stages  # a bottleneck's first layers have the size before it
    seen = {}
    t.apply(t.init(rng.key(0)), torch.rand(1, 3, 64, 64), change={"layer1": lambda out: seen.update(shape=out.shape)})
    assert seen["shape"] == (1, 64, 16, 16)


@pytest.fixture
def checkpoint():
    torch.manual_seed(3)
    return _ResNet(ResNet(stem="small"), 3, 7).state_dict()


def test_a_checkpoint_loads_from_either_kind_of_file(checkpoint, tmp_path, caplog):
    from safetensors.torch import save_file

    torch.save({"state_dict": {f"module.{k}": v for k, v in checkpoint.items()}}, tmp_path / "a.pth")
    save_file(checkpoint, tmp_path / "b.safetensors")
    caplog.set_level(logging.INFO, logger="acclimate")
    for name in ("a.pth", "b.safetensors"):
        vars = Task(ResNet(stem="small", weights=str(tmp_path / name)), (3, 8, 8), 7).init(rng.key(1))
        both = {**vars["params"], **vars["buffers"]}
        assert all(torch.equal(both[k], v) for k, v in checkpoint.items() if "num_batches" not in k)
    assert not caplog.records


def test_a_classifier_for_other_classes_is_left_out_and_said_so(checkpoint, tmp_path, caplog):
    torch.save(checkpoint, tmp_path / "a.pt")
    caplog.set_level(logging.INFO, logger="acclimate")
    params = Task(ResNet(stem="small", weights=str(tmp_path / "a.pt")), (3, 8, 8), 4).init(rng.key(1))["params"]
    assert params["fc.weight"].shape == (4, 512)
    assert torch.equal(params["layer4.1.conv2.weight"], checkpoint["layer4.1.conv2.weight"])
    assert "7 classes and the data 4" in caplog.text


def test_what_does_not_fit_is_named(checkpoint, tmp_path):
    def said(weights, **options):
        torch.save(weights, tmp_path / "a.pt")
        with pytest.raises(ValueError, match="does not fit") as error:
            ResNet(weights=str(tmp_path / "a.pt"), **{"stem": "small", **options}).build((3, 8, 8), 7)
        return str(error.value)

    assert "lacks bn1.bias" in said({k: v for k, v in checkpoint.items() if k != "bn1.bias"})
    assert "has extra.weight, which it should not" in said({**checkpoint, "extra.weight": torch.zeros(1)})
    assert "conv1.weight of shape (64, 3, 3, 3), expected (64, 3, 7, 7)" in said(checkpoint, stem="imagenet")
    assert "lacks" in said(checkpoint, depth=50)
    with pytest.raises(FileNotFoundError, match="no such file"):
        ResNet(weights=str(tmp_path / "nowhere.pt")).build((3, 8, 8), 7)
    with pytest.raises(ValueError, match="depth"):
        ResNet(depth=34)
