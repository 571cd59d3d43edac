"""A fixture for tests of the kernels of convolutions: every shape goes by a kernel, and which one is not measured."""

from collections.abc import Iterator

import pytest
import torch

from acclimate.core.nn import implicit


@pytest.fixture(autouse=True)
def every_shape_by_its_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is too small, nothing is measured, and TF32 is forbidden."""
    monkeypatch.setattr(implicit, "LEAST", 0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)

    def last(kind, other, a, b, g, precision, more):  # type: ignore[no-untyped-def]
        way, tile, dot = implicit.cuts(kind, implicit.layer_of(kind, a, b, g), a, precision)[-1]
        return {"way": way, "tile": list(tile), "dot": dot}

    before = implicit.choices()
    implicit.forget()
    monkeypatch.setattr(implicit, "_measured", last)
    yield
    implicit.forget()
    implicit.use_choices(before)
