"""A client's model outside the library: as a plain module, as an ONNX file, in torch's export format."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import acclimate as ac
from acclimate.adapters import NoAdapt, Tent
from acclimate.cli.main import app
from acclimate.core import Personalizer, rng
from acclimate.experiment import catalogue
from acclimate.running import export as exporting
from acclimate.running.export import ABOUT, CannotExport, export
from acclimate.store import RunError
from support import gap, images, small

WORK = ac.Work(iterations=1, batch=8)
MLP = ac.models.MLP(hidden=(8,), norm="batch", dropout=0.3)
MODELS = {
    "mlp": ac.models.MLP(hidden=(8,)),
    "cnn-batch": ac.models.CNN(widths=(3, 4), hidden=8, kernel=3, padding=1, norm="batch"),
    "resnet20-group": ac.models.ResNet20(width=0.25),
}


TUNE = ac.personal.FineTune(work=ac.Work(iterations=3, batch=8))
X, Y = images(150)
NAMES = ("ash", "birch", "cedar", "dogwood", "elm")


@pytest.fixture(scope="module", autouse=True)
def _few_images(tmp_path_factory):
    """A data set that is quickly dealt, with names for its classes."""
    root = tmp_path_factory.mktemp("data")
    np.savez(root / "trees.npz", x=X.numpy(), y=Y.numpy(), classes=np.array(NAMES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCLIMATE_DATA", str(root))
        patch.setenv("ACCLIMATE_CACHE", str(root / "cache"))
        yield


def trained(method, model=MLP, clients=3, **changes):
    dealt = {"clients": clients, "partition": ac.data.IID(), "mean": (0.3, 0.4, 0.5), "std": (0.2, 0.3, 0.4)}
    own = ac.data.Arrays(file="trees.npz")
    data = ac.data.Public(data=own, **dealt) if method.several_models else replace(own, **dealt)
    e = ac.Experiment(data, model, small(method, WORK), rounds=1, backend=ac.backends.Serial())
    return ac.train(replace(e, **changes))


def deployed(fit, client, personal=None):
    """What the engine serves, and the logits that the method gives with it."""
    worker, state = fit.engine.worker_of(client), fit.state
    down = worker.method.download(worker.task, state.server)
    models = fit.engine.deploy(down, state.mine, personal or fit.experiment.personal)
    model = fit.engine.model_of(models, client)
    return lambda x: worker.predict()(model, x).logits


@pytest.fixture(scope="module")
def fit():
    return trained(
        ac.methods.FedAvg(), MODELS["cnn-batch"], personal=ac.personal.FineTune(work=ac.Work(iterations=3, batch=8))
    )


@pytest.mark.parametrize("name", catalogue.METHODS)
def test_a_module_answers_as_the_deployed_model_of_every_method_does(name):
    fit = trained(catalogue.METHODS[name], MODELS["cnn-batch"] if name == "fedspl" else MLP)  # which needs feature maps
    x = fit.world.examples.x[:9]
    with torch.no_grad():
        module, expected = fit.module(1), deployed(fit, 1)(x)
        assert gap(module(x), expected) < 1e-5
        assert gap(module(x.float() / 255), expected) < 1e-5
        assert gap(module(x[:1]), expected[:1]) < 1e-5
    assert not module.training and "network.head.weight" in module.state_dict()


def test_clients_of_several_architectures_have_modules_of_their_own():
    fit = trained(ac.methods.HeteroFedTTA(), ac.models.Mixed(models=(MODELS["mlp"], MODELS["cnn-batch"])), clients=6)
    x = fit.world.examples.x[:5]
    assert len({type(fit.module(c).network) for c in range(6)}) == 2
    assert all(gap(fit.module(c)(x).detach(), deployed(fit, c)(x).detach()) < 1e-5 for c in range(6))


def test_a_module_is_personal_unless_told_otherwise(fit):
    x = fit.world.examples.x[:9]
    own, plain = fit.module(2)(x).detach(), fit.module(2, personal=False)(x).detach()
    assert gap(own, deployed(fit, 2)(x).detach()) < 1e-5
    assert gap(plain, deployed(fit, 2, Personalizer())(x).detach()) < 1e-5
    assert gap(own, plain) > 1e-3
    assert gap(fit.module(1)(x).detach(), own) > 1e-3


def test_the_round_can_be_the_one_that_validation_selected(fit):
    best = replace(fit.state.best, round=7, server={"vars": fit.worker.task.init(rng.key(5))})
    other = replace(fit, state=replace(fit.state, best=best))
    x = fit.world.examples.x[:9]
    expected = fit.worker.task.apply(best.server["vars"], x).logits
    assert gap(other.module(0, "validation", personal=False)(x).detach(), expected) < 1e-5
    assert gap(other.module(0)(x).detach(), fit.module(0)(x).detach()) == 0
    assert other.selected("validation").round == 7 and other.selected().round == 1


def test_a_module_is_ordinary_and_has_weights_of_its_own(fit):
    before = copy.deepcopy(fit.state.server)
    module, x = fit.module(0, personal=False), fit.world.examples.x[:16]
    y = fit.world.examples.y[:16].long()
    kinds = {type(m).__module__.split(".")[0] for m in module.network.modules() if not list(m.children())}
    assert kinds == {"torch"}
    opt = torch.optim.SGD(module.train().parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        opt.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert gap(fit.state.server, before) == 0
    again = fit.module(0, personal=False)
    again.load_state_dict(module.state_dict())
    assert gap(again(x).detach(), module.eval()(x).detach()) == 0


def test_a_method_that_predicts_in_its_own_way_can_be_fine_tuned_too():
    fit = trained(ac.methods.FedRoD())
    module, x = fit.module(0), fit.world.examples.x[:4]
    before = module(x).detach()
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    buffers = {n for n, _ in module.named_buffers()}
    assert {"head/weight", "head/bias"} <= buffers
    module.get_buffer("head/bias").add_(1.0)
    assert gap(module(x).detach(), before + 1) < 1e-5


def test_wrong_clients_and_rounds_are_named(fit):
    with pytest.raises(ValueError, match=r"client=3 must be from 0 to 2"):
        fit.module(3)
    with pytest.raises(ValueError, match=r"selection='best' must be 'last' or 'validation'"):
        fit.module(0, "best")


def test_a_newcomer_has_a_module_where_nothing_adapts_it(fit):
    x = fit.world.examples.x[:9]
    joined = ac.join(fit, x, NoAdapt())
    assert gap(joined.module()(x).detach(), joined.predict(x)) < 1e-5
    with pytest.raises(ValueError, match=r"Tent answers with a state of its own.*NoAdapt"):
        ac.join(fit, x, Tent()).module()


def reloaded(path, to):
    """What another program has of a file: a function of a batch, and its metadata."""
    if to == "onnx":
        runtime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        about = {
            k: json.loads(v) if v[0] in "[{" else v for k, v in session.get_modelmeta().custom_metadata_map.items()
        }
        return lambda x: torch.from_numpy(session.run(["logits"], {"x": x.numpy()})[0]), about
    extra = {ABOUT: ""}
    program = torch.export.load(str(path), extra_files=extra).module()
    return program, json.loads(extra[ABOUT])


QUICK = {("mlp", "torch-export")}
"""The command line's own tests have both files of a network with batch norm."""
PAIRS = [(model, to) for model in MODELS for to in exporting.FORMATS]
FILES = [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]


@pytest.mark.parametrize(("model", "to"), FILES)
def test_files_answer_as_the_module_does(model, to, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    fit = trained(ac.methods.FedAvg(), MODELS[model])
    done = export(fit, 1, tmp_path / "deep" / "model", to)
    assert done.checked == (1, 5) and done.difference < 1e-5
    answer, about = reloaded(done.path, to)
    x = fit.world.examples.x[:7].float() / 255
    with torch.no_grad():
        assert gap(answer(x), fit.module(1)(x)) < 1e-5
        assert answer(x[:1]).shape == (1, 5)
    assert [p.name for p in done.path.parent.iterdir()] == ["model"]


@pytest.fixture(scope="module")
def run(fit, tmp_path_factory):
    return fit.save(tmp_path_factory.mktemp("runs") / "run")


def called(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_the_command_writes_a_checked_onnx_file_that_says_what_it_is(fit, run, tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    path = tmp_path / "mine.onnx"
    done = called(run, "--client", 2, "-o", path, "--dtype", "uint8")
    assert done.exit_code == 0, done.output
    assert "client 2, model of round 1" in done.output and "batches of 1 and 5" in done.output
    answer, about = reloaded(path, "onnx")
    with torch.no_grad():
        assert gap(answer(X[:7]), fit.module(2)(X[:7])) < 1e-5
    assert about["classes"] == list(NAMES) and about["input"] == {"shape": ["batch", 3, 10, 10], "dtype": "uint8"}
    assert (about["client"], about["round"], about["label"]) == ("2", "1", "fedavg+finetune")
    assert about["config"] == fit.experiment.identity() and "give pixels 0..255" in about["normalisation"]
    assert b"module.py" not in path.read_bytes()  # no paths of the machine that wrote it


def test_the_command_writes_torchs_format_and_keeps_a_fixed_batch(fit, run):
    done = called(run, "--to", "torch-export", "--batch", 2)
    assert done.exit_code == 0, done.output
    path = run / "client-0.pt2"
    answer, about = reloaded(path, "torch-export")
    with torch.no_grad():
        assert gap(answer(X[:2] / 255), fit.module(0)(X[:2])) < 1e-5
    with pytest.raises(Exception, match="batch|shape|size"):
        answer(X[:3] / 255)
    assert about["input"]["shape"] == [2, 3, 10, 10] and about["mean"] == [0.3, 0.4, 0.5]
    assert b"module.py" not in path.read_bytes()
    again = called(run, "-o", path)  # the ending says the format
    assert isinstance(again.exception, RunError) and "--overwrite" in str(again.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "tflite"), "--to tflite must be one of onnx, torch-export"),
        (("--out", "model.bin"), "--out model.bin must end in .onnx or .pt2"),
        (
            ("--out", "model.onnx", "--to", "torch-export"),
            "--out model.onnx must end in .pt2, as --to torch-export writes",
        ),
        (("--batch", "many"), "--batch many must be dynamic or a number"),
        (("--batch", "0"), "batch=0 must be at least 1"),
        (("--client", "9"), "client=9 must be from 0 to 2"),
        (("--selection", "best"), "selection='best' must be 'last' or 'validation'"),
        (("--dtype", "int8"), "dtype='int8' must be one of float32, uint8"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(words, message, run, tmp_path):
    done = called(run, "-o", tmp_path / "file.onnx", *words)
    assert isinstance(done.exception, ValueError) and message in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_file_that_does_not_agree_is_not_written(wrong, fit, tmp_path, monkeypatch):
    module, sizes = fit.module(0), []

    def answer(x):
        sizes.append(len(x))
        return module(x) + (wrong if len(x) == 5 else 0)

    monkeypatch.setitem(exporting.FORMATS, "wrong", (lambda *_: b"file", lambda raw: answer))
    with pytest.raises(CannotExport, match=r"wrong file does not agree.*a batch of 5 .*nothing was written"):
        export(fit, 0, tmp_path / "file", "wrong")
    assert sizes == [1, 5]
    assert list(tmp_path.iterdir()) == []


class Branching(nn.Module):
    """A model that looks at its numbers, which no exporter can follow."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(300, 5)

    def forward(self, x):
        features = x.flatten(1) * (2 if float(x.mean()) > 0 else 1)
        return features, self.head(features)


def test_features_are_no_pixels(fit, tmp_path):
    examples = replace(fit.world.examples, x=fit.world.examples.x / 255)
    features = replace(fit, world=replace(fit.world, examples=examples))
    with pytest.raises(ValueError, match=r"dtype='uint8' is for images; this data set has float32: use"):
        export(features, 0, tmp_path / "file", dtype="uint8")
    assert "as the data set has them" in export(features, 0, tmp_path / "file", "torch-export").about["normalisation"]


def test_a_model_that_cannot_be_exported_is_refused_with_a_remedy(tmp_path):
    fit = trained(ac.methods.FedAvg(), Branching())
    with pytest.raises(CannotExport, match=r"cannot be written as torch-export: .*; try a fixed batch size, such as 1"):
        export(fit, 0, tmp_path / "file.pt2", "torch-export")
    with pytest.raises(CannotExport, match=r"cannot be written as torch-export: .*; try another format"):
        export(fit, 0, tmp_path / "file.pt2", "torch-export", batch=2)
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_what_to_install(fit, tmp_path, monkeypatch):
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if "onnx" in name else find(name))
    with pytest.raises(ImportError, match=r'onnx, onnxscript, onnxruntime: pip install "acclimate\[export\]"'):
        export(fit, 0, tmp_path / "file.onnx")
    assert list(tmp_path.iterdir()) == []
