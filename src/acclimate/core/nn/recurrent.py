"""Recurrent layers in plain tensor code, step by step: torch's own cannot be vmapped, nor differentiated twice.

`nn.RNN`, `nn.GRU` and `nn.LSTM` call one function for all layers, directions and steps. `layers` takes its arguments,
those for packed sequences too, and gives what it gives; `cell` does the same for `nn.RNNCell` and its kind. What packs
sequences has its gradient in code that `torch.func` cannot enter, so it is here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_gradtrackingtensor

Carried: TypeAlias = tuple[Tensor, ...]
"""What goes from step to step: h, and in an LSTM c."""


class Recurrence(NamedTuple):
    """What one layer does with what it remembers."""

    hidden: Tensor
    bias: Tensor | None
    project: Tensor | None = None
    """For an LSTM with `proj_size`: from c to a shorter h."""


Step: TypeAlias = Callable[[Tensor, Carried, Recurrence], Carried]
"""The next state, of what a layer makes of its input, W x + b, and of the state before."""


def lstm(given: Tensor, state: Carried, w: Recurrence) -> Carried:
    """Four gates: what comes in, what stays, the new value, what goes out."""
    h, c = state
    enter, stay, new, leave = (given + F.linear(h, w.hidden, w.bias)).chunk(4, -1)
    c = stay.sigmoid() * c + enter.sigmoid() * new.tanh()
    h = leave.sigmoid() * c.tanh()
    return h if w.project is None else F.linear(h, w.project), c


def gru(given: Tensor, state: Carried, w: Recurrence) -> Carried:
    """Two gates: how much of the state the new value sees, and how much of it stays."""
    (h,) = state
    (see, stay, new), (h_see, h_stay, h_new) = given.chunk(3, -1), F.linear(h, w.hidden, w.bias).chunk(3, -1)
    stay = (stay + h_stay).sigmoid()
    return ((1 - stay) * (new + (see + h_see).sigmoid() * h_new).tanh() + stay * h,)


def tanh(given: Tensor, state: Carried, w: Recurrence) -> Carried:
    """No gates."""
    return ((given + F.linear(state[0], w.hidden, w.bias)).tanh(),)


def relu(given: Tensor, state: Carried, w: Recurrence) -> Carried:
    """No gates."""
    return ((given + F.linear(state[0], w.hidden, w.bias)).relu(),)


def layers(kind: Step, dropped: Callable[[Tensor, float], Tensor], input: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """What torch's function for these layers gives: outputs, and the last state of each layer and direction.

    `rest` is (states, weights, has biases, layers, dropout, training, both ways, batch first), or for a packed sequence
    (sizes of the steps, states, weights, has biases, layers, dropout, training, both ways).
    """
    packed = isinstance(rest[2], list | tuple)
    sizes = _numbers(rest[0]) if packed else None
    start, flat, biases, count, dropout, training, both = rest[1:8] if packed else rest[:7]
    first = not packed and rest[7]
    states: Carried = tuple(start) if isinstance(start, list | tuple) else (start,)
    ways = 2 if both else 1
    size = len(flat) // (count * ways)
    ends: list[Carried] = []
    x = input.transpose(0, 1) if first else input
    for layer in range(count):
        outs = []
        for way in range(ways):
            i = layer * ways + way
            own, before = flat[i * size : (i + 1) * size], tuple(s[i] for s in states)
            out, end = _one_way(kind, x, sizes, before, own, biases, backwards=way == 1)
            outs.append(out)
            ends.append(end)
        x = torch.cat(outs, -1) if both else outs[0]
        if training and dropout > 0 and layer < count - 1:
            x = dropped(x, dropout)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    return (x.transpose(0, 1) if first else x), *last


def _numbers(t: Tensor) -> list[int]:
    """The values of a tensor, below the wrappers that `torch.func.grad` puts around all that is made inside it."""
    while is_gradtrackingtensor(t):
        t = get_unwrapped(t)
    return [int(n) for n in t.tolist()]


def _one_way(
    kind: Step, x: Tensor, sizes: Sequence[int] | None, state: Carried, own: Any, biases: bool, backwards: bool
) -> tuple[Tensor, Carried]:
    """One layer in one direction: outputs in the order of the steps, and the last state of every sequence.

    Sequences are sorted, the longest first. A packed step holds the first `size` of them; the others' states wait.
    """
    bias_in, bias = (own[2], own[3]) if biases else (None, None)
    weights = Recurrence(own[1], bias, own[-1] if len(own) in (3, 5) else None)
    given = F.linear(x, own[0], bias_in)
    steps = list(given.unbind(0) if sizes is None else given.split(list(sizes)))
    outs: list[Tensor] = []
    for step in reversed(steps) if backwards else steps:
        n = len(step)
        new = kind(step, tuple(s[:n] for s in state), weights)
        outs.append(new[0])
        state = new if n == len(state[0]) else tuple(torch.cat((a, b[n:])) for a, b in zip(new, state, strict=True))
    outs = outs[::-1] if backwards else outs
    return (torch.stack(outs) if sizes is None else torch.cat(outs)), state


def packed(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The steps of sequences one after the other, without their padding, and how many sequences each step has."""
    x, ends = input.transpose(0, 1) if batch_first else input, _numbers(lengths)
    sizes = [sum(end > t for end in ends) for t in range(ends[0])]
    return torch.cat([x[t, :n] for t, n in enumerate(sizes)]), torch.tensor(sizes)


def padded(data: Tensor, sizes: Tensor, batch_first: bool, filler: float, length: int) -> tuple[Tensor, Tensor]:
    """What `packed` was made of, filled up to `length` steps (0: to the longest), and the lengths of the sequences."""
    counts = _numbers(sizes)
    steps = [
        F.pad(step, (0, 0) * (step.dim() - 1) + (0, counts[0] - len(step)), value=filler) for step in data.split(counts)
    ]
    steps += [torch.full_like(steps[0], filler)] * (length - len(steps))
    ends = torch.tensor([sum(n > i for n in counts) for i in range(counts[0])])
    return torch.stack(steps, 1 if batch_first else 0), ends


def cell(
    kind: Step, input: Tensor, state: Any, w_in: Tensor, w: Tensor, b_in: Tensor | None = None, b: Tensor | None = None
) -> Any:
    """One step of one layer, as torch's function for a cell gives it."""
    before: Carried = tuple(state) if isinstance(state, list | tuple) else (state,)
    after = kind(F.linear(input, w_in, b_in), before, Recurrence(w, b))
    return after if isinstance(state, list | tuple) else after[0]
