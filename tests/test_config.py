"""Experiments as settings, TOML and JSON: every spelling gives the same record; every mistake is named."""

import dataclasses
import functools
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from acclimate.adapters import T3A, NoAdapt, Tent
from acclimate.backends import Vmap
from acclimate.core import SGD, Adam, Cosine, StepDecay, Work, check
from acclimate.data import IID, Arrays, ByDomain, Digits, Pathological
from acclimate.experiment import ConfigError, Experiment, catalogue, labels, names
from acclimate.experiment import record as config
from acclimate.experiment.settings import expand, flatten_toml, merged
from acclimate.methods import FedAvg, FedProx, FedTTA, HeteroFedTTA
from acclimate.models import CNN, MLP, ResNet20
from acclimate.personal import FineTune
from acclimate.shifts import Rotated, severity_sweep
from acclimate.store import folder_names

EXPERIMENTS = st.builds(
    Experiment,
    method=st.sampled_from(list(catalogue.METHODS.values())),
    personal=st.sampled_from(list(catalogue.PERSONALS.values())),
    adapters=st.lists(st.sampled_from(list(catalogue.ADAPTERS.values())), min_size=1, max_size=3).map(tuple),
    streams=st.lists(st.sampled_from(list(catalogue.STREAMS.values())), min_size=1, max_size=3).map(tuple),
    model=st.sampled_from(list(catalogue.MODELS.values())),
    data=st.builds(Digits, partition=st.sampled_from(list(catalogue.PARTITIONS.values())), clients=st.integers(1, 50)),
    rounds=st.integers(1, 9),
    seed=st.integers(0, 99),
    participation=st.floats(0.01, 1.0),
    backend=st.sampled_from(list(catalogue.BACKENDS.values())),
)


@given(EXPERIMENTS)
def test_json_round_trip(e):
    assert config.loads(config.dumps(e)) == e
    assert config.loads(config.dumps(e)).training_hash() == e.training_hash()


def test_every_catalogue_record_round_trips():
    for kind in catalogue.KINDS:
        for name, record in kind.entries.items():
            assert config.decode(config.encode(record)) == record, name


def one(*settings):
    (e,) = expand(settings)
    return e


@pytest.mark.parametrize(
    "e",
    [
        Experiment(method=FedProx(mu=1)),
        Experiment(method=FedAvg(server_opt=SGD(lr=1))),
        Experiment(participation=1),
        Experiment(data=Digits(mean=(0, 0, 0), std=(1, 1, 1))),
        Experiment(data=Digits(partition=ByDomain(alpha=1), split=(1, 0, 0), angles=(15, 45))),
        Experiment(streams=(Rotated(angles=(15, 30)),)),
    ],
)
def test_whole_numbers_in_fields_of_floats_have_the_hash_of_the_file(e):
    back = config.loads(config.dumps(e))
    assert back == e and back.training_hash() == e.training_hash()
    assert config.dumps(back) == config.dumps(e)
    assert back.history_hash() == e.history_hash()


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"seed": np.int64(3), "rounds": np.int32(2)}, Experiment(seed=3, rounds=2)),
        ({"participation": np.float32(0.5)}, Experiment(participation=0.5)),
        ({"method": FedProx(mu=np.float32(0.25))}, Experiment(method=FedProx(mu=0.25))),
        ({"method": FedAvg(opt=SGD(lr=np.float64(0.5)))}, Experiment(method=FedAvg(opt=SGD(lr=0.5)))),
        ({"model": MLP(hidden=[np.int64(8), 4])}, Experiment(model=MLP(hidden=(8, 4)))),
        ({"adapters": [NoAdapt()], "select": ["fixed"]}, Experiment(adapters=(NoAdapt(),), select=("fixed",))),
        ({"data": Arrays(file=Path("a.npz"))}, Experiment(data=Arrays(file="a.npz"))),
    ],
    ids=lambda value: "" if isinstance(value, Experiment) else ",".join(value),
)
def test_what_equals_a_plain_value_is_written_and_read_as_one(given, plain):
    e = Experiment(**given)
    assert e == plain and config.dumps(e) == config.dumps(plain)
    assert config.loads(config.dumps(e)) == e and e.identity() == plain.identity()
    assert type(e.seed) is type(e.rounds) is int and type(e.participation) is float


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rounds": 5.0}, r"Experiment\.rounds: 5\.0 must be of type int"),
        ({"rounds": "5"}, r"Experiment\.rounds: '5' must be of type int"),
        ({"seed": True}, r"Experiment\.seed: True must be of type int"),
        ({"seed": 2**70}, r"Experiment\.seed: a number of about 22 digits must be a whole number of at most 9,223"),
        ({"analysis": "false"}, r"Experiment\.analysis: 'false' must be of type bool"),
        ({"participation": "0.5"}, r"Experiment\.participation: '0\.5' must be of type float"),
        ({"method": FedAvg(work=Work(epochs=1.5))}, r"Experiment\.method\.work\.epochs: 1\.5 must be of type int"),
        ({"backend": Vmap(chunk=2.5)}, r"Experiment\.backend\.chunk: 2\.5 must be of type int"),
        ({"model": MLP(hidden=(8.0,))}, r"Experiment\.model\.hidden: 8\.0 must be of type int"),
        ({"adapters": Tent()}, r"Experiment: adapters=Tent\(.* must be a tuple of records, \(Tent\("),
        ({"select": "fixed"}, r"Experiment: select='fixed' must be a tuple; write \('fixed',\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_what_a_file_could_not_be_read_with_is_refused_before_it_is_written(given, says):
    with pytest.raises(check.FieldError, match=says):
        Experiment(**given)


@pytest.mark.parametrize("make", [lambda: SGD(lr="0.1"), lambda: FedProx(mu="1e-3"), lambda: Work(batch="8")])
def test_text_where_a_number_belongs_is_named_with_its_field(make):
    with pytest.raises(check.FieldError, match=r"(SGD: lr='0\.1'|FedProx: mu='1e-3'|Work: batch='8') must be "):
        make()


def test_whole_numbers_stay_where_they_may_be():
    @dataclass(frozen=True)
    class Odd:
        flag: float = True
        either: int | float = 1
        pair: tuple[int, float] = (1, 1)
        maybe: tuple[float, ...] | None = (1,)

    body = json.dumps(config.encode(Odd()))
    assert '"flag": true, "either": 1, "pair": [1, 1.0], "maybe": [1.0]' in body


def test_settings_reach_every_depth_in_any_order():
    e = one(
        "method.mu=0.01",
        "method=fedprox",
        "method.opt=adam",
        "method.opt.lr=0.2",
        "method.opt.schedule=cosine",
        "rounds=5",
    )
    assert e.method == FedProx(mu=0.01, opt=Adam(lr=0.2, schedule=Cosine()))
    assert e.rounds == 5
    e = one("data.partition=pathological", "data.partition.classes_per_client=3", "data.clients=4", "cohort=2")
    assert e.data == Digits(partition=Pathological(3), clients=4)
    assert e.cohort_size == 2
    assert one("method.private=head,norm").method == FedAvg(private=("head", "norm"))
    assert one("method.work.iterations=7").method.work.iterations == 7
    assert one("method.work.iterations=none").method.work.iterations is None
    assert one("backend=vmap", "backend.chunk=3").backend == Vmap(chunk=3)
    assert one("participation=0.25").cohort_size == 3
    assert one("model.norm=group").model.norm == "group"


@pytest.mark.parametrize(
    "settings",
    [
        ("data.clients=20", "cohort=15"),
        ("method.opt.nesterov=true", "method.opt.momentum=0.9"),
        ("data.mean=", "data.std="),
        ("data=mnist", "data.channels=3", "data.mean=.1,.1,.1", "data.std=.3,.3,.3"),
        ("model=cct", "model.heads=5", "model.dim=100"),
        ("adapters=tent", "adapters.tent.opt=sgd", "adapters.tent.opt.nesterov=true", "adapters.tent.opt.momentum=0.9"),
        ("adapters=tent", "adapters.tent.params=all", "adapters.tent.steps=3"),
    ],
)
def test_settings_that_fit_only_together_may_come_in_any_order(settings):
    e = one(*settings)
    assert e == one(*reversed(settings))
    assert e == one(*((key, value) for key, _, value in (s.partition("=") for s in settings)))
    assert e != Experiment()


def test_fields_that_do_not_fit_together_are_named():
    with pytest.raises(ConfigError, match="^cohort, data.clients: Experiment: cohort=10 must be .* clients, 3"):
        expand(["cohort=10", "data.clients=3", "rounds=2"])
    with pytest.raises(ConfigError, match="^model.heads, model.dim: CCT: dim=100 must be a multiple of heads=3"):
        expand(["model=cct", "model.layers=2", "model.heads=3", "model.dim=100"])
    with pytest.raises(ConfigError, match="^rounds: Experiment: rounds=0"):
        expand(["seed=1", "rounds=3,0"])


def test_lists_of_records_and_their_entries():
    e = one("adapters=none,tent,t3a", "adapters.tent.steps=3", "adapters.t3a.keep=none")
    assert e.adapters == (NoAdapt(), Tent(steps=3), T3A(keep=None))
    assert [labels.label(a) for a in e.adapters] == ["none", "tent(steps=3)", "t3a(keep=None)"]
    assert labels.distinct(e.adapters) == ["none", "tent", "t3a"]
    assert labels.distinct([Tent(), Tent(steps=3)]) == ["tent", "tent(steps=3)"]


@pytest.mark.parametrize("kind", ["table", "windows", "text", "huggingface"])
def test_several_columns_of_labels_are_no_sweep(kind):
    said = "data.label: 'a,b' names 2 columns; one class per row is supported, several labels per row are not: name one"
    for several in ("a,b", ["a", "b"]):
        with pytest.raises(ConfigError, match=said):
            expand([("data", kind), ("data.label", several)])
    (own,) = expand([f"data={kind}", "data.label=a"])
    assert own.data.label == "a"


def test_columns_of_clients_may_be_swept():
    assert [e.data.client for e in expand(["data=table", "data.file=x.csv", "data.client=site,ward"])] == [
        "site",
        "ward",
    ]


def test_settings_tell_a_sweep_apart():
    a, b = expand(["method=fedprox", "method.mu=0.01,0.5", "rounds=3", "seed=4"])
    assert (a.settings(), b.settings()) == (["rounds=3", "method.mu=0.01"], ["rounds=3", "method.mu=0.5"])
    assert one("method=fedbn").settings() == []
    assert one("method=fedavg+lp", "personal.opt.lr=0.5").settings() == ["personal.opt.lr=0.5"]


def test_settings_tell_sweeps_over_adapters_and_streams_apart():
    slow, fast = expand(["adapters=none,tent", "adapters.tent.opt.lr=0.01,0.3"])
    assert [e.settings() for e in (slow, fast)] == [[f"adapters.tent.opt.lr={lr}"] for lr in (0.01, 0.3)]
    mild, strong = expand(["streams=original,corrupted", "streams.corrupted.severity=1,5"])
    assert (mild.settings(), strong.settings()) == (["streams.corrupted.severity=1"], [])
    assert one("adapters=bn,tent-all", "streams=rotated").settings() == []  # which there are is no setting of them
    assert folder_names([slow, fast]) == [f"fedavg-adapters.tent.opt.lr={lr}-s0" for lr in (0.01, 0.3)]
    assert folder_names([slow, replace(slow, seed=1)]) == ["fedavg-s0", "fedavg-s1"]


def test_entries_that_tables_name_with_their_settings_are_not_settings_too():
    assert Experiment(adapters=(Tent(), Tent(steps=3)), streams=severity_sweep()).settings() == []


def test_methods_with_personalisers():
    a, b = expand(["method=fedavg+finetune,fedbn"])
    assert (a.method, a.personal, a.label) == (FedAvg(), FineTune(), "fedavg+finetune")
    assert (b.label, b.personal) == ("fedbn", Experiment().personal)
    assert a.training_hash() == one("method=fedavg").training_hash()
    assert a.training_hash() != b.training_hash()
    assert one("rounds=3").training_hash() != one("rounds=4").training_hash()
    assert one("adapters=bn").training_hash() == one("adapters=t3a").training_hash()


def test_one_place_names_the_personaliser():
    (e,) = expand(flatten_toml({"method": ["fedavg+finetune"]}))
    assert e.label == "fedavg+finetune"
    both = "method=.*finetune and personal=lp both name a personaliser; leave one of them out"
    for settings in (["method=fedavg+finetune", "personal=lp"], ["personal=lp", "method=fedavg,fedavg+finetune"]):
        with pytest.raises(ConfigError, match=both):
            expand(settings)
    with pytest.raises(ConfigError, match=r"method: 'fedavg\+' must name a personaliser after the '\+'; allowed: none"):
        expand(["method=fedbn,fedavg+"])
    assert one("method=fedavg+finetune", "personal.opt.lr=0.5").personal.opt.lr == 0.5


def test_sweeps_are_products():
    found = expand(["method=fedprox", "method.mu=0.01,0.1", "seed=0,1,2"])
    assert sorted((e.method.mu, e.seed) for e in found) == [(m, s) for m in (0.01, 0.1) for s in (0, 1, 2)]
    assert len(expand(["method=fedavg,fedavg"])) == 1


def test_toml_is_the_same_language():
    table = {
        "rounds": 3,
        "adapters": ["none", "bn"],
        "method": {"name": "fedprox", "mu": 0.5, "opt": {"name": "adam", "lr": 1}},
    }
    e = one(*flatten_toml(table))
    assert e.method == FedProx(mu=0.5, opt=Adam(lr=1.0))
    assert e.rounds == 3
    assert e == one(
        "rounds=3", "adapters=none,bn", "method=fedprox", "method.mu=0.5", "method.opt=adam", "method.opt.lr=1"
    )
    assert [x.seed for x in expand(flatten_toml({"seed": [4, 5]}))] == [4, 5]


@pytest.fixture
def beside(tmp_path):
    """The experiments of a file beside settings of the command line."""

    def make(text, *settings):
        (tmp_path / "experiment.toml").write_text(text)
        return expand(merged(tmp_path / "experiment.toml", settings))

    return make


def test_a_record_of_the_command_line_drops_what_the_file_says_of_fields_it_lacks(beside):
    file = '[method]\nname = "fedprox"\nmu = 0.5\nopt = {momentum = 0.9}\n[data.partition]\nalpha = 3.0\n'
    file += '[data]\nclients = 7\n[personal]\nname = "finetune"\nopt = {lr = 0.5}\n'
    (e,) = beside(file, "method=fedavg", "data.partition=iid")
    assert e.method == FedAvg(
        opt=SGD(lr=FedAvg().opt.lr, momentum=0.9)
    )  # a field that both have stays as the file says
    assert e.data == Digits(partition=IID(), clients=7)
    (e,) = beside(file, "method.opt=adam", "personal=none")
    assert (e.method.mu, type(e.method.opt), e.label) == (0.5, Adam, "fedprox")
    (e,) = beside(file, "method=fedavg+lp")
    assert e.label == "fedavg+lp" and e.personal.opt.lr == 0.5
    (e,) = beside('"adapters.tent.steps" = 3', "adapters=none")
    assert e.adapters == (NoAdapt(),)


def test_what_only_some_records_of_a_sweep_lack_is_no_reason_to_drop_it(beside):
    with pytest.raises(ConfigError, match="method.mu: FedAvg has no 'mu'"):
        beside('[method]\nname = "fedprox"\nmu = 0.5\n', "method=fedprox,fedavg")
    with pytest.raises(ConfigError, match="method.mu: 'much' is not a number"):
        beside('[method]\nname = "fedprox"\nmu = "much"\n', "method=fedprox")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("roundz=3", "Experiment has no 'roundz'; did you mean 'rounds'"),
        ("rounds=abc", "rounds: 'abc' is not a whole number"),
        ("method=fedavg+tent", "method: there is no personal 'tent'; write adapters=tent; allowed: none, finetune"),
        ("adapters=finetune", "adapters: there is no adapter 'finetune'; write personal=finetune; allowed: none, bn"),
        ("rounds=1.5", "'1.5' is not a whole number"),
        ("rounds=0", "rounds=0 must be a whole number of at least 1"),
        ("rounds", "'rounds' must be key=value, for example rounds=5"),
        ("visits.csv", "'visits.csv' is a file; write data=table data.file=visits.csv data.label=COLUMN; or"),
        ("fedthe", "'fedthe' must be key=value, for example method=fedthe"),
        ("corrupted", "'corrupted' must be key=value, for example streams=corrupted"),
        ("method", "'method' must be key=value, for example method=fedavg"),
        (
            "lr=0.1",
            "lr: Experiment has no 'lr'; did you mean 'method.opt.lr' or 'method.server_opt.lr'. allowed: data, m",
        ),
        ("clients=5", "Experiment has no 'clients'; did you mean 'data.clients'"),
        ("severity=3", "Experiment has no 'severity'; did you mean 'streams.corrupted.severity'"),
        ("method.lr=0.1", "method.lr: FedAvg has no 'lr'; did you mean 'method.opt.lr'"),
        ("method=FEDAVG", "there is no method 'FEDAVG'; did you mean 'fedavg'"),
        ("method=fedprx", "there is no method 'fedprx'; did you mean 'fedprox'"),
        ("method.mu=1", "FedAvg has no 'mu'; it is a field of method=fedprox, .*allowed: "),
        ("data.file=a.csv", "Digits has no 'file'; it is a field of data=table, windows, arrays, text; allowed: "),
        ("data.nobody=1", "data.nobody: Digits has no 'nobody'; allowed: partition"),
        (
            "data=v.csv",
            "'v.csv' is a file; write data=table data.file=v.csv data.label=COLUMN; or for texts data=text ",
        ),
        ("data=v.tsv.gz", "'v.tsv.gz' is a file; write data=table data.file=v.tsv.gz data.label=COLUMN"),
        ("data=v.pq", "'v.pq' is a file; write data=table data.file=v.pq"),
        ("data=lines.txt", "'lines.txt' is a file; write data=text data.file=lines.txt$"),
        ("data=v.npz", "'v.npz' is a file; write data=arrays data.file=v.npz$"),
        ("data=tests", "'tests' is a folder; write data=image-folder data.path=tests$"),
        ("data=digts", "there is no data set 'digts'; did you mean 'digits'"),
        ("method.opt.lr=-1", "SGD: lr=-1.0 must be a finite number above 0"),
        ("method.weights=size", "'size' is not possible; .*allowed: samples, uniform"),
        ("method.work=3", "set its fields instead, for example method.work.epochs"),
        ("method.work.epochs.x=3", "has no fields"),
        ("method=fedavg+fintune", "there is no personal 'fintune'; did you mean 'finetune'"),
        ("adapters=tint", "there is no adapter 'tint'; did you mean 'tent'"),
        ("adapters=", "adapters=\\(\\) must name at least one"),
        ("adapters.bn.prior=3", "no entry 'bn' to set a field of; .*allowed: none, tent, t3a"),
        ("cohort=99", "cohort=99 must be between 1 and the number of clients, 10"),
        ("participation=0", "participation=0.0 must be above 0"),
        ("data.partition.alpha=0", "alpha=0.0 must be a finite number above 0"),
        ("method=nowhere.mine:Mine", "cannot import 'nowhere.mine:Mine'"),
        ("method=acclimate.adapters:Tent", "'acclimate.adapters:Tent' is a Tent, not a Method"),
        ("method.work.drop_last=maybe", "'maybe' is not true or false"),
        ("adapters.tent=3", "adapters.tent: set its fields instead, adapters.tent.FIELD=...; allowed: .*steps"),
        ("data.split=nan,nan,nan", r"data.split: Digits: split=\(nan, nan, nan\) must be three shares"),
        ("data.angles=nan", r"data.angles: Digits: angles=\(nan,\) must be finite numbers"),
        ("data.new_angles=0,inf", "new_angles=.* must be finite numbers"),
        ("data.mean=nan,nan,nan", "data.mean: Digits: mean=.* must be finite numbers"),
        ("data.std=nan,nan,nan", "data.std: Digits: std=.* must be finite numbers"),
        ("data.seed=-1", "data.seed: Digits: seed=-1 must be a whole number of at least 0"),
        ("seed=0,-1", "seed: Experiment: seed=-1 must be a whole number of at least 0"),
        ("model.groups=0", "model.groups: CNN: groups=0 must be a finite number of at least 1"),
    ],
)
def test_mistakes_are_named(setting, says):
    with pytest.raises(ConfigError, match=says):
        expand([setting])


def test_of_a_setting_that_is_typed_twice_the_last_counts_with_a_word(tmp_path, caplog):
    (e,) = expand(merged(None, ["method=fedavg", "rounds=2", "method=fedprox"]))
    assert e.label == "fedprox"
    said = "method is given twice, and fedprox counts; for both, write method=fedavg,fedprox"
    assert caplog.messages == [said]
    assert merged(None, ["rounds=2", "rounds=2"]) == ["rounds=2", "rounds=2"]
    file = tmp_path / "a.toml"
    file.write_text('method = "fedbn"')
    assert merged(file, ["method=fedavg"]) == ["method=fedavg"]  # a file's is another matter
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"adapters": [{"name": "tent"}]}, "adapters: {'name': 'tent'} is not a name; allowed: none"),
        ({"method": [["a"]]}, r"method: \['a'\] is not a name; allowed: local"),
        ({"rounds": float("inf")}, "rounds: inf is not a whole number"),
        ({"rounds": float("nan")}, "rounds: nan is not a whole number"),
        ({"seed": []}, r"seed: \[\] must have at least one value"),
    ],
)
def test_mistakes_in_a_file_are_named(table, says):
    with pytest.raises(ConfigError, match=says):
        expand(flatten_toml(table))


def test_a_folder_is_no_file_of_settings(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path} is a folder, not a file"):
        merged(tmp_path, [])


@pytest.mark.parametrize(
    ("record", "key", "value", "says"),
    [
        ("streams=rotated", "streams.rotated.angles", "15,nan", "Rotated: angles=.* must be finite numbers"),
        ("adapters=mbsl", "adapters.mbsl.decay", "nan", "MBSL: decay=nan must be a finite number of at least 0"),
        ("data.partition=natural-users", "data.partition.floor", "-1", "NaturalUsers: floor=-1 must be a whole number"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(record, key, value, says):
    with pytest.raises(ConfigError, match=f"{key}: {says}"):
        expand([record, f"{key}={value}"])


@pytest.mark.parametrize("key", ["cohort=1", "data.clients=1", "participation=0.1"])
def test_masks_need_two_clients_in_a_round(key):
    says = f"filters, {key.partition('=')[0]}: Experiment: filters=Masked needs at least 2 clients in a round, not 1"
    with pytest.raises(ConfigError, match=says):
        expand(["filters=masked", key])
    assert one("filters=masked", "cohort=2").cohort_size == 2


@pytest.mark.parametrize(
    ("settings", "least"), [((), 5), (("filters.krum.liars=2",), 7), (("filters.krum.select=4",), 7)]
)
def test_krum_is_refused_before_the_first_round_where_a_round_is_too_small(settings, least):
    assert one("filters=krum", *settings, f"cohort={least}").filters[0].needs == least
    says = f"Experiment: filters=Krum needs at least {least} clients in a round, not {least - 1}"
    with pytest.raises(ConfigError, match=says):
        expand(["filters=krum", *settings, f"cohort={least - 1}"])


@pytest.mark.parametrize("model", [MLP, CNN, ResNet20])
def test_groups_are_at_least_one(model):
    for groups in (0, -1):
        with pytest.raises(ValueError, match=f"{model.__name__}: groups={groups} must be .* at least 1"):
            model(norm="group", groups=groups)


@dataclass(frozen=True)
class Mine(FedAvg):
    """A user's own method."""

    twist: float = 1.0


def test_own_records_by_dotted_path_and_in_files():
    e = one("method=test_config:Mine", "method.twist=2")
    assert e.method.twist == 2.0
    assert type(e.method).__name__ == "Mine"
    back = config.loads(config.dumps(e))
    assert dataclasses.asdict(back.method) == dataclasses.asdict(e.method)


OWN = """
from dataclasses import dataclass
import acclimate as ac

@dataclass(frozen=True)
class Own(ac.methods.FedAvg):
    pass
"""


def own_file(folder, module):
    """config.json of an experiment with a class of the user's own, in a module that nothing has imported."""
    (folder / f"{module}.py").write_text(OWN + f"print('{module} was imported')\n")
    body = json.loads(config.dumps(Experiment()))
    body["experiment"]["method"]["type"] = f"{module}:Own"
    text = json.dumps(body)
    return text.replace("acclimate.config/2", "acclimate.config/1")  # which has no digest: as if edited by hand


def test_a_file_imports_nothing_that_the_user_did_not_allow(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    text = own_file(tmp_path, "own_unknown")
    says = "experiment.method: cannot find the record 'own_unknown:Own': .* `ACCLIMATE_ALLOW=own_unknown:Own`"
    with pytest.raises(ConfigError, match=says):
        config.loads(text)
    assert "own_unknown" not in sys.modules and capsys.readouterr().out == ""
    assert config.loads(text, method=FedProx()).method == FedProx()  # passed again, the file's is not looked at


def test_a_file_may_name_what_the_user_allowed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = own_file(tmp_path, "own_allowed")
    monkeypatch.setenv("ACCLIMATE_ALLOW", "other:Thing, own_allowed:Own")
    assert type(config.loads(text).method).__module__ == "own_allowed"
    monkeypatch.delenv("ACCLIMATE_ALLOW")
    assert type(config.loads(text).method).__name__ == "Own"  # it is known from then on
    assert "own_allowed:Own" in names.own_names()
    monkeypatch.setenv("ACCLIMATE_ALLOW", "own_absent:Own")
    with pytest.raises(ConfigError, match="cannot find the record 'own_absent:Own', which ACCLIMATE_ALLOW names: No"):
        config.loads(text.replace("own_allowed", "own_absent"))


def test_only_records_can_be_allowed():
    with pytest.raises(TypeError, match="must be a dataclass: records are frozen dataclasses"):
        names.allow(int)
    names.allow(_Needy)
    assert names.class_of("test_config:_Needy") is _Needy


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (FedTTA(mu=0.02), "fedtta-prox(mu=0.02)"),
        (FedTTA(inner_lr=0.1), "fedtta(inner_lr=0.1)"),
        (FedAvg(private=("head",), opt=SGD(lr=0.3)), "fedper(opt.lr=0.3)"),
        (FedAvg(private=("conv1",)), "fedavg(private=('conv1',))"),
        (FedAvg(server_opt=SGD(lr=0.5, momentum=0.9)), "fedavgm(server_opt.lr=0.5)"),
        (HeteroFedTTA(lam=0.3, inner_lr=0.1), "heterofedtta(lam=0.3, inner_lr=0.1)"),
        (HeteroFedTTA(lam=0.0, inner_lr=0.0), "fedmd"),
        (CNN(widths=(16, 32), norm="batch"), "cnn-small"),
        (CNN(widths=(8, 8), norm="batch"), "cnn-bn(widths=(8, 8))"),
        (ByDomain(alpha=0.5), "by-domain-and-label(alpha=0.5)"),
    ],
)
def test_a_preset_is_known_by_its_words_and_switches_and_not_by_counting(record, label):
    assert labels.label(record) == label


def test_every_entry_has_its_own_name():
    for kind in catalogue.KINDS:
        assert [labels.label(e) for e in kind.entries.values()] == list(kind.entries)


def test_a_field_that_came_later_is_written_where_it_is_not_what_earlier_files_mean():
    plain, padded = CNN(), CNN(padding=2)
    assert "padding" not in config.encode(plain) and config.encode(padded)["padding"] == 2
    assert [config.decode(config.encode(m)) for m in (plain, padded)] == [plain, padded]
    tta = FedTTA(inner_schedule=StepDecay())
    assert config.decode(config.encode(tta)) == tta
    assert expand(["method=fedtta", "method.inner_schedule=step"])[0].method == tta


def test_a_file_without_a_revision_means_the_first_one():
    @dataclass(frozen=True)
    class Revised(NoAdapt):
        revision: int = 2

    assert "revision" not in config.encode(Revised(revision=1)) and config.encode(Revised())["revision"] == 2
    names.allow(Revised)
    assert [config.decode(config.encode(Revised(revision=r))).revision for r in (1, 2)] == [1, 2]


@dataclass(frozen=True)
class _Needy(NoAdapt):
    must: int = field(kw_only=True)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (\n", r"cannot import 'own_code:X': .*own_code.py, line 1: SyntaxError: '\(' was never closed"),
        ("x = 1\ny = 1 / 0\n", r"cannot import 'own_code:X': .*own_code.py, line 2: ZeroDivisionError: division by"),
        ("x = 1\n", "cannot import 'own_code:X': module 'own_code' has no attribute 'X'"),
    ],
)
def test_own_code_that_fails_is_named_by_file_and_line(tmp_path, monkeypatch, code, says):
    (tmp_path / "own_code.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    with pytest.raises(ConfigError, match=f"method: {says}"):
        expand(["method=own_code:X"])
    sys.modules.pop("own_code", None)


def test_own_records_without_defaults_are_named():
    says = "adapters: cannot make 'test_config:_Needy' without arguments: .*'must'; every field needs a default"
    with pytest.raises(ConfigError, match=says):
        expand(["adapters=test_config:_Needy"])


def test_python_objects_are_named_in_the_file_and_asked_for_on_loading():
    net = nn.Linear(2, 2)
    text = config.dumps(replace(Experiment(), model=net))
    assert "torch.nn.modules.linear:Linear" in text
    with pytest.raises(ConfigError, match=r"ac\.load\(path, model=\.\.\.\)"):
        config.loads(text)
    assert config.loads(text, model=net).model is net


def test_own_records_and_objects_are_told_apart():
    assert labels.distinct([Mine(), Mine(twist=2.0)]) == ["Mine", "Mine(twist=2.0)"]
    a, b = (replace(Experiment(), model=nn.Linear(2, 2)) for _ in range(2))
    assert a.training_hash() != b.training_hash()  # other weights, another training
    assert a.training_hash() == replace(Experiment(), model=a.model).training_hash()
    assert a.identity() == b.identity()  # a checkpoint of one can be loaded into the other
    assert a.settings()[0].startswith("model=torch.nn.modules.linear:Linear#")
    f, g = (lambda shape, classes: nn.Linear(1, 1)), (lambda shape, classes: nn.Linear(2, 2))
    assert replace(a, model=f).training_hash() != replace(a, model=g).training_hash()


def test_functions_with_other_arguments_share_no_training():
    def net(shape, classes, drop=0.0):
        return nn.Sequential(nn.Flatten(), nn.Dropout(drop), nn.Linear(64, classes))

    one, other = (Experiment(model=functools.partial(net, drop=drop)) for drop in (0.0, 0.9))
    assert one.history_hash() != other.history_hash()
    assert one.identity() == other.identity()  # a checkpoint knows Python objects by name


def test_training_hashes_stay_what_they_were_in_stored_results():
    world = ("data.clients=10", "data.partition.alpha=0.1", "data.partition.revision=1")  # the default of that time
    plain = one(*world)
    scaffold = one("method=scaffold", "method.opt.lr=0.5", "method.work.clip=none", "participation=0.5", *world)
    assert (plain.former_hash(), scaffold.former_hash()) == ("2a5a5ddc186f95f4", "c52f2c2d6c722293")
    assert (plain.identity(), scaffold.identity()) == ("ae1efad034b3819c", "2780155d96a097b2")
    assert (plain.training_hash(), scaffold.training_hash()) == ("26ef1c048d2e0e85", "bc0edf2222e79b54")


def test_foreign_and_damaged_files():
    with pytest.raises(ConfigError, match="config.json is damaged: Expecting"):
        config.loads("{")
    with pytest.raises(ConfigError, match="schema='other' must be 'acclimate.config/2'"):
        config.loads('{"schema": "other"}')
    body = json.loads(config.dumps(Experiment()))
    body["experiment"]["method"]["colour"] = 1
    with pytest.raises(ConfigError, match="FedAvg has no field 'colour'"):
        config.loads(json.dumps(body))
    body = json.loads(config.dumps(Experiment()))
    body["experiment"]["rounds"] = 0
    with pytest.raises(ConfigError, match="rounds=0"):
        config.loads(json.dumps(body))
    body = json.loads(config.dumps(Experiment()))
    body["experiment"]["method"]["type"] = "os:path"
    with pytest.raises(ConfigError, match="cannot find the record 'os:path'"):
        config.loads(json.dumps(body))


UNREADABLE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from acclimate.methods import FedProx
if TYPE_CHECKING:
    from nowhere import Kind

@dataclass(frozen=True)
class Mine(FedProx):
    kind: Kind = "a"
    rate: float = 0.5
"""


def test_annotations_of_an_own_record_may_be_for_type_checkers_alone(tmp_path, monkeypatch):
    (tmp_path / "unreadable_kind.py").write_text(UNREADABLE)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = expand(["method=unreadable_kind:Mine", "method.mu=1"])
    own = replace(found.method, rate=0.2, kind="b")
    assert (own.kind, own.rate, own.mu) == ("b", 0.2, 1.0) and type(own.mu) is float
    assert config.decode(config.encode(own)) == own
    assert config.encode(replace(own, mu=2))["mu"] == 2.0  # what is inherited keeps its type
    with pytest.raises(ConfigError, match="made in Python alone"):
        expand(["method=unreadable_kind:Mine", "method.kind=b"])
