"""What is done while a graph is recorded, and must not be part of it."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from acclimate.core.nn import pixels, streams

GPU = torch.device("cuda", 0)


@pytest.fixture
def on(monkeypatch):
    """A GPU whose streams come in turn, 32 of each priority, as torch hands them out; and which one work is done on."""
    handed, on = {}, [("of priority 0", 7)]

    def new(device, priority=0):
        handed[priority] = handed.get(priority, -1) + 1
        return f"of priority {priority}", handed[priority] % 32

    @contextmanager
    def stream(own):
        on.append(own)
        yield
        on.pop()

    monkeypatch.setattr(torch.cuda, "Stream", new)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on[-1] == on[0])
    monkeypatch.setattr(streams, "_own", {})
    return on


def test_however_often_it_is_asked_for_it_is_never_the_stream_of_the_recording(on):
    used = set()
    for _ in range(100):
        torch.cuda.Stream(GPU)  # others ask for streams, too
        with streams.unrecorded(GPU):
            assert not streams.recording(GPU)
            used.add(on[-1])
    assert len(used) == 1 and streams.recording(GPU) and len(on) == 1
    assert not streams.recording(torch.device("cpu"))


def test_numbers_of_channels_are_copied_to_the_device_outside_of_the_recording(on, monkeypatch):
    copied, real = [], torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda values, device: (copied.append(on[-1]), real(values))[1])
    pixels.constant.cache_clear()
    for _ in range(2):
        assert pixels.constant((0.5, 0.25), 4, GPU).flatten().tolist() == [0.5, 0.25]
    assert copied == [("of priority -1", 0)]
    pixels.constant.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recording_does_not_notice_what_is_done_beside_it():
    here, graph = torch.device("cuda", torch.cuda.current_device()), torch.cuda.CUDAGraph()
    x, side = torch.ones(4, device=here), torch.cuda.Stream(here)
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="relaxed")
        for turn in range(100):
            torch.cuda.Stream(here)
            with streams.unrecorded(here):
                seed = torch.Generator(here).manual_seed(turn)
                assert float(torch.rand(3, generator=seed, device=here).sum()) > 0
        y = 2 * x
        graph.capture_end()
        graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [2.0] * 4
