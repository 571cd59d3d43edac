"""`weights=FILE`: recipes that start from a ResNet of the user's, by its content."""

import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.core import Work
from acclimate.data import Digits
from acclimate.experiment import ConfigError
from acclimate.models import MLP, Pretrained, ResNet, checkpoints, encoders
from acclimate.recipes import RECIPES, __main__, plan, run
from acclimate.recipes.record import Cell, Recipe, Training, method
from acclimate.recipes.results import file_of


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "r18.safetensors"
    save_file(encoders._ResNet18().state_dict(), path)
    return path


def test_every_model_of_a_table_starts_from_the_file(file):
    found = plan(RECIPES["fedspl/table4"], "paper", weights=str(file))
    assert found.weights.network == "resnet18" and len(found.weights.digest) == 16
    cells = RECIPES["fedspl/table4"].cells("paper", found.weights.backbone)
    models = {c.training.model for c in cells if isinstance(c, Cell)}
    assert models == {Pretrained(f"resnet18@{file}#{checkpoints.digest(file)}", size=224)}
    trained = {c.training for c in cells if isinstance(c, Cell)}
    assert {t.rounds for t in trained} == {200} and {t.data.size for t in trained} == {224}
    assert {t.method.record.work.batch for t in trained} == {128}
    assert {t.method.record.after for t in trained if t.method.name == "fedspl"} == {("*.layer1", "*.layer2")}
    taught = {c.adapter.record.batch for c in cells if isinstance(c, Cell) and c.adapter.name == "mbsl"}
    assert taught == {16}  # as released, and not four times as many
    assert file_of(found, file.parent).name == "table4-paper-resnet18.json"
    assert file_of(plan(RECIPES["fedspl/table4"], "paper"), file.parent).name == "table4-paper.json"


def test_a_backbone_s_name_stands_for_its_content(file, tmp_path):
    name = f"resnet18@{file}#{checkpoints.digest(file)}"
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        same = [encoders.load(n).module.eval()(x) for n in (name, f"resnet18@{file}")]
    assert torch.equal(*same) and same[0].shape == (1, 512)
    with pytest.raises(ValueError, match="its digest is [0-9a-f]{16} and not 0123456789abcdef"):
        encoders.load(f"resnet18@{file}#0123456789abcdef")


def test_a_resnet_50_is_told_from_its_layers(tmp_path):
    torch.manual_seed(1)
    net = ResNet(depth=50).build((3, 32, 32), 4).eval()
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, tmp_path / "r50.pth")
    found = plan(RECIPES["fedspl/table4"], "paper", weights=str(tmp_path / "r50.pth"))
    assert found.weights.network == "resnet50"
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(encoders.load(found.weights.backbone).module.eval()(x), net(x)[0])


def test_a_file_that_will_not_do_is_refused_before_anything_runs(file, tmp_path):
    (tmp_path / "notes.pth").write_text("no weights")
    save_file({"fc.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    for name, why in {
        "nowhere.pth": "there is no such file",
        "notes.pth": "cannot be read",
        "other.safetensors": "it has no conv1.weight",
    }.items():
        with pytest.raises(ConfigError, match=f"weights=.*{name} must be a .safetensors file.*ResNet-50: .*{why}"):
            plan(RECIPES["fedspl/table1"], "paper", weights=str(tmp_path / name))
    with pytest.raises(ConfigError, match="weights=.* needs --scale paper"):
        plan(RECIPES["fedspl/table1"], "smoke", weights=str(file))
    with pytest.raises(ConfigError, match="fedthe/table1 starts from no weights that could be replaced"):
        plan(RECIPES["fedthe/table1"], "paper", weights=str(file))


def test_both_command_lines_read_weights(tmp_path, monkeypatch):
    for words in (["weights=gone.pth"], ["--weights", "gone.pth"]):
        done = CliRunner().invoke(app, ["reproduce", "fedspl/table4", "--scale", "paper", *words])
        assert done.exit_code and re.search("weights=gone.pth must be .* no such file", str(done.exception))
        monkeypatch.setattr("sys.argv", ["x", "run", "fedspl/table4", *words, "--scale", "paper"])
        with pytest.raises(SystemExit, match="error: weights=gone.pth must be .* no such file"):
            __main__.main()


def test_results_say_which_weights_they_are_from(file, tmp_path):
    def make(scale, backbone="efficientnet-lite0"):
        named = method("fedavg", work=Work(epochs=1, batch=8))
        data = Digits(clients=2, fraction=0.05)
        yield Cell("FedAvg", "original", Training(named, data, Pretrained(backbone, size=16), 1))

    made = Recipe("fedspl/table99", "tiny", make, notes=("no number",), starts=True)
    body = run(plan(made, "paper", weights=str(file)), tmp_path, device="cpu")
    digest = checkpoints.digest(file)
    assert [r["weights"] for r in body["records"]] == [{str(file): digest}]
    assert (tmp_path / "fedspl" / "table99-paper-resnet18.json").exists()
    (record,) = (json.loads(p.read_text()) for p in (tmp_path / "trainings").glob("*.json"))
    assert record["weights"] == {str(file): digest} and record["experiment"]["model"]["backbone"].endswith(f"#{digest}")
    plain = replace(made, make=lambda scale: [Cell("a", "b", replace(next(make(scale)).training, model=MLP((8,))))])
    assert "weights" not in run(plan(plain, "paper"), tmp_path, device="cpu")["records"][0]
