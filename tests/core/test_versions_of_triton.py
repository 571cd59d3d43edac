"""With which Triton there are kernels, and what is said where there are none."""

import logging
import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from acclimate.backends.vmap import warming
from acclimate.cli import describe
from acclimate.core.nn import available

ALL = """
import importlib, pkgutil
from acclimate.core import nn
from acclimate.core.nn import available
for part in pkgutil.iter_modules(nn.__path__):
    importlib.import_module("acclimate.core.nn." + part.name)
print(available.VERSION, available.AVAILABLE, available.said().partition(":")[0])
"""


def test_an_older_triton_is_left_alone(tmp_path):
    """Every module can be imported with a Triton that has nothing but its version."""
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text('__version__ = "3.5.1"\n')
    (tmp_path / "triton" / "language.py").write_text("")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    found = subprocess.run(
        [sys.executable, "-c", ALL], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (found.stdout, found.returncode) == ("(3, 5) False Triton 3.5.1\n", 0), found.stderr


@pytest.mark.parametrize(
    ("version", "known", "there"),
    [
        (None, (0, 0), False), ("3.5.1", (3, 5), False), ("3.6.0", (3, 6), True), ("3.10.0+gitabc", (3, 10), True),
        ("4.0.0", (4, 0), True),
    ],
)  # fmt: skip
def test_there_are_kernels_since_triton_3_6(monkeypatch, version, known, there):
    monkeypatch.setitem(sys.modules, "triton", version and SimpleNamespace(__version__=version))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "")  # so that it is afterwards what it was before
    monkeypatch.delenv("TRITON_DEFAULT_FP_FUSION")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = runpy.run_path(available.__file__)
    assert (found["VERSION"], found["AVAILABLE"], found["INTERPRETED"]) == (known, there, there)
    assert os.environ.get("TRITON_DEFAULT_FP_FUSION") == ("1" if there else None)


def test_what_the_user_says_of_fused_sums_is_kept(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.9.0"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    runpy.run_path(available.__file__)
    assert os.environ["TRITON_DEFAULT_FP_FUSION"] == "0"


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that torch sees, and no kernels for it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(available, "AVAILABLE", False)
    monkeypatch.setattr(available, "triton", SimpleNamespace(__version__="3.5.1"))


def test_the_doctor_says_what_lacks(monkeypatch, gpu):
    def found():
        return {what: rest for what, *rest in describe.findings()}["kernels"]

    ok, says = found()
    assert not ok and says.startswith("Triton 3.5.1: all works without kernels") and "torch 2.10 and newer" in says
    monkeypatch.setattr(available, "triton", None)
    assert found()[1].startswith("no Triton: ")
    monkeypatch.setattr(available, "triton", SimpleNamespace(__version__="3.9.0"))
    monkeypatch.setattr(available, "AVAILABLE", True)
    assert found() == [True, "Triton 3.9.0"]


def test_there_is_one_warning_where_kernels_lack(monkeypatch, gpu, caplog):
    monkeypatch.setattr(warming.proven, "expect", lambda device: None)
    monkeypatch.setattr(warming.rehearsal, "prepare", lambda: None)
    warming._say_what_lacks.cache_clear()
    with caplog.at_level(logging.WARNING, "acclimate"):
        for device in ("cpu", "cuda", "cuda:1"):
            warming.expect(torch.device(device))
    warming._say_what_lacks.cache_clear()
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["kernels for the GPU"]
    monkeypatch.setattr(available, "AVAILABLE", True)
    with caplog.at_level(logging.WARNING, "acclimate"):
        warming.expect(torch.device("cuda"))
    warming._say_what_lacks.cache_clear()
    assert len(caplog.records) == 1
