"""Frozen parameters of a user's own module: a run knows them when it sees them, and a live folder holds them."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import acclimate as ac
from acclimate import store
from acclimate.core import Task, rng
from acclimate.store import RunError
from acclimate.store.frozen import differing, of_tasks


class Net(nn.Module):
    """A trunk that is drawn anew whenever it is made, and never trained; a head that is trained."""

    def __init__(self, classes=10):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(768, 16), nn.Tanh())
        self.trunk.requires_grad_(False)
        self.head = nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.trunk(x))


@dataclass(frozen=True)
class Unsteady:
    """A user's record whose trunk differs from call to call, whatever the seed."""

    def build(self, shape, num_classes):
        module = Net(num_classes)
        with torch.no_grad():
            module.trunk[1].weight.copy_(TRUNKS.pop())
        return module


TRUNKS: list[torch.Tensor] = []


def experiment(model):
    return ac.Experiment(
        data=ac.data.Digits(clients=2),
        model=model,
        method=ac.methods.FedAvg(work=ac.Work(epochs=1)),
        rounds=1,
        adapters=(ac.adapters.NoAdapt(),),
        streams=(ac.shifts.Original(),),
        backend=ac.backends.Serial(),
    )


def drawn(seed):
    torch.manual_seed(seed)
    return Net()


def test_a_run_refuses_another_frozen_trunk(tmp_path):
    net = drawn(0)
    ac.train(experiment(net)).save(tmp_path / "run")
    kept = store.read_json(tmp_path / "run" / "frozen.json")
    assert list(kept["tensors"]) == ["trunk.1.weight", "trunk.1.bias"]
    weight = net.trunk[1].weight.double().flatten()
    wanted = sum(float(w) * float(torch.tensor(float(i), dtype=torch.float64).cos()) for i, w in enumerate(weight))
    assert kept["tensors"]["trunk.1.weight"]["along"] == pytest.approx(wanted, rel=1e-9)
    assert ac.load(tmp_path / "run", model=drawn(0)).state.round == 1
    with pytest.raises(RunError, match=r"other frozen parameters .*: trunk\.1\.weight, trunk\.1\.bias; .*load_state_d"):
        ac.load(tmp_path / "run", model=drawn(1))
    other = drawn(0)
    other.trunk.requires_grad_(True)
    with pytest.raises(RunError, match="other frozen parameters"):
        ac.load(tmp_path / "run", model=other)
    (tmp_path / "run" / "frozen.json").unlink()  # a run of an earlier version has none
    assert ac.load(tmp_path / "run", model=drawn(1)).state.round == 1


def test_a_run_that_goes_on_and_one_that_shares_a_training_note_it_too(tmp_path):
    both = [experiment(drawn(0)), replace(experiment(drawn(0)), personal=ac.personal.FineTune())]
    ac.run_all(both, tmp_path / "both")
    notes = [store.read_json(run / "frozen.json")["tensors"] for run in store.IndexFolder(tmp_path / "both").runs()]
    assert len(notes) == 2 and notes[0] == notes[1]
    ac.run(experiment(ac.models.MLP(hidden=(8,))), tmp_path / "own")
    assert not (tmp_path / "own" / "frozen.json").exists()
    first = store.IndexFolder(tmp_path / "both").runs()[0]
    assert "frozen.json" in store.RunFolder(first).load()["results"]["files"]
    (first / "results.json").unlink()
    with pytest.raises(RunError, match="other frozen parameters"):
        ac.resume(first, model=drawn(1))
    assert len(ac.resume(first, model=drawn(0)).rows) == 2


def test_a_live_folder_answers_alike_whatever_trunk_the_constructor_draws(tmp_path):
    live = ac.train(experiment(drawn(0))).deploy(0)
    x = (torch.arange(5 * 768) * 7 % 256).to(torch.uint8).reshape(5, 3, 16, 16)
    wanted = live.predict(x)
    live.save(tmp_path / "live")
    again = ac.load_live(tmp_path / "live", model=drawn(1))
    assert torch.equal(again.predict(x), wanted)
    again.save(tmp_path / "copy")  # what was kept goes along, and not what the constructor drew
    assert torch.equal(ac.load_live(tmp_path / "copy", model=drawn(2)).predict(x), wanted)
    assert torch.allclose(again.module()(x), wanted, atol=1e-5)
    with pytest.raises(ValueError, match=r"trunk\.1\.weight is of shape \(16, 768\) among .* not there .* trained"):
        ac.load_live(tmp_path / "live", model=nn.Sequential(nn.Flatten(), nn.Linear(768, 10)))


def test_a_live_folder_of_a_record_needs_no_luck_either(tmp_path):
    TRUNKS.extend([torch.full((16, 768), 0.02)] * 3)
    live = ac.train(experiment(Unsteady())).deploy(1)
    x = (torch.arange(5 * 768) * 7 % 256).to(torch.uint8).reshape(5, 3, 16, 16)
    live.save(tmp_path)
    TRUNKS[:] = [torch.full((16, 768), -1.0)]
    assert torch.equal(ac.load_live(tmp_path).predict(x), live.predict(x))
    TRUNKS.clear()


def test_copies_of_a_task_keep_what_was_given():
    frozen = {"trunk.1.weight": torch.ones(16, 768), "trunk.1.bias": torch.zeros(16)}
    task = Task(drawn(0), (3, 16, 16), 10, frozen=frozen)
    vars = task.init(rng.key(0))
    x = torch.linspace(0, 0.01, 2 * 768).reshape(2, 3, 16, 16)
    assert torch.allclose(task.apply(vars, x).features[0, 0], x[0].sum().tanh())
    kind, parts = task.__reduce__()
    for copy in (kind(*parts), task.computing(None), task.having(task.model)):
        assert torch.equal(copy.apply(vars, x).logits, task.apply(vars, x).logits)
    assert not torch.equal(task.having(drawn(0)).constants["trunk.1.weight"], frozen["trunk.1.weight"])


def test_the_trunk_of_our_own_model_is_compared_and_not_copied(tmp_path):
    """A record makes it again, of a file or a seed: hundreds of megabytes per client are not written."""
    fit = ac.train(experiment(ac.models.LoRA(ac.models.ViT(patch=4, width=8, depth=1), rank=2)))
    fit.save(tmp_path / "run")
    kept = store.read_json(tmp_path / "run" / "frozen.json")["tensors"]
    assert "blocks.0.qkv.weight" in kept or len(kept) > 5
    assert ac.load(tmp_path / "run").state.round == 1
    fit.deploy(0).save(tmp_path / "live")
    card = json.loads((tmp_path / "live" / "live.json").read_text())
    assert set(card["files"]) == {"model", "state"} and set(card["apart"]) == set(kept)
    assert ac.load_live(tmp_path / "live").client == 0
    name = next(iter(card["apart"]))
    card["apart"][name]["along"] += 1.0
    (tmp_path / "live" / "live.json").write_text(json.dumps(card))
    with pytest.raises(RunError, match=f"deployed with other frozen parameters than its model has now: {name}"):
        ac.load_live(tmp_path / "live")


def test_an_encoder_of_a_user_is_known_again(tmp_path):
    def encoder(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 8))

    ac.train(experiment(ac.models.Frozen(backbones=(encoder(0),)))).save(tmp_path)
    assert ac.load(tmp_path, model=ac.models.Frozen(backbones=(encoder(0),))).state.round == 1
    with pytest.raises(RunError, match=r"other frozen parameters .*: backbones\.0\.1\.weight, backbones\.0\.1\.bias;"):
        ac.load(tmp_path, model=ac.models.Frozen(backbones=(encoder(1),)))


def test_last_digits_do_not_matter_and_everything_else_does():
    a, b = Task(drawn(0), (3, 16, 16), 10), Task(drawn(0), (3, 16, 16), 10)
    b.constants["trunk.1.weight"] = b.constants["trunk.1.weight"] * (1 + 1e-6)
    assert differing(of_tasks([a]), of_tasks([b])) == []
    b.constants["trunk.1.weight"] = b.constants["trunk.1.weight"] * 1.01
    assert differing(of_tasks([a]), of_tasks([b])) == ["trunk.1.weight"]
    b.constants["trunk.1.weight"] = a.constants["trunk.1.weight"].flip(0)
    assert differing(of_tasks([a]), of_tasks([b])) == ["trunk.1.weight"]
    assert list(of_tasks([a, a])) == [f"{i}/trunk.1.{n}" for i in (0, 1) for n in ("weight", "bias")]
