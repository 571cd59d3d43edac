"""What is said of names that a package does not have."""

import importlib

import pytest

import acclimate as ac
from acclimate.core.absent import call
from acclimate.experiment.catalogue import KINDS

WRITTEN = {
    (ac.methods, "FedBABU"): "the catalogue's 'fedbabu' is ac.methods.FedAvg(private=('head',), frozen=('head',))",
    (ac.methods, "LGFedAvg"): "the catalogue's 'lg-fedavg' is ac.methods.FedAvg(private=('body',))",
    (ac.methods, "FedAvgM"): "'fedavgm' is ac.methods.FedAvg(server_opt=ac.optim.SGD(lr=1.0, momentum=0.9))",
    (ac.methods, "Tent"): "the catalogue's 'tent' is ac.adapters.Tent()",
    (ac.methods, "FedAvgg"): "did you mean 'FedAvg'?",
    (ac.adapters, "Delta"): "the catalogue's 'delta' is ac.adapters.Tent(renorm=0.95, balance=0.95)",
    (ac.adapters, "Odpfl"): "the catalogue's 'odpfl' is ac.adapters.ODPFL()",
    (ac.backends, "Vmapp"): "did you mean 'Vmap'?",
    (ac.data, "Digitz"): "did you mean 'Digits'?",
    (ac.filters, "MultiKrum"): "the catalogue's 'multi-krum' is ac.filters.Krum(select=2)",
    (ac.models, "lenet"): "the catalogue's 'lenet' is ac.models.CNN(hidden=512, padding=2)",
    (ac.personal, "LP"): "the catalogue's 'lp' is ac.personal.FineTune(parts='head')",
    (ac.shifts, "zzzz"): "acclimate.shifts has no 'zzzz'",
}


@pytest.mark.parametrize(("package", "name"), WRITTEN, ids=lambda part: getattr(part, "__name__", part))
def test_a_name_that_is_not_there_says_what_to_write(package, name):
    with pytest.raises(AttributeError) as raised:
        getattr(package, name)
    assert str(raised.value).endswith(WRITTEN[package, name])
    assert str(raised.value).startswith(f"{package.__name__} has no '{name}'")


def test_every_call_of_the_catalogue_makes_its_record():
    import acclimate.ops.augment  # noqa: F401

    for kind in KINDS:
        for name, record in kind.entries.items():
            assert eval(call(record), {"ac": ac}) == record, name


def test_asking_for_a_name_loads_no_catalogue(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imports {name}"))
    assert not hasattr(ac.methods, "FedBABU")


def test_submodules_are_found_as_before():
    from acclimate.backends import serial

    assert serial.Serial is ac.backends.Serial
