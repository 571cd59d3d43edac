"""MBSL on sets as large as PACS's four domains: what FedSPL's test half takes where whole test sets are learned from.

One client meets each set, as in FedSPL's recipe: the network and the settings of `fedspl/pacs` without `weights=`
(EfficientNet-Lite0, extra `backbones`), images of 64 pixels. Their pixels are drawn, since time does not depend on
them. The first time is of a process that has compiled and recorded nothing; the second time all of it is there.

    python benchmarks/mbsl.py [--sizes 1670,2048,2344,3929] [--backbone efficientnet-lite0] [--side 128] [--profile]
        [--device cuda] [--out figures.json]

`--backbone none` is a small network of convolutions as EfficientNet has them, to see that everything runs.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
from harness import Record, environment, integers, parser_of, peak_memory, phase, wait, write
from limits import profiled
from torch import nn

import acclimate as ac
from acclimate.core import Protocol, Shards, rng
from acclimate.models import Pretrained
from acclimate.ops.devices import device_of
from acclimate.recipes.fedspl import BATCH, LITE
from acclimate.running.run import build

PIXELS, CLASSES = LITE.pixels, 7
SIZES = [1670, 2048, 2344, 3929]
"""Images of photo, art painting, cartoon and sketch."""


class Tiny(nn.Sequential):
    """Two blocks of separable convolutions."""

    def __init__(self) -> None:
        def block(a: int, b: int) -> list[nn.Module]:
            deep = nn.Conv2d(a, a, 3, 2, 1, groups=a, bias=False), nn.BatchNorm2d(a), nn.ReLU6()
            return [*deep, nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)]

        super().__init__(*block(3, 8), *block(8, 16), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def drawn(images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and classes."""
    key = rng.fold(rng.key(seed), "images")
    x = rng.randint(key, 0, 256, images, 3, PIXELS, PIXELS).to(torch.uint8)
    return x, rng.randint(rng.fold(key, "classes"), 0, CLASSES, images)


def measured(model: Pretrained, sizes: list[int], device: str, profile: bool) -> Record:
    """Seconds of each set, for the first and the second time, and the peak of memory."""
    data = ac.data.of(*drawn(16 * CLASSES, 0), clients=1, partition=ac.data.IID())
    experiment = ac.Experiment(data=data, model=model, rounds=1, device=device, backend=ac.backends.Vmap())
    world, worker, engine = build(experiment)
    state = ac.core.fit.start(worker, engine, world.clients)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, ac.personal.NoPersonal())
    adapter, protocol = ac.adapters.MBSL(**LITE.taught), Protocol(batch=BATCH)
    sets = [Shards.of(*drawn(n, n), [torch.arange(n)]) for n in sizes]
    record: Record = {"images": sizes, "seconds": {}}
    with peak_memory(engine.device) as memory:
        for turn in ("first", "second"):
            taken = []
            for shards in sets:
                with phase(f"{int(shards.n.sum())} images, {turn} time") as took:
                    engine.serve(models, shards, adapter, protocol)
                    wait(engine.device)
                taken.append(round(took["seconds"], 3))
            record["seconds"][turn] = taken
    if profile:
        record["profile"] = profiled(lambda: engine.serve(models, sets[0], adapter, protocol), engine.device, 40)
    engine.close()
    return record | memory


def taught_there(images: int = 640) -> None:
    """This work on a GPU that is not there, to see what it compiles (`compile_kernels.py --only mbsl`)."""
    from pretend import DEVICE, moved, on_it, there

    shards = Shards.of(*drawn(images, images), [torch.arange(images)])
    data = ac.data.of(*drawn(16 * CLASSES, 0), clients=1, partition=ac.data.IID())
    model = Pretrained(LITE.backbone, size=LITE.size)
    world, worker, engine = build(ac.Experiment(data=data, model=model, rounds=1, device="cpu"))
    server = ac.core.fit.start(worker, engine, world.clients).server
    engine = on_it(ac.backends.Vmap().open(worker, there(shards), DEVICE))
    with suppress(NotImplementedError):  # metrics that come back to the host
        down = moved(worker.method.download(worker.task, server))
        models = engine.deploy(down, engine.mine, ac.personal.NoPersonal())
        engine.serve(models, there(shards), ac.adapters.MBSL(**LITE.taught), Protocol(batch=BATCH))


def main() -> None:
    """Measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=integers, default=SIZES)
    parser.add_argument("--backbone", default=LITE.backbone)
    parser.add_argument("--side", type=int, default=LITE.size)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    model = Pretrained(Tiny() if given.backbone == "none" else given.backbone, size=given.side)
    found = measured(model, given.sizes, given.device, given.profile)
    for turn, taken in found["seconds"].items():
        print(f"{turn} time: {sum(taken):.1f} s ({', '.join(f'{t:.1f}' for t in taken)})")
    for kernel in found.get("profile", {}).get("kernels", ()):
        print(f"  {kernel['share']:6.1%} {kernel['calls']:7d} {kernel['name']}")
    study = {"backbone": given.backbone, "side": given.side}
    report = {"schema": "acclimate.mbsl/1", **environment(device_of(given.device)), **study, **found}
    if given.out:
        write(given.out, report)


if __name__ == "__main__":
    main()
