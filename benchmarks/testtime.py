"""Test-time adaptation, vectorised over samples and clients, against a plain loop: one client, one sample at a time.

Both ways call the same records on the same samples; the loop serves batches of one with the Serial backend, which is
how released code does it, with torch's own operations (and, for comparison, with our kernels). Losses are compared too:
an AugMix view of the kernel may differ from torch's by a rounded level.

    python benchmarks/testtime.py [--quick] [--out figures.json]
    python benchmarks/testtime.py --quick --cpu-time    one thread and its CPU time, which other work changes little
    python benchmarks/testtime.py --quick --cores 2     all that two cores give: the loop's threads, our processes
    python benchmarks/testtime.py --every [--adapters tent,sar] [--precision fp32] [--out figures.json]

On a CPU the steps of an adapter that tunes on views are timed by themselves, too: forward and backward passes of plain
PyTorch over so many images, and nothing else. No way of serving samples on the same cores takes less, unless it has
quicker convolutions. `at the ceiling` is what their operations would take at the rate of a large matrix product.

`--every` compares all adapters of the catalogue with a loop over clients: both ways serve the same batches of 32. Its
rows also say how far the loop is from itself where its model differs by a rounding (`loop_differs_from_itself`), which
tells what adaptation makes of one, and how far the last serving is from the first (`replay_differs_from_first`), which
must be zero. A difference of the two ways that is far above the first is no rounding: look for its cause.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from harness import environment, parser_of, write
from limits import product_rate, work_of

from acclimate.adapters import MEMO, THE, TTT, THEPlus
from acclimate.backends import Auto, Serial, Vmap
from acclimate.backends.vmap.capture import tf32
from acclimate.core import (
    Adapter,
    Backend,
    Engine,
    Method,
    Personalizer,
    Protocol,
    Shards,
    Task,
    Tree,
    Work,
    Worker,
    fit,
    tree,
)
from acclimate.core.nn import kernels, lone, products
from acclimate.experiment import catalogue
from acclimate.methods import FedTHE, FedTTT
from acclimate.models import CNN
from live import CASES as CLIENT_CASES
from live import Case

WORK = Work(epochs=1, batch=8)
CLOCK = [time.perf_counter]
"""What seconds are read from."""
CASES: dict[str, tuple[Method, Adapter]] = {
    "THE": (FedTHE(work=WORK, head_work=WORK), THE()),
    "MEMO": (FedTHE(work=WORK, head_work=WORK), MEMO(chunk=32)),
    "THEPlus": (FedTHE(work=WORK, head_work=WORK), THEPlus(chunk=32)),
    "TTT, episodic": (FedTTT(work=WORK), TTT(online=False, chunk=32)),
}


def federation(clients: int, samples: int, seed: int) -> Shards:
    """Images of a class pattern in noise, dealt evenly."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (clients * samples,), generator=g)
    pattern = torch.rand(10, 3, 32, 32, generator=torch.Generator().manual_seed(9)) * 128
    x = (torch.rand(len(y), 3, 32, 32, generator=g) * 127 + pattern[y]).to(torch.uint8)
    return Shards.of(x, y, list(torch.arange(len(y)).view(clients, samples)))


def served(engine: Engine, models: Any, test: Shards, adapter: Adapter, batch: int) -> tuple[torch.Tensor, float]:
    """Mean loss per client, and the seconds it took."""
    _wait()
    began = CLOCK[0]()
    # an adapter that does not care gets larger batches, unless the protocol says how long to learn
    loss = engine.serve(models, test, adapter, Protocol(batch, until=test.longest if batch == 1 else None))["loss"]
    _wait()
    return loss, CLOCK[0]() - began


def looping(engine: Engine, models: Any, few: Shards, adapter: Adapter) -> tuple[torch.Tensor, float]:
    """`served` one sample at a time, after two samples that let libraries initialise."""
    served(engine, models, Shards.of(few.x, few.y, [few.own(0)[:2]]), adapter, 1)
    return served(engine, models, few, adapter, 1)


@contextmanager
def plain() -> Iterator[None]:
    """torch's own operations and none of our kernels, as in code that anybody would write."""
    before = kernels.AVAILABLE, products.LARGEST, lone.ALONE
    kernels.AVAILABLE, products.LARGEST, lone.ALONE = False, 0, False
    try:
        yield
    finally:
        kernels.AVAILABLE, products.LARGEST, lone.ALONE = before


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def nudged(model: Tree, device: torch.device) -> Tree:
    """A model whose numbers differ by at most a rounding of the arithmetic that convolutions have on this device."""
    by = 2.0**-11 if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else 2.0**-24
    g = torch.Generator().manual_seed(0)

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + by * (2.0 * torch.rand(x.shape, generator=g) - 1.0).to(x)) if x.is_floating_point() else x

    near: Tree = tree.map(moved, model)
    return near


def deployed(
    method: Method,
    personal: Personalizer,
    model: CNN,
    clients: int,
    device: torch.device,
    backend: Backend,
) -> tuple[Engine, Engine, Any]:
    """An engine of this backend and a plain one, and models after one round."""
    worker = Worker(Task(model, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3), method)
    fast, slow = (b.open(worker, federation(clients, 64, 0), device) for b in (backend, Serial()))
    state = fit.start(worker, fast, clients)
    server, _, _ = fit.one_round(worker, fast, state.server, torch.arange(clients), 0)
    return fast, slow, fast.deploy(method.download(worker.task, server), fast.mine, personal)


def against_clients(
    case: Case,
    clients: int,
    samples: int,
    device: torch.device,
    repeats: int = 3,
    precision: Literal["tf32", "fp32"] = "tf32",
) -> dict[str, Any]:
    """Seconds per sample of a loop over clients, each in batches of 32, and of all clients in one step."""
    adapter, batch = catalogue.ADAPTERS[case.adapter], 32
    method, personal = catalogue.METHODS[case.method], catalogue.PERSONALS[case.personal]
    fast, slow, models = deployed(method, personal, CNN(norm=case.norm), clients, device, Vmap(precision=precision))
    if adapter.calibrates:
        models = fast.calibrated(models, federation(clients, 64, 2), adapter)
    test = federation(clients, samples, 1)
    one, few = [fast.model_of(models, 0)], Shards.of(test.x, test.y, [test.own(0)])
    with plain(), tf32(False) if precision == "fp32" else nullcontext():
        served(slow, one, few, adapter, batch)
        expected, loop = served(slow, one, few, adapter, batch)
        near, _ = served(slow, [nudged(one[0], device)], few, adapter, batch)
    first, _, *again = (served(fast, models, test, adapter, batch) for _ in range(2 + repeats))
    seconds = statistics.median(s for _, s in again)
    per = {
        "loop": loop / samples,
        "vectorised, first time": first[1] / clients / samples,
        "vectorised": seconds / clients / samples,
    }
    return {
        "adapter": case.label,
        "milliseconds_per_sample": {k: round(1e3 * v, 4) for k, v in per.items()},
        "times_faster": round(per["loop"] / per["vectorised"], 1),
        "loss_difference": float((expected - again[0][0][:1]).abs().max()),
        "loss": [float(expected[0]), float(again[0][0][0])],
        "loop_differs_from_itself": float((expected - near).abs().max()),
        "replay_differs_from_first": float((first[0] - again[-1][0]).abs().max()),
    }


def steps_alone(adapter: Adapter) -> dict[str, float]:
    """Seconds of the passes over a sample's views, forward and backward, as one batch through plain PyTorch; and at the
    rate of the quickest of some large matrix products, which take turns with them."""
    images = getattr(adapter, "steps", 0) * (getattr(adapter, "views", None) or 0)
    if not images:
        return {}
    net = CNN().build((3, 32, 32), 10).to(memory_format=torch.channels_last)
    x = torch.rand(images, 3, 32, 32).contiguous(memory_format=torch.channels_last)

    def step() -> None:
        torch.autograd.grad(net(x)[1].logsumexp(1).sum(), list(net.parameters()))

    taken, rates = [], []
    for _ in range(12):
        began = CLOCK[0]()
        step()
        taken.append(CLOCK[0]() - began)
        rates.append(product_rate(CLOCK[0], times=1))
    return {"the steps alone": statistics.median(taken[2:]), "at the ceiling": work_of(step)["flops"] / max(rates)}


def measure(
    name: str,
    clients: int,
    samples: int,
    looped: int,
    device: torch.device,
    backend: Backend,
    repeats: int = 3,
) -> dict[str, Any]:
    """Seconds per sample of both ways. The loop takes `looped` samples of one client, whose losses are compared.

    On a GPU the first serving runs eagerly, the second is recorded, and those after it are replayed.
    """
    method, adapter = CASES[name]
    test = federation(clients, samples, 1)
    fast, slow, models = deployed(method, Personalizer(), CNN(), clients, device, backend)
    one = [fast.model_of(models, 0)]
    few = Shards.of(test.x, test.y, [test.own(0)[:looped]])
    batch = min(samples, 32)
    with plain():
        expected, loop = looping(slow, one, few, adapter)
    _, loop_with_kernels = looping(slow, one, few, adapter)
    first, _, *again = (served(fast, models, test, adapter, batch)[1] for _ in range(2 + repeats))
    each = Shards.of(test.x, test.y, [test.own(c)[:looped] for c in range(clients)])
    same = served(fast, models, each, adapter, looped)[0][:1]
    total, vectorised = clients * samples, statistics.median(again)
    per = {
        "loop": loop / looped,
        "loop with our kernels": loop_with_kernels / looped,
        "vectorised, first time": first / total,
        "vectorised": vectorised / total,
    }
    per |= steps_alone(adapter) if device.type == "cpu" else {}
    fast.close()
    return {
        "adapter": name,
        "milliseconds_per_sample": {k: round(1e3 * v, 4) for k, v in per.items()},
        "times_faster": round(per["loop"] / per["vectorised"], 1),
        "loss_difference": float((expected - same).abs().max()),
    }


def _itself(row: dict[str, Any]) -> str:
    if "loop_differs_from_itself" not in row:
        return ""
    return f" (of {row['loss'][0]:.4g}; a rounding in the loop: {row['loop_differs_from_itself']:.1e})"


def _steps(per: dict[str, float]) -> str:
    alone = per.get("the steps alone")
    least = per.get("at the ceiling")
    return f"   the steps alone {alone:.3f} ms, at the ceiling {least:.3f} ms" if alone else ""


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="2 clients x 8 samples")
    parser.add_argument("--every", action="store_true", help="all adapters, against a loop over clients")
    parser.add_argument("--adapters", help="of --every: only these")
    parser.add_argument(
        "--precision", choices=("tf32", "fp32"), default="tf32", help="of --every: as backend.precision"
    )
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, in the place of time; on a CPU")
    parser.add_argument("--cores", type=int, help="on a CPU: threads of the loop, and cores of `backend=auto`")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.cores:
        torch.set_num_threads(args.cores)
    if args.cpu_time:
        torch.set_num_threads(1)
        CLOCK[0] = time.process_time
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clients, samples, looped = (2, 8, 4) if args.quick else (20, 320, 32)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    print(f"{name}: {clients} clients x {samples} samples; the loop took {looped}")
    rows = []
    some = [c for c in CLIENT_CASES if args.adapters is None or c.adapter in args.adapters.split(",")]
    for case in some if args.every else CASES:
        if isinstance(case, Case):
            rows.append(against_clients(case, clients, samples, device, precision=args.precision))
        else:
            rows.append(measure(case, clients, samples, looped, device, Auto() if args.cores else Vmap()))
        row, per = rows[-1], rows[-1]["milliseconds_per_sample"]
        print(
            f"{row['adapter']:22s} loop {per['loop']:9.3f} ms   vectorised {per['vectorised']:9.4f} ms per sample   "
            f"{row['times_faster']:7.1f} x   loss differs by {row['loss_difference']:.1e}{_itself(row)}{_steps(per)}",
            flush=True,
        )
        if args.out:
            about = {
                **environment(device),
                "clock": CLOCK[0].__name__,
                "clients": clients,
                "samples": samples,
                "looped_samples": looped,
                "precision": args.precision,
            }
            write(args.out, {**about, "rows": rows})


if __name__ == "__main__":
    main()
