"""Every kernel of the package compiles for a GPU, also on a machine that has none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from acclimate.core.nn import available

ROOT = Path(__file__).parents[1]


def run(*command: str, limit: float, **environment: str):
    """Run Python beside the benchmarks, with Triton's compiler."""
    paths = [str(ROOT / "src"), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    given = inherited | {"PYTHONPATH": ":".join(paths)} | environment
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=given, capture_output=True, text=True, timeout=limit
    )


needs_triton = pytest.mark.skipif(
    not available.AVAILABLE, reason="needs Triton 3.6 or newer, which CUDA builds of torch have"
)


@needs_triton
@pytest.mark.timeout(1800)
def test_every_kernel_compiles_for_a_gpu():
    """What Triton's interpreter takes may still not compile; this compiles all kernels, as workloads launch them."""
    done = run(str(ROOT / "benchmarks" / "compile_kernels.py"), "--once", limit=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not compile" not in done.stdout and "no workload launches" not in done.stdout


IN_CHILDREN = """
import json, os, sys
from pathlib import Path
import pretend, torch, triton
from acclimate.core.nn import forked, kernels, rehearsal

with pretend.pretended() as noted:
    for folds in ((3,), (3, 5), (3, 5, 7)):
        kernels.mix(torch.empty(1000, dtype=torch.int64, device="meta"), 11, 13, folds)
parent, folder, asked = os.getpid(), Path(triton.knobs.cache.dir), []

def device():
    asked.append(os.getpid() == parent)
    (folder / f"asked by {'parent' if os.getpid() == parent else 'child'}").touch()
    return 0

def launcher(src, metadata):
    (folder / f"launcher by {'parent' if os.getpid() == parent else 'child'}").touch()

active = pretend._driver(90)
active.get_current_device, active.launcher_cls = device, launcher
triton.runtime.driver.set_active(active)
forked.cores = lambda: 2
before = triton.runtime.driver.active.get_current_target()
works = {key: (launch.kernel, launch.purpose) for key, launch in noted.items()}
first = rehearsal._compile(works)
there = {kernel.__class__.__name__ for kernel in kernels._mix.device_caches[0][0].values()}
kernels._mix.device_caches.clear()
again = rehearsal._compile(works)
files = sorted(path.name for path in folder.iterdir() if path.is_file())
cubins = len(list(folder.rglob("*.cubin")))
print(json.dumps([first, sorted(there), again, files, cubins]))
"""


@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="child processes are for Linux")
@pytest.mark.timeout(300)
def test_children_compile_into_tritons_cache_and_ask_no_device(tmp_path):
    """What they compiled is loaded by the process that forked them, and by another rehearsal."""
    done = run(
        "-W", "error::DeprecationWarning:acclimate", "-c", IN_CHILDREN, limit=280, TRITON_CACHE_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    first, there, again, files, cubins = json.loads(done.stdout.splitlines()[-1])
    assert (first, again, cubins, there) == (3, 0, 3, ["CompiledKernel"])
    assert files == ["asked by parent", "launcher by child", "launcher by parent"]


WHILE_NOTED = """
import json, os, time
from pathlib import Path
import pretend, torch, triton
from acclimate.core.nn import forked, kernels, rehearsal

parent, folder, real = os.getpid(), Path(triton.knobs.cache.dir), (rehearsal._compile, rehearsal._counting)

def by(what):
    (folder / f"{what} by {'parent' if os.getpid() == parent else 'child'}").touch()

def cubins():
    return sorted(folder.rglob("*.cubin"))

def work():
    for folds in ((3,), (3, 5), (3, 5, 7)):
        kernels.mix(torch.empty(1000, dtype=torch.int64, device="meta"), 11, 13, folds)
        until = time.monotonic() + 100
        while not cubins() and time.monotonic() < until:
            time.sleep(0.01)

forked.cores = lambda: 2
with pretend.pretended():
    rehearsal._compile, rehearsal._counting = real
    triton.knobs.runtime.jit_cache_hook = None
    active = triton.runtime.driver.active
    active.get_current_device = lambda: by("asked") or 0
    active.launcher_cls = lambda src, metadata: by("launcher")
    before = []
    found = rehearsal.rehearse(work, lambda: before.extend(cubins()))
    there = {kernel.__class__.__name__ for kernel in kernels._mix.device_caches[0][0].values()}
print(json.dumps([found, len(before) > 0, len(cubins()), sorted(there), sorted(p.name for p in folder.glob("* by *"))]))
"""


@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="child processes are for Linux")
@pytest.mark.timeout(300)
def test_children_compile_while_a_rehearsal_still_notes_kernels(tmp_path):
    done = run(
        "-W", "error::DeprecationWarning:acclimate", "-c", WHILE_NOTED, limit=280, TRITON_CACHE_DIR=str(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    found, early, cubins, there, files = json.loads(done.stdout.splitlines()[-1])
    assert (found, early, cubins, there) == (3, True, 3, ["CompiledKernel"])
    assert files == ["asked by parent", "launcher by child", "launcher by parent"]


HASTY = """
import subprocess, tempfile
from pathlib import Path
import triton
from acclimate.core.nn import rehearsal
from triton.runtime import build

told = []
subprocess.check_call = lambda command, **_: told.append([part for part in command if part.startswith("-O")])
with tempfile.TemporaryDirectory() as folder:
    for around in (rehearsal._hasty(), rehearsal._tolerant()):
        with around:
            build._build("some", f"{folder}/some.c", folder, [], [], [], [])
print(told)
"""


@needs_triton
def test_tritons_own_c_code_is_compiled_in_haste():
    """Where its compiler takes flags, as that of Triton 3.6 does, the last of them says how much is optimised."""
    done = run("-c", HASTY, limit=280, CC="cc")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([["-O3", "-O0"], ["-O3"]])


ANY_NUMBER = """
import pretend, torch
from acclimate.core.nn import kernels, soundness

with pretend.pretended() as noted:
    for number in (1, 7, 32):
        kernels.mix(torch.empty(number, dtype=torch.int64, device="meta"), 11, 13, (3,))
        soundness._found([torch.empty(number, 40, device="meta")])
print(sorted(launch.kernel.__name__ for launch in noted.values()))
"""


@needs_triton
def test_kernels_for_any_number_of_keys_and_clients_are_compiled_once():
    """Not anew where there is one of them, or a multiple of 16."""
    done = run("-c", ANY_NUMBER, limit=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(["_mix", "_unsound"])


ANY_SIZE = """
import pretend, torch
from acclimate.core.nn import point_kernels
from acclimate.core.nn.cutting import Layer, Tile

with pretend.pretended() as noted:
    for i, o, side in ((16, 96, 8), (48, 160, 4), (112, 672, 1)):
        x, dy = (torch.empty(1, 2, c, side, side, device="meta") for c in (i, o))
        w, layer = torch.empty(1, o, i, 1, 1, device="meta"), Layer(i, side, side, o, side, side, 1, 1, 1, 0, 0)
        for kind, a, b in (("convolve", x, w), ("spread", dy, w), ("correlate", x, dy)):
            getattr(point_kernels, kind)(a, b, layer, Tile(128, 64, 16, 4, 3), "tf32")
print(sorted(launch.kernel.__name__ for launch in noted.values()))
"""


@needs_triton
def test_kernels_for_single_pixels_are_compiled_once_for_layers_of_any_size():
    done = run("-c", ANY_SIZE, limit=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(["_add_up", "_point_sums", "_points"])


ANY_NORM = """
import pretend, torch
from acclimate.core.nn import norm_kernels

with pretend.pretended() as noted:
    for channels, places in ((96, 1024), (1152, 256), (32, 4096)):
        x = torch.empty(1, 4, channels, places, device="meta")
        weight = torch.empty(1, channels, device="meta")
        mean, var = norm_kernels.batch_moments(x)
        y = norm_kernels.batch_scale(x, (weight, weight, mean, var), None, 1e-5, True)
        norm_kernels.batch_back(y, x, y, (weight, mean, var), 1e-5, True, True)
print(sorted(launch.kernel.__name__ for launch in noted.values()))
"""


@needs_triton
def test_kernels_of_batch_norm_are_compiled_once_for_layers_of_many_sizes():
    done = run("-c", ANY_NORM, limit=280)
    assert done.returncode == 0, done.stderr
    expected = ["_moments", "_scale", "_slopes", "_together", "_together", "_unscale"]  # of means, and of sums
    assert done.stdout.splitlines()[-1] == str(expected)


PASSES = """
import compile_kernels, pretend
from acclimate.backends.vmap import capture
from acclimate.core.nn import rehearsal

passes = []
for owner, name in ((rehearsal, "rehearse"), (capture.Captured, "_warm"), (pretend, "_record")):
    real = getattr(owner, name)
    setattr(owner, name, lambda *given, real=real, name=name: (passes.append(name), real(*given))[1])
with pretend.pretended():
    capture.Captured.warmed = True
    compile_kernels.train(compile_kernels.separable(), "tf32")
print(passes)
"""


@needs_triton
def test_a_network_of_depthwise_convolutions_is_recorded_right_after_its_rehearsal():
    """It is tried while it is recorded, so that no run need come before; trials of other kernels are before all."""
    done = run("-c", PASSES, limit=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(["rehearse", "rehearse", "_record"])


DRIVER = """
from threading import Event
import torch, triton
from triton.backends.nvidia import driver
from acclimate.core.nn import rehearsal

go = Event()

class Utils:
    def __init__(self):
        assert go.wait(60)
        self.load_binary = "loads"

driver.CudaUtils = Utils
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
torch.cuda.get_device_capability = lambda *_: (9, 0)
rehearsal.prepare()
first = triton.runtime.driver.active
print(type(first) is driver.CudaDriver, first.get_current_device(), first.get_current_target().arch)
go.set()
print(first.utils.load_binary, first.launcher_cls is driver.CudaLauncher)
print(type(triton.runtime.driver.active) is driver.CudaDriver)
"""


@needs_triton
def test_tritons_own_driver_knows_its_device_before_its_c_code_is_compiled():
    done = run("-c", DRIVER, limit=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["False 0 90", "loads True", "True"]
