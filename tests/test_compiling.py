"""Every kernel of the package compiles for a GPU, also on a machine that has none."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton, which CUDA builds of torch have")
@pytest.mark.timeout(1800)
def test_every_kernel_compiles_for_a_gpu():
    """What Triton's interpreter takes may still not compile; this compiles all kernels, as workloads launch them."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": ":".join(paths)}
    command = [sys.executable, str(ROOT / "benchmarks" / "compile_kernels.py"), "--once"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not compile" not in done.stdout and "no workload launches" not in done.stdout
