"""What a federated round costs as clients, local steps and parameters grow: measured points, and a formula for them.

    python benchmarks/cost.py --out results/benchmarks/cost-cpu.json     measure, fit and store
    python benchmarks/cost.py --draw results/benchmarks/cost-cpu.json    draw docs/cost-cpu.svg from it

FedAvg with the two-layer CNN on 3x32x32 images, batch 32. One size at a time is changed; points at which several are
changed together (`checks`) take no part in the fit, so they say how well it predicts. On a CPU one client runs after
the other on one thread, and the cost is CPU time, which other work of the machine changes little. On a GPU all clients
run as one recorded step, and the cost is time. A fit has no negative terms: those that do not help are zero.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import environment, parser_of, wait, write
from picture import THEMES
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from acclimate import store
from acclimate.backends import Serial, Vmap
from acclimate.core import SGD, Shards, Task, Work, Worker, fit, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN

BATCH = 32


class Size(NamedTuple):
    """A round: how many clients take how many steps, and how wide the first layer of their model is."""

    clients: int
    steps: int
    width: int

    @property
    def model(self) -> CNN:
        """The CNN of the papers at width 32."""
        return CNN(widths=(self.width, 2 * self.width), hidden=2 * self.width)


BASE = Size(4, 8, 16)
AXES: dict[str, tuple[int, ...]] = {
    "clients": (1, 2, 4, 8, 16),
    "steps": (2, 4, 8, 16, 32),
    "width": (4, 8, 16, 32, 48),
}
CHECKS = (Size(2, 16, 8), Size(8, 4, 24), Size(3, 12, 32))

TERMS: dict[str, Callable[[Mapping[str, Any]], float]] = {
    "a round": lambda p: 1.0,
    "a step": lambda p: float(p["steps"]),
    "a client's step": lambda p: float(p["clients"] * p["steps"]),
    "a GFLOP": lambda p: p["clients"] * p["steps"] * p["gflop_per_step"],
    "a million parameters of a client": lambda p: p["clients"] * p["parameters"] / 1e6,
}
"""What is paid for: the formula is a sum of these, each times its price in milliseconds."""


def sizes() -> list[Size]:
    """The points of the fit: the base, and the base with one size changed."""
    changed = [BASE._replace(**{axis: v}) for axis, values in AXES.items() for v in values]
    return list(dict.fromkeys(changed))


def point(size: Size, device: torch.device, repeats: int) -> dict[str, Any]:
    """Milliseconds of one round of this size: the best of some, after one that does not count."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (size.clients * 64, 3, 32, 32), generator=g), torch.arange(size.clients * 64) % 10
    data = Shards.of(x.to(torch.uint8), y, list(torch.arange(len(y)).view(size.clients, 64)))
    task = Task(size.model, (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)
    worker = Worker(task, FedAvg(opt=SGD(lr=0.05), work=Work(iterations=size.steps, batch=BATCH)))
    engine = (Vmap() if device.type == "cuda" else Serial()).open(worker, data, device)
    server, cohort = fit.start(worker, engine, size.clients).server, torch.arange(size.clients)
    times = []
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for round in range(repeats + 1):
        wait(device)
        began = clock()
        server, _, _ = fit.one_round(worker, engine, server, cohort, round)
        wait(device)
        times.append(1e3 * (clock() - began))
    parameters = tree.numel(server["vars"]["params"])
    return {**size._asdict(), "parameters": parameters, "gflop_per_step": gflop(size), "ms": min(times[1:])}


def gflop(size: Size) -> float:
    """Billions of operations of one client's step, counted on a plain module."""
    module = size.model.build((3, 32, 32), 10)
    with FlopCounterMode(display=False) as counter:
        module(torch.zeros(BATCH, 3, 32, 32))[1].sum().backward()
    return float(counter.get_total_flops()) / 1e9


def prices(points: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Milliseconds per term, none negative, with the least squared relative error."""
    ms = torch.tensor([p["ms"] for p in points], dtype=torch.float64)
    rows = torch.tensor([[term(p) for term in TERMS.values()] for p in points], dtype=torch.float64) / ms[:, None]
    used = list(range(len(TERMS)))
    while True:
        found = _least(rows[:, used], torch.ones_like(ms))
        if bool((found >= 0).all()):
            break
        used.pop(int(found.argmin()))
    price = dict(zip(used, found.tolist(), strict=True))
    return {name: price.get(i, 0.0) for i, name in enumerate(TERMS)}


def _least(rows: Tensor, wanted: Tensor) -> Tensor:
    """Least squares with columns of one size, since their units are not."""
    scale = rows.norm(dim=0)
    found: Tensor = torch.linalg.lstsq(rows / scale, wanted[:, None]).solution[:, 0] / scale
    return found


def predicted(price: Mapping[str, float], p: Mapping[str, Any]) -> float:
    """Milliseconds by the formula."""
    return sum(price[name] * term(p) for name, term in TERMS.items())


def measured(device: torch.device, repeats: int) -> dict[str, Any]:
    """Points, prices, and how far the formula is off."""
    point(Size(1, 1, 4), device, 1)
    found = {}
    for kind, some in (("points", sizes()), ("checks", list(CHECKS))):
        found[kind] = [point(size, device, repeats) for size in some]
    price = prices(found["points"])
    off = {k: [abs(predicted(price, p) / p["ms"] - 1) for p in found[k]] for k in found}
    return {
        "what": "CPU milliseconds, one thread" if device.type == "cpu" else "milliseconds",
        **found,
        "milliseconds_for": price,
        "largest_relative_error": {k: max(v) for k, v in off.items()},
    }


# --- the picture ---------------------------------------------------------------------------------------------------

PANEL, HEIGHT, LEFT, TOP, BOTTOM = 250, 280, 62, 44, 46


def draw(data: Mapping[str, Any]) -> str:
    """Three panels, one for each size, with measured points and the formula as a line; both axes are logarithmic."""
    tone, colour = THEMES["light"], "#0b6bcb"
    ms = [p["ms"] for p in data["points"]]
    low, high = min(ms) / 1.3, max(ms) * 1.3
    wide = LEFT + len(AXES) * PANEL
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {HEIGHT}" role="img" font-size="12" '
        f'font-family="system-ui, sans-serif" fill="{tone["text"]}">',
        "<title>What a round costs as clients, steps and parameters grow</title>",
        f'<rect width="{wide}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18">One round: {data["what"]}. Dots are measured, lines are the formula.</text>',
    ]

    def y(v: float) -> float:
        return HEIGHT - BOTTOM - _log(v, low, high) * (HEIGHT - TOP - BOTTOM)

    for v in (v for v in (10.0**e * k for e in range(-1, 7) for k in (1, 3)) if low <= v <= high):
        line = f"M{LEFT} {y(v):.1f}H{wide - 16}"
        out.append(f'<path d="{line}" stroke="{tone["faint"]}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end" fill="{tone["muted"]}">{v:g}</text>')
    for i, axis in enumerate(AXES):
        shown = "parameters" if axis == "width" else axis
        held = {a: v for a, v in BASE._asdict().items() if a != axis}
        some = sorted((p for p in data["points"] if all(p[a] == v for a, v in held.items())), key=lambda p: p[axis])
        left, right = LEFT + i * PANEL + 14, LEFT + (i + 1) * PANEL - 30
        first, last = some[0][shown], some[-1][shown]
        xs = [left + _log(p[shown], first, last) * (right - left) for p in some]
        curve = " ".join(
            f"{x:.1f},{y(predicted(data['milliseconds_for'], p)):.1f}" for x, p in zip(xs, some, strict=True)
        )
        out.append(f'<polyline points="{curve}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for x, p in zip(xs, some, strict=True):
            name = f"{p[shown] / 1e3:.0f}k" if shown == "parameters" else str(p[shown])
            below = f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{tone["muted"]}">'
            out += [f'<circle cx="{x:.1f}" cy="{y(p["ms"]):.1f}" r="4" fill="{colour}"/>', f"{below}{name}</text>"]
        label = {"clients": "clients", "steps": "local steps of each", "width": "parameters of the model"}[axis]
        out.append(f'<text x="{(left + right) / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _log(v: float, low: float, high: float) -> float:
    """Where v lies between two numbers, 0 to 1, on a logarithmic scale."""
    scale = torch.tensor([v, low, high], dtype=torch.float64).log()
    return float((scale[0] - scale[1]) / (scale[2] - scale[1]))


def main() -> None:
    """Measure and store, or draw what is stored."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--draw", type=Path, help="draw from this file instead of measuring")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="where pictures go")
    args = parser.parse_args()
    if args.draw:
        store.write(args.docs / f"{args.draw.stem}.svg", draw(json.loads(args.draw.read_text())))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    report = {"benchmark": "cost", **environment(device), "load": os.getloadavg(), **measured(device, args.repeats)}
    print(json.dumps({k: report[k] for k in ("milliseconds_for", "largest_relative_error")}, indent=1))
    if args.out:
        write(args.out, report)


if __name__ == "__main__":
    main()
