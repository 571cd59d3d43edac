"""Kernels for all leaves at once are tried on a device before they serve; one that is wrong serves nowhere."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from acclimate.core.nn import choice_kernels, kernels, proven, rehearsal, soundness, sum_kernels, weighted

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
THERE = torch.device("cuda")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been tried, and no stream is recorded."""
    monkeypatch.setattr(proven, "_found", {})
    monkeypatch.setattr(proven, "_expected", set())
    monkeypatch.setattr(rehearsal, "possible", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def test_every_module_of_such_kernels_has_a_trial():
    assert {t.__module__ for t in proven._trials} == {
        m.__name__ for m in (sum_kernels, choice_kernels, soundness, weighted)
    }


@works
@pytest.mark.parametrize("module", [sum_kernels, choice_kernels, soundness, weighted])
def test_the_kernels_pass_their_trials(module):
    assert module._right(HERE)


def test_all_serve_where_all_trials_end_well(monkeypatch):
    asked: list[torch.device] = []
    monkeypatch.setattr(proven, "_trials", [lambda d: asked.append(d) is None] * 2)
    assert proven.on(THERE) and proven.on(THERE)
    assert asked == [THERE, THERE]  # once each


@pytest.mark.parametrize("fault", ["wrong", "broken"])
def test_none_serves_where_one_fails_and_a_warning_says_why(fault, monkeypatch, caplog):
    def failing(device: torch.device) -> bool:
        if fault == "broken":
            raise RuntimeError("ptxas: no such instruction\nmore")
        return False

    monkeypatch.setattr(proven, "_trials", [lambda d: True, failing])
    monkeypatch.setattr(logging.getLogger("acclimate"), "propagate", True)
    with caplog.at_level(logging.WARNING):
        assert not proven.on(THERE)
    said = {"wrong": "its numbers are not those of torch's operations", "broken": "ptxas: no such instruction"}
    assert caplog.messages == [
        f"kernels for all leaves at once are left out on cuda: {failing.__module__}: {said[fault]}"
    ]


@pytest.mark.parametrize("busy", ["rehearsing", "recording"])
def test_nothing_is_tried_while_work_is_recorded_or_rehearsed(busy, monkeypatch):
    asked: list[torch.device] = []
    monkeypatch.setattr(proven, "_trials", [lambda d: asked.append(d) is None])
    with monkeypatch.context() as during:
        if busy == "rehearsing":
            during.setattr(rehearsal, "_running", [set()])
        else:
            during.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert not proven.on(THERE) and not asked
    assert proven.on(THERE) and asked == [THERE]


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Kernels are expected on a GPU that is named without its number, as users do; what their one trial was given."""
    asked: list[torch.device] = []
    monkeypatch.setattr(proven, "_trials", [lambda d: asked.append(d) is None])
    with monkeypatch.context() as there:
        there.setattr(torch, "empty", lambda *size, device: SimpleNamespace(device=torch.device(device.type, 3)))
        proven.expect(THERE)
    return asked


def test_a_rehearsal_takes_what_is_expected_for_proven_and_a_recording_does_not(expected, monkeypatch):
    first, other = torch.device("cuda", 3), torch.device("cuda", 4)
    with monkeypatch.context() as during:
        during.setattr(rehearsal, "_running", [set()])
        assert proven.on(first) and not proven.on(other) and not proven.on(THERE)
        during.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        during.setattr(rehearsal, "_running", [])
        assert not proven.on(first) and not expected
    assert [work() for work in proven.trials()] == [True] and expected == [first]


def test_what_is_expected_is_tried_once_where_its_tensors_lie(expected):
    proven.settle()
    proven.settle()
    assert expected == [torch.device("cuda", 3)] and proven._found == {expected[0]: True} and not proven.trials()
    assert proven.on(expected[0]) and len(expected) == 1


def test_a_trial_that_failed_holds_in_rehearsals_though_it_was_expected(expected, monkeypatch):
    monkeypatch.setattr(proven, "_found", {torch.device("cuda", 3): False})
    monkeypatch.setattr(rehearsal, "_running", [set()])
    assert not proven.on(torch.device("cuda", 3)) and not proven.trials()


def test_nothing_is_expected_of_a_cpu():
    proven.expect(torch.device("cpu"))
    assert not proven._expected and not proven.trials()


@pytest.mark.parametrize("change", ["sum", "kept", "coarse"])
def test_a_trial_notices_wrong_sums(change, monkeypatch):
    """The trial against a sum by torch's operations, right and then wrong in one place."""

    def made(wrong: bool):
        def both(x, low, y, scale, over, active):
            wide = [active.view(-1, *[1] * (a.dim() - 1)) != 0 for a in x]
            fine = [torch.where(w, a + scale * b, a) for w, a, b in zip(wide, x, y, strict=True)]
            coarse = [torch.where(w, f.to(c.dtype), c) for w, f, c in zip(wide, fine, low, strict=True)]
            place: dict[str, Tensor] = {"sum": fine[0][0], "kept": fine[1][1], "coarse": coarse[1][1]}
            if wrong:
                place[change].view(-1)[-1] += 1
            return fine, coarse

        return both

    monkeypatch.setattr(sum_kernels, "sums_in_both", made(False))
    assert sum_kernels._right(torch.device("cpu"))
    monkeypatch.setattr(sum_kernels, "sums_in_both", made(True))
    assert not sum_kernels._right(torch.device("cpu"))
