"""Products with a resident weight: what can be known of them without a GPU."""

import re

import numpy as np
import pytest
import torch

from acclimate.core.nn import beside, hidden, hidden_kernels, resident, trials
from acclimate.core.nn.resident import RESIDENT

SHARED = 232_448
"""Bytes of shared memory that a program of an H100 or H200 may have."""


def assembled(numbers):
    """What the assembler's lines make of these numbers: GELU in float32, and the bytes of slopes. One number stands for
    both of a pair."""
    regs = {"$3": numbers.astype(np.float32)}

    def value(name):
        if not name.startswith("0x"):
            return regs[name]
        both = int(name, 16)
        assert both >> 16 == both & 0xFFFF
        return np.uint16(both & 0xFFFF).view(np.float16)

    def alike(high, low):
        assert np.array_equal(high, low)
        return low

    def product_and_sum(a, b, c):  # rounded once
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16)

    run = {
        "cvt.rn.satfinite.f16x2.f32": lambda high, low: alike(high, low).clip(-65504, 65504).astype(np.float16),
        "min.f16x2": np.minimum,
        "max.f16x2": np.maximum,
        "mul.f16x2": lambda a, b: product_and_sum(a, b, np.float16(0)),
        "fma.rn.f16x2": product_and_sum,
        "tanh.approx.f16x2": lambda x: np.tanh(x.astype(np.float64)).astype(np.float16),
        "neg.f16x2": np.negative,
        "mov.b32": lambda x: x,
        "cvt.f32.f16": lambda x: x.astype(np.float32),
        "mul.f32": lambda a, b: a * b,
        "cvt.rn.bf16x2.f32": lambda high, low: alike(high, low),
    }
    regs["$4"] = regs["$3"]
    with np.errstate(over="ignore"):
        for line in re.findall(r"[^;{}\n]+(?:\{[^}]*\})?[^;{}\n]*;", hidden_kernels.BENT):
            name, _, rest = line.strip(" ;\n").partition(" ")
            if name == ".reg":
                continue
            to, *given = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
            found = run[name](*map(value, given))
            regs.update(dict.fromkeys(re.findall(r"[$\w]+", to), found))
    return regs["$0"], regs["$1"].view(np.uint16) & 0xFF


def exact(numbers):
    x = torch.from_numpy(numbers).double().requires_grad_()
    y = torch.nn.functional.gelu(x)
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def test_the_assembler_computes_gelu_and_its_slope_in_a_byte():
    numbers = np.linspace(-9, 9, 20_001)
    gelu, byte = assembled(numbers)
    y, slope = exact(numbers)
    assert np.abs(gelu - y).max() < 3e-3 and np.sqrt(np.mean((gelu - y) ** 2) / np.mean(y**2)) < 3e-4
    off = np.abs((byte - hidden_kernels.ZERO) / hidden_kernels.STEPS - slope)
    assert off.max() < 0.0055 and off.mean() < 0.0015


def test_numbers_beyond_float16_go_through_gelu_as_they_are_or_not_at_all():
    gelu, byte = assembled(np.array([1e38, 7e4, -7e4, -1e38, 0.0]))
    assert gelu.tolist() == np.float32([1e38, 7e4, 0, 0, 0]).tolist()
    assert np.abs((byte - hidden_kernels.ZERO) / hidden_kernels.STEPS - [1, 1, 0, 0, 0.5]).max() < 0.006


@pytest.mark.parametrize(("kind", "groups", "rows"), [("lowered", 2, 128), ("product", 3, 64), ("summed", 3, 64)])
@pytest.mark.parametrize(("inputs", "rank"), [(64, 16), (384, 16), (384, 32), (320, 64)])
def test_what_a_processor_keeps_fits_in_its_memory(kind, groups, rows, inputs, rank):
    stages = resident._stages(kind, inputs, rank)
    weight, written, pairs = 128 * inputs, groups * rows * 64, groups * 128 * rank
    own = stages * rank * 64 if kind == "product" else rank * 64
    barriers = 8 * (1 + 2 * stages + 3 * groups)
    assert stages >= 3
    assert 2 * (weight + written + pairs + stages * rows * 64 + own) + barriers <= SHARED


@pytest.mark.parametrize("kind", resident.GROUPS)
def test_threads_have_no_more_registers_than_a_processor(kind):
    groups = resident.GROUPS[kind]
    threads = 128 * (groups.groups + 1)  # one warp that brings has a warpgroup to itself
    assert groups.all * threads <= 65_536 and groups.all % 8 == groups.registers % 8 == 0
    assert (
        128 * ((groups.groups - 1) * groups.registers + resident.FEW) + 128 * groups.registers <= groups.all * threads
    )


def test_a_weight_that_leaves_no_room_is_for_other_kernels(monkeypatch):
    monkeypatch.setattr(resident, "gluon", object())
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(resident, "processors", lambda _: 132)

    def takes(outputs, inputs, rank=0, dtype=torch.bfloat16):
        rows = torch.empty(2, 5, inputs, dtype=dtype)
        return resident.usable(rows, torch.empty(outputs, inputs, dtype=dtype), rank)

    assert takes(1152, 384, 8) and takes(1536, 384) and takes(128, 64)
    assert not takes(1152, 768) and not takes(1152, 384, 128)  # no room for the pieces of x
    assert not takes(1100, 384) and not takes(1152, 376) and not takes(128 * 133, 64)
    assert not takes(1152, 384, dtype=torch.float16) and not takes(1152, 384, dtype=torch.float32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (10, 0))
    assert not takes(1152, 384)


@pytest.mark.parametrize(("outputs", "processors"), [(384, 132), (1152, 132), (1536, 132), (128, 114)])
def test_a_trial_has_several_tiles_for_every_processor(monkeypatch, outputs, processors):
    monkeypatch.setattr(resident, "processors", lambda _: processors)
    rows = resident.several(torch.empty(0), outputs)
    tiles, programs = 2 * -(-rows // 128), processors // (outputs // 128)
    assert tiles // programs >= 5 and rows % 128
    asked = []
    monkeypatch.setattr(trials, "draw", lambda x, *shape: asked.append(shape) or torch.ones(shape))
    monkeypatch.setattr(trials, "product", lambda x, w, b, a, v, scale, cut: (x @ w.mT, x @ a.mT))
    monkeypatch.setattr(trials, "summed", lambda x, w, u, v, cut: x @ w.mT)
    trials._product_trial(torch.empty(0), torch.empty(outputs, 8), 2, RESIDENT)
    trials._product_trial(torch.empty(0), torch.empty(outputs, 8), 2, beside.CUTS[0])
    assert [shape for shape in asked if shape[1:] in ((rows, 8), (trials.FEW, 8))] == [(2, rows, 8), (2, trials.FEW, 8)]


def test_nothing_is_resident_on_a_cpu():
    assert not resident.usable(torch.empty(2, 5, 384, dtype=torch.bfloat16), torch.empty(128, 384))


def test_the_cut_decides_who_computes(monkeypatch):
    for name in ("product", "summed", "lowered"):
        monkeypatch.setattr(resident, name, lambda *given, name=name: (name, len(given)))
    x = torch.empty(0)
    assert trials.product(x, x, None, x, x, 2.0, RESIDENT) == ("product", 6)
    assert trials.summed(x, x, x, x, RESIDENT) == ("summed", 4)
    assert hidden._backward(x, x, x, RESIDENT) == ("lowered", 3)
    assert RESIDENT in beside.ALL and RESIDENT in hidden.ALL["lowered"] and RESIDENT not in hidden.ALL["raised"]
