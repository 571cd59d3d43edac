"""What a method is for is in its default table: `acclimate run method=fedthe` tests THE too."""

from dataclasses import dataclass, replace

import pytest

import acclimate as ac
from acclimate.experiment import catalogue, dumps, labels, loads
from acclimate.experiment.settings import expand

OWN = {
    "fedthe": "the",
    "fedtta": "fedtta",
    "fedtta-prox": "fedtta",
    "heterofedtta": "fedtta",
    "fedicon": "icon",
    "fedicon-us": "icon",
    "fedatp": "atp",
    "odpfl": "odpfl",
    "fedspl": "mbsl",
    "fedttt": "ttt",
    "feddpa": "dpa",
    "feddpa-f": "dpa",
    "feddpa-the": "the-lora",
}
USUAL = ["none", "tent", "t3a"]


def names(*settings):
    (made,) = expand(settings)
    return [labels.name(a) for a in made.adapters]


@pytest.mark.parametrize("method", catalogue.METHODS)
def test_a_method_is_tested_with_the_adapter_that_it_trains_for(method):
    """FedMD is HeteroFedTTA without an adaptation net, so that FedTTA's adapter has nothing to work with."""
    assert names(f"method={method}") == (["none", OWN[method], "tent", "t3a"] if method in OWN else USUAL)


def test_every_adapter_that_a_method_must_prepare_is_tested_by_default():
    """TSA and THEPlus are further adapters of FedTHE's models; the rest of `made_by` is complete."""
    made_by = {a: r.made_by.split()[0] for a, r in catalogue.ADAPTERS.items() if r.made_by.startswith("method=")}
    presets = {"tsa", "theplus", "fedtta-plus", "atp-online", "ttt-episodic"}
    assert {a: m for a, m in made_by.items() if a not in presets} == {a: m for a, m in made_by.items() if a in names(m)}


def test_adapters_that_are_named_are_those_that_are_tested():
    assert names("method=fedthe", "adapters=none,tent,t3a") == USUAL
    the = ac.Experiment(
        method=ac.methods.FedTHE(), adapters=(ac.adapters.NoAdapt(), ac.adapters.Tent(), ac.adapters.T3A())
    )
    assert [labels.name(a) for a in the.adapters] == USUAL
    assert loads(dumps(the)) == the and replace(the, seed=1).adapters == the.adapters
    full = ac.Experiment(method=ac.methods.FedTHE())
    assert loads(dumps(full)) == full and len(full.adapters) == 4
    assert full.identity() == the.identity() and full.training_hash() == the.training_hash()


def test_fields_of_a_methods_own_adapter_can_be_set_without_naming_it():
    made = expand(["method=fedthe", "adapters.the.steps=3", "adapters.tent.steps=2"])[0]
    assert made.adapters[1] == ac.adapters.THE(steps=3) and made.adapters[2] == ac.adapters.Tent(steps=2)
    with pytest.raises(ValueError, match=r"no entry 'the' to set a field of; .*allowed: none, tent, t3a"):
        expand(["method=fedavg", "adapters.the.steps=3"])
    two = expand(["method=fedavg,fedthe", "adapters.tent.steps=2"])
    assert [len(e.adapters) for e in two] == [3, 4]


@dataclass(frozen=True)
class Mine(ac.methods.FedAvg):
    """A user's own method with a record of an adapter."""

    trains_for = (ac.adapters.Tent(steps=7), "lame")


def test_a_users_own_method_names_records_and_catalogue_names():
    found = ac.Experiment(method=Mine()).adapters
    assert found[1:3] == (ac.adapters.Tent(steps=7), ac.adapters.LAME()) and len(found) == 5


def test_a_name_that_no_adapter_has_is_refused():
    class Wrong(ac.methods.FedAvg):
        trains_for = ("tentt",)

    with pytest.raises(ValueError, match=r"Wrong: trains_for='tentt' .*did you mean 'tent'\?"):
        ac.Experiment(method=Wrong())
