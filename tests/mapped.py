"""Clients under one map: each has the gradient that it has alone."""

import torch
from torch.func import grad, vmap

from acclimate.core import rng, tree


def each_is_alone(t, x, y):
    """Two clients with other parameters, inputs and keys; returns the gradient of one, its variables and the keys."""
    vars, keys = t.init(rng.key(0)), rng.fold(rng.key(1), torch.arange(2))
    params = tree.map(lambda p: torch.stack((p, p + 0.1)), vars["params"])
    xs, ys = torch.stack((x, x.flip(0))), torch.stack((y, y))

    def slope(p, x, y, k):
        return grad(lambda p: t.loss({**vars, "params": p}, {"x": x, "y": y}, k)[0])(p)

    both = vmap(slope)(params, xs, ys, keys)
    for c in range(2):
        alone = slope(tree.map(lambda p, c=c: p[c], params), xs[c], ys[c], keys[c])
        for name, value in alone.items():
            assert torch.allclose(both[name][c], value, atol=1e-5), name
    return slope, vars, keys
