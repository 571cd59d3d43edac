"""`acclimate fleet deploy` names its adapter as `acclimate deploy` does."""

import pytest

from acclimate.cli.fleet import _adapter
from acclimate.cli.main import _called


@pytest.mark.parametrize(
    ("option", "settings", "named"),
    [("", [], ""), ("tent", [], "tent"), ("", ["adapters=tent"], "tent"), ("tent", ["adapters=tent"], "tent")],
)
def test_an_adapter_is_named_by_an_option_or_a_setting(option, settings, named):
    assert _adapter(option, settings) == named


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("", "tent"),
        ("", "adapters="),
        ("", "adapters=tent,t3a"),
        ("", "adapters.tent.steps=2"),
        ("t3a", "adapters=tent"),
    ],
)
def test_anything_else_is_refused_with_what_is_taken(option, typed):
    with pytest.raises(ValueError, match=f"^'{typed}': `fleet deploy` takes one of the run's adapters, as it is: adap"):
        _adapter(option, [typed])


def test_a_command_that_works_on_is_named_in_full():
    assert _called(["fleet", "deploy", "runs/mine"]) == "fleet deploy" and _called(["report", "runs/mine"]) == "report"
