"""Of several ways the fastest is taken, and what was chosen is kept."""

import pytest
import torch

from acclimate.core.nn import fastest


class Like:
    """What `chosen` asks of a tensor on a GPU."""

    dtype, device = torch.bfloat16, "cuda"


@pytest.fixture
def device(monkeypatch):
    """A device whose ways take as many milliseconds as they return, and what was measured on it."""
    measured, before = [], fastest.choices()
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    monkeypatch.setattr(fastest, "milliseconds", lambda run: (measured.append(run()), run())[1])
    fastest.forget()
    yield measured
    fastest.forget()
    fastest.use_choices(before)


def ways(**times):
    return lambda: {name: lambda t=t: t for name, t in times.items()}


def test_the_fastest_way_is_measured_once_and_the_first_of_those_that_are_nearly_as_fast(device):
    assert fastest.chosen("a", Like, "plain", ways(plain=3.0, first=2.0, second=1.0)) == "second"
    assert fastest.chosen("a", Like, "plain", ways(plain=0.1)) == "second" and device == [3.0, 2.0, 1.0]
    assert fastest.chosen("b", Like, "plain", ways(plain=1.02, other=1.0)) == "plain"
    assert fastest.chosen("c", Like, "plain", ways(plain=1.04, other=1.0)) == "other"
    assert fastest.choices()["c, bfloat16, a GPU"] == {"way": "other", "times": {"plain": 1.04, "other": 1.0}}


def test_while_a_graph_is_recorded_the_usual_way_is_taken_and_stays(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert fastest.chosen("a", Like, "plain", ways(plain=3.0, other=1.0)) == "plain"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert fastest.chosen("a", Like, "plain", ways(plain=3.0, other=1.0)) == "plain" and device == []


def test_choices_that_are_put_back_are_not_measured_again_and_others_come_back(device):
    fastest.chosen("a", Like, "plain", ways(plain=3.0, other=1.0))
    kept = fastest.choices()
    fastest.forget()
    of_another_kind = {"some shape": {"way": "patches"}}
    assert fastest.use_choices({**kept, **of_another_kind}) == of_another_kind
    assert fastest.chosen("a", Like, "plain", ways(plain=0.5, other=1.0)) == "other" and device == [3.0, 1.0]
    with pytest.raises(ValueError, match="choice of 'x'.*'way' must be one of the names in 'times'"):
        fastest.use_choices({"x": {"way": "third", "times": {"plain": 1.0}}})


def test_sizes_between_two_powers_of_two_share_a_choice():
    assert [fastest.about(n) for n in (1, 2, 3, 63040, 65536, 65537)] == [1, 2, 4, 65536, 65536, 131072]
