#!/usr/bin/env python3
"""Compares one host rank with PyTorch eager, one thread each: `python3 tests/bench/host_operators.py [--rounds N] [PATTERN...]`.

Needs the package `symmc` and PyTorch for the CPU. Each program is exported with `torch.export`, planned once for one rank of the machine
`host`, and run many times in an open session whose inputs and outputs are bound. Eager runs the same module without gradients. Both take
turns in one process: a round is a batch of calls of each, and the ratio of a round is that of their fastest calls. The table has the
median of the ratios, with the smallest and the largest. Results are compared with those of eager first.
PATTERNs name programs (`fnmatch`). `--models` measures models only, `--operators` operators only.
"""

import argparse
import fnmatch
import os
import statistics
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch
import torch.nn.functional as F
from torch import nn

import symmc

BATCH_SECONDS = 0.05


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def operators():
    """Each operator: its module and its arguments."""
    normal = torch.randn
    image = normal(8, 64, 56, 56)
    matrix, tokens = normal(1024, 1024), normal(8, 128, 768)
    positive = matrix.abs() + 0.1
    rows = torch.randint(0, 1024, (4096,))
    return {
        "add": (lambda x, y: x + y, matrix, normal(1024, 1024)),
        "add_row": (lambda x, y: x + y, matrix, normal(1024)),
        "add_column": (lambda x, y: x + y, matrix, normal(1024, 1)),
        "transpose_add": (lambda x, y: x.t() + y, matrix, normal(1024, 1024)),
        "transpose_copy": (lambda x: x.t().contiguous(), matrix),
        "permute_copy": (lambda x: x.permute(0, 2, 3, 1).contiguous(), image),
        "heads_copy": (lambda x: x.view(8, 128, 12, 64).transpose(1, 2).contiguous(), tokens),
        "mul_add": (lambda x, y: x * y + 1.5, matrix, normal(1024, 1024)),
        "exp": (torch.exp, matrix),
        "log": (torch.log, positive),
        "sqrt": (torch.sqrt, positive),
        "rsqrt": (torch.rsqrt, positive),
        "sin": (torch.sin, matrix),
        "sin_cos_tanh": (lambda x: x.sin() + x.cos() + x.tanh(), matrix),
        "tanh": (torch.tanh, matrix),
        "sigmoid": (torch.sigmoid, matrix),
        "erf": (torch.erf, matrix),
        "relu": (torch.relu, matrix),
        "silu": (F.silu, matrix),
        "gelu": (F.gelu, matrix),
        "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), matrix),
        "pow": (lambda x: x.pow(1.7), positive),
        "where": (lambda x, y: torch.where(x > 0, x, y), matrix, normal(1024, 1024)),
        "clamp": (lambda x: x.clamp(-0.5, 0.5), matrix),
        "to_bf16": (lambda x: x.to(torch.bfloat16), matrix),
        "add_bf16": (lambda x, y: x + y, matrix.bfloat16(), normal(1024, 1024).bfloat16()),
        "sum_all": (lambda x: x.sum(), matrix),
        "sum_rows": (lambda x: x.sum(1), matrix),
        "sum_columns": (lambda x: x.sum(0), matrix),
        "mean_image": (lambda x: x.mean((2, 3)), image),
        "max_rows": (lambda x: x.amax(1), matrix),
        "argmax": (lambda x: x.argmax(1), matrix),
        "cumsum": (lambda x: x.cumsum(1), matrix),
        "softmax": (lambda x: x.softmax(-1), matrix),
        "log_softmax": (lambda x: x.log_softmax(-1), matrix),
        "layer_norm": (nn.LayerNorm(768), tokens),
        "rms_norm": (nn.RMSNorm(768), tokens),
        "batch_norm": (nn.BatchNorm2d(64).eval(), image),
        "group_norm": (nn.GroupNorm(8, 64), image),
        "topk": (lambda x: x.topk(8, -1), matrix),
        "topk_wide": (lambda x: x.topk(50, -1), normal(8, 32000)),
        "sort": (lambda x: x.sort(-1).values, matrix),
        "embedding": (nn.Embedding(1024, 768), rows),
        "gather": (lambda x, i: x.gather(1, i), matrix, torch.randint(0, 1024, (1024, 256))),
        "index_select": (lambda x, i: x.index_select(0, i), matrix, rows),
        "concat": (lambda x, y: torch.cat([x, y], 1), matrix, normal(1024, 1024)),
        "pad": (lambda x: F.pad(x, (1, 1, 1, 1)), image),
        "max_pool": (nn.MaxPool2d(3, 2, 1), image),
        "avg_pool": (nn.AvgPool2d(2), image),
        "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(4, 32, 28, 28)),
        "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), normal(4, 32, 28, 28)),
        "matmul": (torch.matmul, normal(512, 512), normal(512, 512)),
        "linear": (nn.Linear(768, 768), tokens),
        "linear_one": (nn.Linear(2048, 2048), normal(1, 2048)),
        "bmm": (torch.bmm, normal(96, 128, 64), normal(96, 64, 128)),
        "conv3x3": (nn.Conv2d(64, 64, 3, padding=1), normal(2, 64, 56, 56)),
        "conv1x1": (nn.Conv2d(64, 256, 1), normal(2, 64, 56, 56)),
        "attention": (F.scaled_dot_product_attention, *(normal(2, 12, 256, 64) for _ in range(3))),
        "causal": (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            *(normal(2, 12, 256, 64) for _ in range(3)),
        ),
    }


class Block(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.down = None
        if stride > 1:
            self.down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for inner, outer, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
            layers += [Block(inner, outer, stride), Block(outer, outer, 1)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(512, 1000)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class Layer(nn.Module):
    """A layer of an encoder: with norms before (ViT) or after (BERT) its parts."""

    def __init__(self, width, heads, is_pre):
        super().__init__()
        self.heads, self.is_pre = heads, is_pre
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width))

    def feed(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        if self.is_pre:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class ViT(nn.Module):
    def __init__(self, width=384, layers=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 197, width))
        self.layers = nn.Sequential(*(Layer(width, 6, True) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.layers(x)[:, 0])


class Bert(nn.Module):
    def __init__(self, width=768, layers=3):
        super().__init__()
        self.words, self.positions = nn.Embedding(8000, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width, 12, False) for _ in range(layers)))
        self.pool = nn.Linear(width, width)

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))
        return torch.tanh(self.pool(self.layers(x)[:, 0]))


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, cos, sin):
        b, n, width = x.shape
        y = self.norm1(x)
        q, k, v = (
            f(y).view(b, n, h, self.size).transpose(1, 2)
            for f, h in [(self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)]
        )
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width=1024, layers=3, tokens=128):
        super().__init__()
        self.words = nn.Embedding(8000, width)
        self.layers = nn.ModuleList(LlamaLayer(width, 16, 4, 2816) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 8000, bias=False)
        angles = torch.outer(torch.arange(tokens), 10000 ** (-torch.arange(0, 64, 2) / 64.0))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, self.cos[: ids.shape[1]], self.sin[: ids.shape[1]])
        return self.head(self.norm(x))


def models():
    words = lambda n: torch.randint(0, 8000, (1, n))
    return {
        "ResNet-18": (ResNet18(), torch.randn(1, 3, 224, 224)),
        "ViT": (ViT(), torch.randn(1, 3, 224, 224)),
        "BERT": (Bert(), words(128)),
        "Llama": (Llama(), words(128)),
        "Llama, one token": (Llama(), words(1)),
    }


def open_session(module, arguments):
    """A session with bound inputs, and its outputs."""
    exported = torch.export.export(module, arguments)
    program = symmc.from_exported(exported)
    if program.opaque:
        raise RuntimeError(f"opaque: {program.opaque}")
    plan = symmc.compile(program, ranks=1, machine="host")
    session = symmc.Session(plan, symmc.Group.threads(1)[0])
    tensors = {**exported.state_dict, **exported.constants}
    parameters = program.parameters(0)
    for value in session.parameters():
        tensor = tensors.get(value.source)
        if tensor is None:
            tensor = torch.from_dlpack(parameters[value.name])
        session.bind(value.name, tensor.detach().contiguous())
    for value, tensor in zip(session.inputs(), arguments):
        session.bind(value.name, tensor)
    outputs = []
    for i, value in enumerate(session.outputs()):
        outputs.append(torch.empty(value.shape, dtype=getattr(torch, NAMES[value.dtype])))
        session.bind(f"out.{i}", outputs[-1])
    return session, outputs


NAMES = {
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "bool": "bool",
    "u8": "uint8",
}


def fastest(call, count):
    best = float("inf")
    for _ in range(count):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def measure(name, module, arguments, rounds):
    module = module if isinstance(module, nn.Module) else Function(module)
    module.eval()
    session, outputs = open_session(module, arguments)
    eager = lambda: module(*arguments)
    session.run()
    expected = eager()
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    for found, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    # Pairs of times in turn; a call of each warms up.
    count = [max(2, int(BATCH_SECONDS / max(fastest(call, 3), 1e-7))) for call in (session.run, eager)]
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(fastest(session.run, count[0]))
        theirs.append(fastest(eager, count[1]))
    session.close()
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    middle = statistics.median(ratios)
    show = lambda times: f"{statistics.median(times) * 1e6:10.1f}"
    print(f"{name:20} {show(ours)} {show(theirs)} {middle:7.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}", flush=True)
    return middle


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("patterns", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--operators", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{'program':20} {'symmc µs':>10} {'eager µs':>10} {'ratio':>7}   smallest to largest")
    with torch.no_grad():
        for table, skipped in [(operators, chosen.models), (models, chosen.operators)]:
            if skipped:
                continue
            ratios = []
            for name, (module, *arguments) in table().items():
                if chosen.patterns and not any(fnmatch.fnmatch(name, p) for p in chosen.patterns):
                    continue
                try:
                    ratios.append(measure(name, module, tuple(arguments), chosen.rounds))
                except Exception as error:
                    print(f"{name:20} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if len(ratios) > 1:
                print(f"{'median of ' + str(len(ratios)):20} {'':21} {statistics.median(ratios):7.2f}")


if __name__ == "__main__":
    main()
