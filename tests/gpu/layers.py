"""The tensor-parallel layers on which symmc and PyTorch are compared: one rank's part of them.

Needs a process group. All collectives are functional, so that `torch.export` and `torch.compile` see them.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.nn import functional


def all_reduce(x):
    return collectives.all_reduce(x, "sum", dist.group.WORLD)


class Mlp(torch.nn.Module):
    """Gate, up and down projections, an all-reduce and the residual."""

    def __init__(self, ranks, hidden, intermediate):
        super().__init__()
        piece = intermediate // ranks
        self.gate = torch.nn.Linear(hidden, piece, bias=False)
        self.up = torch.nn.Linear(hidden, piece, bias=False)
        self.down = torch.nn.Linear(piece, hidden, bias=False)

    def forward(self, x):
        y = self.down(functional.silu(self.gate(x)) * self.up(x))
        return x + all_reduce(y)


class Decoder(torch.nn.Module):
    """A Megatron decoder layer: norm, attention over heads of which several share one of keys, norm, gated MLP, each
    with an all-reduce and the residual.

    Without a cache the rows of `x` are one sequence, and each attends to itself and those before it (prefill). With
    keys and values `[rows, heads, positions, size]` every row is the newest token of a sequence of its own and attends
    to the positions of its cache; the keys and values of the row itself are returned, for the caller to append.
    """

    def __init__(self, ranks, hidden, heads, key_heads, intermediate):
        super().__init__()
        self.heads, self.key_heads, self.size = heads // ranks, key_heads // ranks, hidden // heads
        piece = intermediate // ranks
        self.norm, self.mlp_norm = (torch.nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, (self.heads + 2 * self.key_heads) * self.size, bias=False)
        self.out = torch.nn.Linear(self.heads * self.size, hidden, bias=False)
        self.gate_up = torch.nn.Linear(hidden, 2 * piece, bias=False)
        self.down = torch.nn.Linear(piece, hidden, bias=False)

    def forward(self, x, keys=None, values=None):
        mixed = self.qkv(self.norm(x))
        q, k, v = mixed.split([n * self.size for n in (self.heads, self.key_heads, self.key_heads)], dim=-1)
        if keys is None:
            new = None
            heads = (y.view(-1, n, self.size).transpose(0, 1).unsqueeze(0) for y, n in ((q, self.heads), (k, self.key_heads), (v, self.key_heads)))
            y = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
            y = y.squeeze(0).transpose(0, 1)
        else:
            new = mixed[:, self.heads * self.size :].clone()
            q = q.view(-1, self.heads, 1, self.size)
            y = functional.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        x = x + all_reduce(self.out(y.reshape(-1, self.heads * self.size)))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + all_reduce(self.down(functional.silu(gate) * up)), new


class Stack(torch.nn.Module):
    """Decoder layers; `caches` are the keys and values of one after the other, or nothing."""

    def __init__(self, layers, *sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(Decoder(*sizes) for _ in range(layers))

    def forward(self, x, *caches):
        new = []
        for i, layer in enumerate(self.layers):
            x, own = layer(x, *caches[2 * i : 2 * i + 2])
            new.append(own)
        return (x, *new) if caches else x


def mlp(ranks, layers=4, hidden=4096, intermediate=14336):
    return torch.nn.Sequential(*[Mlp(ranks, hidden, intermediate) for _ in range(layers)])


def decoder(ranks, layers=4, hidden=4096, heads=32, key_heads=8, intermediate=14336):
    return Stack(layers, ranks, hidden, heads, key_heads, intermediate)


def caches(stack, rows, positions, **kind):
    """Memory for the keys and values of all layers."""
    shapes = [(rows, layer.key_heads, positions, layer.size) for layer in stack.layers for _ in range(2)]
    return tuple(torch.zeros(shape, **kind) for shape in shapes)
