"""Functions that modules from elsewhere call, in a form that can be vmapped, differentiated twice and captured.

`purify` swaps layers; this swaps functions, while a module runs: torch's fused attention and recurrent layers have no
second derivative, and what draws random numbers takes them from a global generator. `PureCalls` answers these calls
with plain tensor code and with numbers drawn from a key. Its attention holds all weights of a layer in memory, as the
formula does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import rng
from . import recurrent

_Own: TypeAlias = Callable[..., Any]
"""What answers a call: a function of the `PureCalls` and of the call's own arguments."""


class PureCalls(TorchFunctionMode):
    """Answers some of torch's functions itself; `key` feeds those that draw, and None forbids to draw."""

    def __init__(self, key: rng.Key | None) -> None:
        super().__init__()
        self.key, self.draws = key, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = _OWN.get(func)
        return func(*args, **(kwargs or {})) if own is None else own(self, *args, **(kwargs or {}))

    def next_key(self) -> rng.Key:
        """Another key with every call."""
        if self.key is None:
            raise ValueError("this model draws random numbers: pass a key to Task.apply, in mode 'train'")
        self.draws += 1
        return rng.fold(self.key, "call", self.draws)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in 0..1, others with every call."""
        return rng.uniform(self.next_key(), *shape)


def _dropout(calls: PureCalls, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or p == 0:
        return input
    return input * (calls.uniform(*input.shape) >= p) / (1 - p) if p < 1 else torch.zeros_like(input)


def _channels_dropout(
    calls: PureCalls, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels of samples [batch, channels, ...]."""
    ones = input.new_ones(*input.shape[:2], *(1,) * (input.dim() - 2))
    return input * _dropout(calls, ones, p, training)


def _rrelu(
    calls: PureCalls,
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    slope = lower + (upper - lower) * (calls.uniform(*input.shape) if training else 0.5)
    return torch.where(input >= 0, input, input * slope)


def _into(input: Tensor, made: Tensor) -> Tensor:
    """Numbers in the place of a tensor's own. Where each client has others and the tensor is one for all, they cannot
    be there; what is there then is no number, so that whoever reads it there does not go on with it."""
    made = made.to(input.dtype)
    try:
        return input.copy_(made)
    except RuntimeError:
        if input.is_floating_point():
            input.fill_(torch.nan)
        return made


def _bernoulli_into(calls: PureCalls, input: Tensor, p: float | Tensor = 0.5, *, generator: Any = None) -> Tensor:
    return _into(input, calls.uniform(*input.shape) < p)


def _uniform_into(calls: PureCalls, input: Tensor, low: float = 0.0, high: float = 1.0, **rest: Any) -> Tensor:
    low, high = rest.get("from", low), rest.get("to", high)
    return _into(input, low + (high - low) * calls.uniform(*input.shape))


def _normal_into(calls: PureCalls, input: Tensor, mean: float = 0.0, std: float = 1.0, **rest: Any) -> Tensor:
    return _into(input, mean + std * rng.normal(calls.next_key(), *input.shape))


def _bernoulli(calls: PureCalls, input: Tensor, **rest: Any) -> Tensor:
    return (calls.uniform(*input.shape) < input).to(input.dtype)


def _shape(size: tuple[Any, ...], rest: dict[str, Any]) -> Any:
    return size[0] if len(size) == 1 and not isinstance(size[0], int) else size or rest["size"]


def _rand(calls: PureCalls, *size: Any, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return calls.uniform(*_shape(size, rest)).to(dtype or torch.get_default_dtype())


def _randn(calls: PureCalls, *size: Any, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    return rng.normal(calls.next_key(), *_shape(size, rest)).to(dtype or torch.get_default_dtype())


def _refused(name: str) -> _Own:
    """What answers a call that would draw from the global generator, so that no two runs were alike."""

    def answer(calls: PureCalls, *args: Any, **rest: Any) -> Any:
        raise ValueError(
            f"this model calls {name}, which draws random numbers that no seed of the experiment knows; use "
            "torch.rand, torch.randn, torch.bernoulli, rand_like, randn_like, uniform_, normal_, bernoulli_ or dropout"
        )

    return answer


def _rand_like(calls: PureCalls, input: Tensor, **rest: Any) -> Tensor:
    return calls.uniform(*input.shape).to(rest.get("dtype") or input.dtype)


def _randn_like(calls: PureCalls, input: Tensor, **rest: Any) -> Tensor:
    return rng.normal(calls.next_key(), *input.shape).to(rest.get("dtype") or input.dtype)


def _hardsigmoid(calls: PureCalls, input: Tensor, inplace: bool = False) -> Tensor:
    return F.relu6(input + 3.0) / 6.0


def _attention(
    calls: PureCalls,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Softmax attention [..., queries, width] in plain tensor code."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    return _weights(calls, query, key, attn_mask, dropout_p, is_causal, scale) @ value


def _weights(
    calls: PureCalls,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    lowest = torch.finfo(scores.dtype).min
    if is_causal:
        earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~earlier, lowest)
    if mask is not None:  # bool: which keys count; else a summand
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask.to(scores.dtype)
    return _dropout(calls, scores.softmax(-1), dropout_p)


def _multi_head(
    calls: PureCalls,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    in_weight: Tensor | None,
    in_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_weight: Tensor,
    out_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    **separate: Any,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` calls, for [length, batch, width]; `attn_mask` holds what `is_causal` hints at."""
    if bias_k is not None or add_zero_attn or query.dim() != 3:
        raise ValueError(
            "nn.MultiheadAttention with add_bias_kv=True, add_zero_attn=True or inputs without a batch is not "
            "supported; use its defaults"
        )
    parts = in_weight.chunk(3) if in_weight is not None else [separate[f"{n}_proj_weight"] for n in "qkv"]
    biases = in_bias.chunk(3) if in_bias is not None else (None,) * 3
    q, k, v = (
        F.linear(t, w, b).unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
        for t, w, b in zip((query, key, value), parts, biases, strict=True)
    )
    mask = _summand(attn_mask, q)
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, heads))
    padded = _summand(key_padding_mask, q)
    if padded is not None:
        padded = padded[:, None, None, :]
        mask = padded if mask is None else mask + padded
    weights = _weights(calls, q, k, mask, dropout_p if training else 0.0)
    out = F.linear((weights @ v).permute(2, 0, 1, 3).flatten(-2), out_weight, out_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(1) if average_attn_weights else weights


def _summand(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask of this function, where True means that a key does not count, as what is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    # half of the lowest number: two masks may add up
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, torch.finfo(like.dtype).min / 2)


def _recurrent(kind: recurrent.Step) -> _Own:
    """What answers a call for recurrent layers of this kind."""
    return lambda calls, *args: recurrent.layers(kind, lambda x, p: _dropout(calls, x, p), *args)


def _cell(kind: recurrent.Step) -> _Own:
    """What answers a call for one step of this kind."""
    return lambda calls, *args: recurrent.cell(kind, *args)


_OWN: dict[Any, _Own] = {
    F.dropout: _dropout,
    torch.dropout: lambda calls, input, p, train: _dropout(calls, input, p, train),
    F.dropout1d: _channels_dropout,
    F.dropout2d: _channels_dropout,
    F.dropout3d: _channels_dropout,
    F.rrelu: _rrelu,
    torch.Tensor.bernoulli_: _bernoulli_into,
    torch.Tensor.uniform_: _uniform_into,
    torch.Tensor.normal_: _normal_into,
    torch.bernoulli: _bernoulli,
    torch.Tensor.bernoulli: _bernoulli,
    torch.rand: _rand,
    torch.randn: _randn,
    torch.rand_like: _rand_like,
    torch.randn_like: _randn_like,
    F.hardsigmoid: _hardsigmoid,
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    torch.lstm: _recurrent(recurrent.lstm),
    torch.gru: _recurrent(recurrent.gru),
    torch.rnn_tanh: _recurrent(recurrent.tanh),
    torch.rnn_relu: _recurrent(recurrent.relu),
    torch._pack_padded_sequence: lambda calls, *args: recurrent.packed(*args),
    torch._pad_packed_sequence: lambda calls, *args: recurrent.padded(*args),
    torch.lstm_cell: _cell(recurrent.lstm),
    torch.gru_cell: _cell(recurrent.gru),
    torch.rnn_tanh_cell: _cell(recurrent.tanh),
    torch.rnn_relu_cell: _cell(recurrent.relu),
}
"""Functions, and what answers in their place."""
_UNKNOWN = ("normal", "randint", "randint_like", "randperm", "multinomial", "poisson")
_IN_PLACE = ("random_", "exponential_", "geometric_", "cauchy_", "log_normal_", "multinomial")
_OWN |= {getattr(torch, name): _refused(f"torch.{name}") for name in _UNKNOWN}
_OWN |= {getattr(torch.Tensor, name): _refused(f"Tensor.{name}") for name in _IN_PLACE}
