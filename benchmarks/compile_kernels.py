"""Compiles every kernel of the package for a GPU, on a machine that has none: does it compile, what does it take?

The benchmarks' workloads run on a GPU that is not there (`pretend.py`), at full size. Every launch that Triton would
compile is noted, with the types, constants, hints and options that the real call gives, and then compiled. For each it
prints processor seconds, registers, bytes that are spilled, and shared memory; for each workload also what its first
round compiles: side by side (a rehearsal notes them before), or one after the other, each while the work waits for it.
Triton 3.6 also has a C compiler make a launcher for every new list of argument types; those are counted, and timed.

    python benchmarks/compile_kernels.py [--only fedavg-20-tf32 lora-bf16 ...] [--launchers] [--out figures.json]
    python benchmarks/compile_kernels.py --once

`--once` compiles each kernel for one purpose alone, of few workloads that launch them all. The exit status is 1 where a
kernel does not compile; with `--once` also where no workload launches one. Needs Triton, and no GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import federated
import lora
import mbsl
import pretend
import recording
import testtime
import torch
import triton
from federated import Round, dealt, task_of
from harness import Context, Record, environment
from pretend import DEVICE, Launch, Noted, moved, on_it, there
from torch import nn
from torch.func import vmap
from workloads import WORKLOADS, fedthe, femnist, pfl, resnet, uneven

import acclimate
from acclimate import adapters, store
from acclimate.adapters import MEMO, T3A, BNStats, Tent
from acclimate.backends import Vmap
from acclimate.backends.vmap.capture import tf32
from acclimate.core import Personalizer, Protocol, Work, Worker, fit
from acclimate.methods import FedAvg, FedTTA
from acclimate.models import CNN, Pretrained, ViT

ROUNDS = ("fedavg-20", "perfedavg-20", "flute-femnist", "zipf", "pfl-cifar10", "resnet20-gn", "resnet20-bn", "resnet18")
"""Workloads of benchmarks/gpu.py whose rounds are noted, in every precision."""
ENOUGH = (
    "perfedavg-20-tf32",
    "flute-femnist-tf32",
    "resnet20-bn-bf16",
    "separable-tf32",
    "vit-bf16",
    "lora-bf16",
    "memo",
)
"""Work that launches every kernel there is."""


class _Found(Exception):
    """The round that a benchmark is about to measure."""

    def __init__(self, round: Round, *_: Any, **__: Any) -> None:
        super().__init__()
        self.round = round


def round_of(name: str) -> Round:
    """The round of a benchmark at full size, whose images have no content."""

    def found(*given: Any, **more: Any) -> None:
        raise _Found(*given, **more)

    def images(count: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> Any:
        return torch.empty(count, *shape, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64)

    with ExitStack() as stack:
        for module in (fedthe, femnist, pfl, resnet, uneven):
            stack.enter_context(mock.patch.object(module, "measure", found))
        for owner in (federated, pfl):
            stack.enter_context(mock.patch.object(owner, "images", images))
        try:
            WORKLOADS[name](Context(torch.device("cpu"), "full"), {})
        except _Found as reached:
            return reached.round
    raise LookupError(f"benchmark {name} measures no round")


def train(round: Round, precision: Any) -> None:
    """One round, as far as it goes without numbers."""
    data = there(round.data)
    with tf32(precision == "tf32"):
        engine = on_it(Vmap(precision=precision).open(round.worker, data, DEVICE))
        engine._mine = type(engine._mine)(moved(engine._mine.tree)) if hasattr(engine._mine, "tree") else engine._mine
        with suppress(NotImplementedError):  # what a server asks of its clients' numbers
            fit.one_round(round.worker, engine, moved(round.server()), round.cohort, 0)


def recorded_round() -> Round:
    """The round of benchmarks/recording.py."""
    method = FedAvg(work=Work(epochs=875 // recording.BATCHES, batch=recording.BATCH))
    return Round.of(task_of(CNN()), method, dealt([recording.BATCH * recording.BATCHES] * 20))


def separable() -> Round:
    """A round of a network of separable convolutions, with all sizes and steps of depthwise kernels."""

    def block(a: int, b: int, kernel: int, step: int) -> list[nn.Module]:
        deep = nn.Conv2d(a, a, kernel, step, kernel // 2, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU6()
        return [*deep, nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)]

    sizes = ((32, 48, 3, 1), (48, 96, 3, 2), (96, 96, 5, 1), (96, 192, 5, 2))
    layers = [layer for each in sizes for layer in block(*each)]
    stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()
    model = Pretrained(nn.Sequential(*stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    return Round.of(task_of(model), FedAvg(work=Work(epochs=1, batch=32)), dealt([64] * 20))


def _cases() -> list[tuple[Any, Any, Any, int]]:
    """Models, methods and adapters per batch and per sample, as benchmarks/workloads/adapters.py has them, and one
    more model."""
    plain = FedAvg(work=Work(epochs=1, batch=8))
    cases = [(CNN(norm="batch"), plain, adapter, 32) for adapter in (Tent(), BNStats(), T3A())]
    cases.append((CNN(norm="batch"), FedTTA(), adapters.FedTTA(), 32))  # statistics of samples that count
    cases += [(CNN(), method, adapter, 1) for method, adapter in testtime.CASES.values()]
    return [*cases, (CNN(norm="group"), plain, MEMO(chunk=32), 1)]


def serve(cases: Iterable[tuple[Any, Any, Any, int]]) -> None:
    """Streams of 20 clients with 320 samples each."""
    for model, method, adapter, batch in cases:
        test, worker = dealt([320] * 20), Worker(task_of(model), method)
        engine = on_it(Vmap().open(worker, there(test), DEVICE))
        server = method.init_server(worker.task, 20, worker.key("init", like=test.n))
        down = moved(method.download(worker.task, server))
        with suppress(NotImplementedError):  # metrics that come back to the host
            models = engine.deploy(down, engine.mine, Personalizer())
            until = 320 if batch == 1 else None
            engine.serve(models, there(test), adapter, Protocol(batch, until=until))


def adapt(dtype: torch.dtype | None) -> None:
    """The step of benchmarks/lora.py."""
    size = lora.SIZES["full"]
    task = lora.task_of(size, dtype)
    params = moved(lora.federation(task, {**size, "clients": 1, "batch": 1}, torch.device("cpu"))[0])
    params = {n: p.expand(size["clients"], *p.shape[1:]).clone() for n, p in params.items()}
    x = torch.empty(size["clients"], size["batch"], *task.shape, device=DEVICE)
    y = torch.empty(size["clients"], size["batch"], dtype=torch.int64, device=DEVICE)
    step = vmap(lora.step_of(task))
    on_it_runs(lambda: step(params, x, y))


def on_it_runs(work: Callable[[], Any]) -> None:
    """Run this as work is run before a recording."""
    pretend._Warmed(False, False).run(("work",), work, ())


def works() -> dict[str, Callable[[], None]]:
    """What is noted, by name."""
    found: dict[str, Callable[[], None]] = {"recording": lambda: train(recorded_round(), "tf32")}
    for name in ROUNDS:
        for precision in ("tf32", "fp32", "bf16"):
            found[f"{name}-{precision}"] = lambda n=name, p=precision: train(round_of(n), p)
    vit = task_of(ViT(patch=4, width=192, depth=2, heads=3))
    whole = Round.of(vit, FedAvg(work=Work(epochs=1, batch=32)), dealt([64] * 20))
    found |= {f"vit-{p}": lambda p=p: train(whole, p) for p in ("tf32", "bf16")}
    found |= {f"separable-{p}": lambda p=p: train(separable(), p) for p in ("tf32", "bf16")}
    found |= {"lora-bf16": lambda: adapt(torch.bfloat16), "lora-fp32": lambda: adapt(None)}
    found |= {"mbsl": mbsl.taught_there} if find_spec("efficientnet_lite_pytorch") else {}
    return found | {"adapters": lambda: serve(_cases()), "memo": lambda: serve(_cases()[-1:])}


def noted_for(names: Iterable[str]) -> dict[str, Noted]:
    """What the first run of each of these in a fresh process compiles."""
    found, known = {}, works()
    for name in names:
        with pretend.pretended() as noted:
            known[name]()
        found[name] = noted
    return found


def cpu_seconds() -> float:
    """Processor time of this process and of those that it started and waited for."""
    return sum(os.times()[:4])


def compiled(launch: Launch) -> Record:
    """What compiling takes, and what the kernel takes of a processor; or why it does not compile."""
    began = cpu_seconds()
    try:
        made = launch.kernel.preload(launch.purpose)
    except Exception as reason:  # whatever a compiler says
        told = (str(reason).strip() or type(reason).__name__).splitlines()
        return {"compiles": False, "seconds": cpu_seconds() - began, "reason": told[-1][:200]}
    took = cpu_seconds() - began
    return {"compiles": True, "seconds": took, **resources(made.asm["cubin"]), "shared": made.metadata.shared}


def resources(cubin: bytes) -> Record:
    """Registers of a thread, bytes of its stack, and how many instructions spill to it or read from it again."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        ask = lambda what: subprocess.run([tool, what, file.name], capture_output=True, text=True, check=True).stdout  # noqa: E731
        registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", ask("-res-usage"))[0])
        code = ask("-sass") if stack else ""
    return {
        "registers": registers,
        "stack": stack,
        "spills": len(re.findall(r"\bSTL", code)),
        "reloads": len(re.findall(r"\bLDL", code)),
    }


def told(launch: Launch) -> Record:
    """A launch as it is written down: constants and options, and which arguments are known to be multiples of 16."""
    about, names = json.loads(launch.purpose), launch.kernel.arg_names
    keys = ["/".join([names[k[0]], *map(str, k[1:])]) for k in about["constant_keys"]]
    types = {k: v for k, v in about["signature"].items() if v != "constexpr"}
    options = {k: about["options"][k] for k in ("num_warps", "num_stages", "maxnreg")}
    constants = dict(zip(keys, about["constant_vals"], strict=True))
    aligned = ["/".join([names[k[0]], *map(str, k[1:])]) for k in about["attrs_keys"]]
    return {"kernel": launch.kernel.__name__, "types": types, "constants": constants, "aligned": aligned, **options}


def launcher_of(launch: Launch) -> str | None:
    """The C code that Triton compiles to launch this with; None where its version does without."""
    from triton.backends.nvidia import driver

    if not hasattr(driver, "make_launcher"):
        return None
    signature = {k: _tuples(v) for k, v in json.loads(launch.purpose)["signature"].items()}
    descriptors = sum(str(kind).startswith("tensordesc") for kind in signature.values())
    code: str = driver.make_launcher({}, signature, [{}] * descriptors)
    return code


def _tuples(kind: Any) -> Any:
    return tuple(map(_tuples, kind)) if isinstance(kind, list) else kind


def launcher_seconds(codes: Iterable[str]) -> list[float]:
    """Processor seconds of the C compiler for each of these, with the flags that Triton gives it."""
    import sysconfig

    from triton.backends.nvidia import driver

    places = [f"-I{path}" for path in (*driver.include_dirs, sysconfig.get_paths()["include"])]
    took = []
    with tempfile.TemporaryDirectory() as folder:
        for code in codes:
            (Path(folder) / "launcher.c").write_text(code)
            began = cpu_seconds()
            command = ["cc", "launcher.c", "-O3", "-fPIC", "-Wno-psabi", "-c", *places]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            took.append(cpu_seconds() - began)
    return took


def launched_kernels() -> set[str]:
    """The names of all kernels that the package launches: `kernel[grid](...)` in its source."""
    found: set[str] = set()
    for path in Path(acclimate.__file__).parent.rglob("*.py"):
        calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        named = (f.value for f in calls if isinstance(f, ast.Subscript))
        found |= {n.id for n in named if isinstance(n, ast.Name)}
    return found & {name.rpartition(".")[2] for name in pretend.kernels()}


def summary(noted: Noted, figures: dict[Any, Record], with_launchers: bool) -> Record:
    """What a workload compiles: kernels, and processor seconds, side by side and one after the other."""
    parts = {"side_by_side": True, "one_by_one": False}
    found: Record = {}
    for name, together in parts.items():
        keys = [key for key, launch in noted.items() if launch.together is together]
        seconds = sum(figures[key]["seconds"] for key in keys if key in figures)
        found[name] = {"kernels": len(keys), "seconds": seconds}
    codes = {code for launch in noted.values() if (code := launcher_of(launch)) is not None}
    found["launchers"] = {"count": len(codes)}
    found["measured"] = {"choices": noted.choices, "ways": noted.timed}
    if with_launchers:
        found["launchers"]["seconds"] = sum(launcher_seconds(sorted(codes)))
    return found


def compile_all(noted: dict[str, Noted], once: bool) -> dict[Any, Record]:
    """Figures of every launch; with `once`, of the first of every kernel."""
    figures: dict[Any, Record] = {}
    seen: Counter[str] = Counter()
    launches = {key: launch for some in noted.values() for key, launch in some.items()}
    with tempfile.TemporaryDirectory() as folder, _compiling(folder):
        for number, (key, launch) in enumerate(launches.items()):
            if once and seen[launch.kernel.__name__]:
                continue
            seen[launch.kernel.__name__] += 1
            if not number:
                compiled(launch)  # what Triton does once in a process is no kernel's
            figures[key] = {**told(launch), **compiled(launch)}
            print(line(figures[key]), flush=True)
    return figures


def _compiling(folder: str) -> ExitStack:
    """Triton compiles for the pretended GPU, always, into this folder."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(triton.knobs.cache, "dir", folder))
    stack.enter_context(mock.patch.object(triton.knobs.compilation, "always_compile", True))
    stack.enter_context(mock.patch.object(triton.runtime.driver, "_active", pretend._driver(90)))
    return stack


def line(figure: Record) -> str:
    """A kernel in one line."""
    if not figure["compiles"]:
        return f"{figure['kernel']:18s} does not compile: {figure['reason']}"
    spilled = f", {figure['spills']} spills, {figure['reloads']} reloads" if figure["stack"] else ""
    taken = f"{figure['registers']:3d} registers, {figure['shared']:6d} B shared{spilled}"
    return f"{figure['kernel']:18s} {figure['seconds']:5.2f} s, {figure['num_warps']} warps, {taken}"


def main() -> None:
    """Note, compile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(works())}")
    parser.add_argument("--once", action="store_true", help="compile each kernel for one purpose alone")
    parser.add_argument("--launchers", action="store_true", help="time the C compiler for launchers, too")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    chosen = given.only or (ENOUGH if given.once else tuple(works()))
    if unknown := set(chosen) - set(works()):
        raise SystemExit(f"--only {' '.join(sorted(unknown))}: there are {', '.join(works())}")
    noted = noted_for(chosen)
    figures = compile_all(noted, given.once)
    summaries = {name: summary(some, figures, given.launchers) for name, some in noted.items()}
    for name, found in summaries.items():
        counts = ", ".join(f"{part}: " + ", ".join(f"{v:.3g} {k}" for k, v in p.items()) for part, p in found.items())
        print(f"{name:20s} {counts}")
    failed = [f for f in figures.values() if not f["compiles"]]
    missing = launched_kernels() - {f["kernel"] for f in figures.values()} if given.once else set()
    print(f"{len(figures)} kernels, {sum(f['seconds'] for f in figures.values()):.1f} s, {len(failed)} do not compile")
    if missing:
        print(f"no workload launches {', '.join(sorted(missing))}")
    if given.out:
        report = {"schema": "acclimate.compile_kernels/1", **environment(torch.device("cpu"))}
        report |= {
            "triton": triton.__version__,
            "architecture": "sm_90",
            "workloads": summaries,
            "kernels": list(figures.values()),
        }
        store.write(given.out, json.dumps(report, indent=1) + "\n")
    if failed or missing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
