#!/usr/bin/env python3
"""Checks tensors of more than 2^31 elements and more than 2^32 bytes on GPUs.

    python3 tests/gpu/large.py [--symmc PATH] [--gpus 0,0] [--only REGEX]

Functions run under `torch.compile(backend="symmc")` on the first GPU, and their results are compared with eager's: element-wise
operators, movement, indexing, scatter, reductions, norms, products and attention. Then, where PATH names the command, programs
with one collective run on two ranks, on the GPUs of `--gpus`. Their operands are functions of the index and the rank, and the program
itself counts the elements of the result that are not what they must be. Each collective runs by each variant; on one GPU those of
NCCL are left out, since it refuses two ranks there. One line for each check. Needs PyTorch, the package symmc, and a GPU with 140 GB.
"""

import argparse
import gc
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

warnings.filterwarnings("ignore")

import torch

# More than 2^31 elements of two bytes as rows, and more than 2^32 elements of one byte.
COLUMNS = 4096
ROWS = 2**19 + 3
LONG = 2**32 + 4104

CASES = {}


def case(tolerance=0.0):
    """Registers a function that returns a function and its operands. Tolerances are relative to the largest magnitude."""

    def register(make):
        CASES[make.__name__.replace("_", " ")] = (make, tolerance)
        return make

    return register


def drawn(*shape, dtype=torch.bfloat16, scale=1.0):
    """Random numbers, drawn piece by piece so that no wider copy of the tensor exists."""
    x = torch.empty(shape, dtype=dtype, device="cuda")
    flat = x.view(-1)
    for piece in flat.split(1 << 28):
        if dtype.is_floating_point:
            piece.copy_(torch.randn(piece.shape, dtype=torch.float32, device="cuda") * scale)
        else:
            piece.copy_(torch.randint(0, 100, piece.shape, dtype=torch.uint8, device="cuda"))
    return x


def rows(**options):
    return drawn(ROWS, COLUMNS, **options)


# Element by element.
@case()
def element_wise_bf16():
    return lambda x: (x * 3 + 1, x > 0.5), [rows()]


@case()
def element_wise_u8():
    return lambda x: (x ^ 85) + 1, [drawn(LONG, dtype=torch.uint8)]


@case()
def element_wise_f32():
    return lambda x: x * 3 + 1, [drawn(2**30 + 1028, dtype=torch.float32)]


@case()
def cast_to_f32():
    return lambda x: x.float(), [rows()]


@case()
def broadcast_rows_and_columns():
    return lambda x, r, c: x * c + r, [rows(), drawn(COLUMNS), drawn(ROWS, 1)]


@case()
def odd_sizes():
    return lambda x: x * 3 + 1, [drawn(2**31 + 7)]


@case()
def where_of_index():
    return lambda x: torch.where(torch.arange(x.shape[0], device=x.device) % 3 == 0, x, -x), [drawn(2**31 + 7)]


# Movement.
@case()
def transpose():
    return lambda x: x.t().contiguous(), [rows()]


@case()
def permute_of_three_axes():
    return lambda x: x.view(-1, 64, 64).permute(2, 0, 1).contiguous(), [rows()]


@case()
def concat_of_rows():
    return lambda x, y: torch.cat([x, y]), [drawn(2**18 + 1, COLUMNS), drawn(2**18 + 5, COLUMNS)]


@case()
def concat_of_columns():
    return lambda x, y: torch.cat([x, y], dim=1), [drawn(ROWS, 2048), drawn(ROWS, 2048)]


@case()
def last_rows():
    return lambda x: x[-5:] * 2, [rows()]


@case()
def every_second_row():
    return lambda x: x[1::2] * 2, [rows()]


@case()
def pad():
    return lambda x: torch.nn.functional.pad(x, (1, 0, 2, 1)), [rows()]


@case()
def flip():
    return lambda x: x.flip(0), [rows()]


@case()
def roll():
    return lambda x: x.roll(1, 1), [rows()]


@case()
def expand():
    return lambda x: x[:, None].expand(-1, 33, -1) + 1, [drawn(2**14, COLUMNS)]


# Indexing and scatter.
def last_indices(n, count):
    """Indices over the whole extent, with the last ones in front."""
    random = torch.randint(0, n, (count,), device="cuda")
    random[:3] = torch.tensor([n - 1, n - 2, 0], device="cuda")
    return random


@case()
def take_few_rows():
    return lambda x, at: torch.nn.functional.embedding(at, x), [rows(), last_indices(ROWS, 1000)]


@case()
def take_many_rows():
    return lambda x, at: x[at], [drawn(1000, COLUMNS), last_indices(1000, ROWS)]


@case()
def take_columns():
    return lambda x, at: x.index_select(1, at), [rows(), last_indices(COLUMNS, 77)]


@case()
def take_elements():
    return lambda x, at: x[at], [drawn(LONG, dtype=torch.uint8), last_indices(LONG, 100_000)]


@case()
def gather_columns():
    return lambda x, at: x.gather(1, at), [rows(), last_indices(COLUMNS, ROWS * 2).view(ROWS, 2)]


@case()
def gather_many():
    return lambda x, at: x.gather(1, at), [rows(), torch.randint(0, COLUMNS, (ROWS, COLUMNS), device="cuda")]


@case()
def two_indices():
    return lambda x, r, c: x[r, c], [rows(), last_indices(ROWS, 5000), last_indices(COLUMNS, 5000)]


@case()
def index_put():
    at = torch.randperm(ROWS, device="cuda")[:1000]
    at[0] = ROWS - 1 if not (at == ROWS - 1).any() else at[0]
    return lambda x, at, y: x.index_put((at,), y), [rows(), at, drawn(1000, COLUMNS)]


@case()
def index_add():
    at = torch.randperm(ROWS, device="cuda")[:1000]
    return lambda x, at, y: x.index_add(0, at, y), [rows(), at, drawn(1000, COLUMNS)]


@case()
def scatter_of_columns():
    at = torch.randint(0, COLUMNS, (ROWS, 1), device="cuda")
    return lambda x, at, y: x.scatter(1, at, y), [rows(), at, drawn(ROWS, 1)]


@case()
def scatter_add_of_elements():
    at = torch.randperm(1 << 20, device="cuda") * 4099 % LONG
    return lambda x, at, y: x.scatter_add(0, at, y), [drawn(LONG, dtype=torch.uint8), at, drawn(1 << 20, dtype=torch.uint8)]


@case()
def change_in_place():
    def function(x, at, y):
        x = x.clone()
        x[at] = y
        return x

    at = torch.tensor([ROWS - 1, 5], device="cuda")
    return function, [rows(), at, drawn(2, COLUMNS)]


# Reductions and order.
@case(1e-5)
def sum_of_all():
    return lambda x: x.float().sum(), [rows()]


@case()
def sum_of_all_u8():
    return lambda x: x.sum(), [drawn(LONG, dtype=torch.uint8)]


@case(1e-2)
def sum_of_rows():
    return lambda x: x.sum(1), [rows()]


@case(1e-2)
def sum_of_columns():
    return lambda x: x.sum(0), [rows()]


@case(1e-2)
def mean_and_variance():
    return lambda x: (x.mean(1), x.var(1)), [rows()]


@case()
def largest_of_all():
    def make():
        x = rows()
        x[-1, -2] = 1000.0
        return x

    return lambda x: (x.amax(), x.argmax(), x.view(-1).amin(), (x > 999).any()), [make()]


@case()
def largest_of_rows_and_columns():
    return lambda x: (x.amax(1), x.argmax(1), x.amin(0), x.argmin(0)), [rows()]


@case()
def cumulative_sum_of_integers():
    return lambda x: x.cumsum(1), [drawn(2**19 + 1, 4096 // 2, dtype=torch.uint8)]


@case(2e-2)
def softmax():
    return lambda x: torch.softmax(x, -1), [rows()]


@case(2e-2)
def softmax_of_columns():
    return lambda x: torch.softmax(x, 0), [rows()]


@case(2e-2)
def layer_norm():
    return lambda x, w, b: torch.nn.functional.layer_norm(x, (COLUMNS,), w, b), [rows(), drawn(COLUMNS), drawn(COLUMNS)]


@case(2e-2)
def rms_norm():
    return lambda x, w: torch.nn.functional.rms_norm(x + 1, (COLUMNS,), w), [rows(), drawn(COLUMNS)]


@case()
def topk_of_rows():
    return lambda x: x.topk(4, dim=-1)[0], [drawn(2**25 + 3, 64)]


@case()
def sort_of_rows():
    return lambda x: x.sort(dim=-1)[0], [drawn(2**19 + 3, 4096)]


# Products. K is small where the results are large, and the reverse.
@case(2e-2)
def product_of_many_rows():
    return lambda x, w: x @ w, [rows(), drawn(COLUMNS, 64, scale=0.02)]


@case(2e-2)
def product_with_a_large_result():
    return lambda x, w: x @ w, [drawn(2**16 + 8, 64), drawn(64, 2**15 + 8)]


@case(2e-2)
def linear_with_a_large_result():
    return lambda x, w, b: torch.nn.functional.linear(x, w, b), [drawn(2**16 + 8, 64), drawn(2**15 + 8, 64), drawn(2**15 + 8)]


@case(2e-2)
def linear_and_activation():
    function = lambda x, w, b: torch.nn.functional.silu(torch.nn.functional.linear(x, w, b)) * 2
    return function, [drawn(2**16 + 8, 64), drawn(2**15 + 8, 64), drawn(2**15 + 8)]


@case(2e-2)
def skinny_product_of_a_large_weight():
    return lambda x, w: x @ w.t(), [drawn(3, 16384), drawn(131080, 16384, scale=0.01)]


@case(2e-2)
def one_row_and_a_large_weight():
    return lambda x, w, b: torch.nn.functional.linear(x, w, b), [drawn(1, 16384), drawn(131080, 16384, scale=0.01), drawn(131080)]


@case(2e-2)
def product_with_large_k():
    return lambda x, y: x.t() @ y, [drawn(2**25 + 8, 64, scale=0.01), drawn(2**25 + 8, 64, scale=0.01)]


@case(1e-4)
def product_f32():
    return lambda x, w: x @ w, [drawn(2**15 + 8, 32, dtype=torch.float32), drawn(32, 2**15 + 8, dtype=torch.float32)]


@case(2e-2)
def batched_product():
    return lambda x, y: x @ y, [drawn(70_000, 128, 256), drawn(70_000, 256, 64, scale=0.1)]


@case(2e-2)
def grouped_product():
    ends = torch.tensor([1000, 200_000, 300_000, ROWS - 5], dtype=torch.int32, device="cuda")

    def function(x, w, ends):
        return torch._grouped_mm(x, w, offs=ends)[: ROWS - 5]

    return function, [rows(scale=0.1), drawn(4, COLUMNS, 64, scale=0.1), ends]


# Attention.
def heads(batch, count, length, width=128):
    return drawn(batch, count, length, width)


attend = torch.nn.functional.scaled_dot_product_attention


@case(2e-2)
def attention_of_many_heads():
    return lambda q, k, v: attend(q, k, v, is_causal=True), [heads(513, 32, 1024) for _ in range(3)]


@case(2e-2)
def attention_of_long_rows():
    return lambda q, k, v: attend(q, k, v, is_causal=True), [heads(1, 33, 2**19), heads(1, 33, 512), heads(1, 33, 512)]


@case(2e-2)
def attention_of_one_row():
    return lambda q, k, v: attend(q, k, v), [heads(17, 8, 1), heads(17, 8, 2**17), heads(17, 8, 2**17)]


@case(2e-2)
def attention_with_a_large_mask():
    mask = drawn(1, 1, 46_344, 46_344, dtype=torch.uint8) > 50
    return lambda q, k, v, m: attend(q, k, v, attn_mask=m), [heads(1, 2, 46_344, 64) for _ in range(3)] + [mask]


@case(4e-2)
def gradients_of_attention():
    def function(q, k, v, g):
        return torch.autograd.grad(attend(q, k, v, is_causal=True), (q, k, v), g)

    q, k, v, g = (heads(513, 32, 1024) for _ in range(4))
    return function, [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), g]


def pieces(x):
    return x.reshape(-1).split(1 << 27)


def distance(found, expected):
    """The largest difference, relative to the largest magnitude; for integers and bool 1 if any element differs."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
    largest, scale = 0.0, 0.0
    for a, b in zip(pieces(found), pieces(expected)):
        if torch.equal(a, b):
            continue
        if not a.dtype.is_floating_point:
            return 1.0
        a, b = a.float(), b.float()
        if not torch.equal(a.isnan(), b.isnan()):
            return float("nan")
        largest = max(largest, (a - b).abs().nan_to_num().max().item())
    if largest == 0.0:
        return 0.0
    for b in pieces(expected):
        scale = max(scale, b.float().abs().max().item())
    return largest / scale


def tuple_of(results):
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def check_function(make, tolerance):
    import symmc.torch

    torch.manual_seed(0)
    function, operands = make()
    has_gradient = any(x.requires_grad for x in operands)
    with torch.enable_grad() if has_gradient else torch.no_grad():
        options = {"fallback": "error"}
        compiled = torch.compile(function, backend=symmc.torch.backend, dynamic=False, options=options)
        found = tuple_of(compiled(*operands))
        torch.cuda.synchronize()
        expected = tuple_of(function(*operands))
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        d = distance(a.detach(), b.detach())
        if not isinstance(d, float) or not d <= tolerance:
            return f"FAILED: distance {d}, at most {tolerance}"
        worst = max(worst, d)
    return f"ok, distance {worst:.1e}"


HEADER = """program "large" ranks 2
group @all world
arg %salt: i64[1]
%positions: i64[2] = iota start=0 step=1
%rank: i64[1] = shard %positions axis=0 group=@all
%small: i64[1] = rem %salt, 5
"""


class Text:
    """The text of a program of two ranks. A number is a function of an index and of a rank: `(index * 40503 + rank * 977) mod 53`."""

    def __init__(self):
        self.lines = [HEADER]
        self.count = 0

    def add(self, shape, dtype, expression):
        self.count += 1
        self.lines.append(f"%v{self.count}: {dtype}[{shape}] = {expression}\n")
        return f"%v{self.count}"

    def index(self, n):
        return self.add(n, "i64", "iota start=0 step=1")

    def number(self, n, dtype, index, rank):
        """The numbers of these indices on that rank: either a constant or a value of `i64[1]` or `i64[n]`."""
        scaled = self.add(n, "i64", f"mul {index}, 40503")
        if isinstance(rank, int):
            moved = self.add(n, "i64", f"add {scaled}, {rank * 977}")
        else:
            extent = "1" if rank == "%rank" else n
            offset = self.add(extent, "i64", f"mul {rank}, 977")
            moved = self.add(n, "i64", f"add {scaled}, {offset}")
        salted = self.add(n, "i64", f"add {moved}, %small")
        return self.add(n, dtype, f"cast {self.add(n, 'i64', f'rem {salted}, 53')}")

    def finish(self, n, found, expected):
        differs = self.add(n, "bool", f"ne {found}, {expected}")
        count = self.add("1", "i64", f"reduce {differs} op=sum axes=[0] keep=true")
        total = self.add("1", "i64", f"reduce {self.add(n, 'i64', f'cast {found}')} op=sum axes=[0] keep=true")
        return "".join(self.lines) + f"return {count}, {total}\n"


PROGRAMS = {}


def program(function):
    """Registers a function that adds a collective to a text. It returns the names of the result and of the expected value."""
    PROGRAMS[function.__name__.replace("_by_rows", " by rows")] = function
    return function


def all_reduce(op, combine):
    def add(t, n, dtype, via):
        at = t.index(n)
        found = t.add(n, dtype, f"all_reduce {t.number(n, dtype, at, '%rank')} op={op} group=@all via={via}")
        first, second = (t.number(n, dtype, at, rank) for rank in (0, 1))
        return found, t.add(n, dtype, f"{combine} {first}, {second}")

    return add


PROGRAMS["all_reduce sum"] = all_reduce("sum", "add")
PROGRAMS["all_reduce max"] = all_reduce("max", "max")


@program
def all_gather(t, n, dtype, via):
    half = n // 2
    found = t.add(n, dtype, f"all_gather {t.number(half, dtype, t.index(half), '%rank')} group=@all via={via}")
    at = t.index(n)
    return found, t.number(n, dtype, t.add(n, "i64", f"rem {at}, {half}"), t.add(n, "i64", f"floor_div {at}, {half}"))


@program
def reduce_scatter(t, n, dtype, via):
    operand = t.number(2 * n, dtype, t.index(2 * n), "%rank")
    found = t.add(n, dtype, f"reduce_scatter {operand} op=sum group=@all via={via}")
    own = t.add(n, "i64", f"add {t.index(n)}, {t.add('1', 'i64', f'mul %rank, {n}')}")
    return found, t.add(n, dtype, f"add {t.number(n, dtype, own, 0)}, {t.number(n, dtype, own, 1)}")


@program
def all_to_all(t, n, dtype, via):
    at, half = t.index(n), n // 2
    found = t.add(n, dtype, f"all_to_all {t.number(n, dtype, at, '%rank')} splits=even group=@all via={via}")
    within = t.add(n, "i64", f"rem {at}, {half}")
    own = t.add(n, "i64", f"add {within}, {t.add('1', 'i64', f'mul %rank, {half}')}")
    return found, t.number(n, dtype, own, t.add(n, "i64", f"floor_div {at}, {half}"))


@program
def all_to_all_by_rows(t, n, dtype, via):
    """Rank 0 keeps 3 rows, and rank 1 the last 3: both receive as many as they send."""
    at, rows, width = t.index(n), n // COLUMNS, COLUMNS
    operand = t.add(f"{rows}, {width}", dtype, f"reshape {t.number(n, dtype, at, '%rank')}")
    first = t.add("1", "i64", f"add {t.add('1', 'i64', f'mul %rank, {rows - 6}')}, 3")
    rest = t.add("1", "i64", f"sub {rows}, {first}")
    counts = t.add("2", "i64", f"concat {first}, {rest} axis=0")
    results = f"%packed: {dtype}[{rows}, {width}], %received: i64[2]"
    t.lines.append(f"{results} = all_to_all {operand}, {counts} splits=device group=@all via={via}\n")
    # The rows of rank 0 begin at 0 and at 3, and those of rank 1 follow after 3 and rows - 3 rows.
    border = t.add("1", "i64", f"mul {first}, {width}")
    start = t.add("1", "i64", f"mul %rank, {3 * width}")
    start_of_second = t.add("1", "i64", f"mul %rank, {(rows - 3) * width}")
    second = t.add("1", "i64", f"sub {start_of_second}, {border}")
    is_second = t.add(n, "bool", f"ge {at}, {border}")
    source = t.add(n, "i64", f"add {at}, {t.add(n, 'i64', f'select {is_second}, {second}, {start}')}")
    return t.add(n, dtype, "reshape %packed"), t.number(n, dtype, source, t.add(n, "i64", f"cast {is_second}"))


@program
def broadcast(t, n, dtype, via):
    at = t.index(n)
    found = t.add(n, dtype, f"broadcast {t.number(n, dtype, at, '%rank')} root=1 group=@all via={via}")
    return found, t.number(n, dtype, at, 1)


@program
def permute_ranks(t, n, dtype, via):
    at = t.index(n)
    operand = t.number(n, dtype, at, "%rank")
    found = t.add(n, dtype, f"permute_ranks {operand} pairs=[0->1, 1->0] group=@all via={via}")
    other = t.add("1", "i64", "sub 1, %rank")
    return found, t.number(n, dtype, at, t.add(n, "i64", f"expand {other}"))


def experts(results, op):
    """Each token goes to one expert and returns as it was."""

    def add(t, n, dtype, via):
        tokens, width = n // COLUMNS, COLUMNS
        numbers = t.number(n, dtype, t.index(n), "%rank")
        x = t.add(f"{tokens}, {width}", dtype, f"reshape {numbers}")
        drawn_ids = t.add(2 * tokens, "i64", f"rem {t.add(2 * tokens, 'i64', f'mul {t.index(2 * tokens)}, 40503')}, 8")
        ids = t.add(f"{2 * tokens}, 1", "i64", f"reshape {drawn_ids}")
        rows = f"{dtype}[{tokens}, {width}]"
        t.lines.append(
            f"%mine: i64[{tokens}, 1], %everyone: i64[{2 * tokens}, 1], %slots: i64[{2 * tokens}], %counts: i64[4], %ends: i64[4] = "
            f"route {ids} experts=8 align=1 layout=expert group=@all\n"
            f"%sent: {dtype}[{2 * tokens}, {width}] = dispatch_rows {x}, %slots, %everyone group=@all via=pull\n"
            f"%combined: {rows}{results.format(tokens=tokens, width=width)} = {op} group=@all via={via}\n"
        )
        return t.add(n, dtype, "reshape %combined"), numbers

    return add


PROGRAMS["combine_rows"] = experts("", "combine_rows %sent, %mine")
PROGRAMS["reduce_rows"] = experts(", %sums: f32[{tokens}, {width}]", "reduce_rows %sent, %everyone")


def collective_program(kind, dtype, n, via):
    """A program that ends with the number of wrong elements of a collective's result of `n` elements, and their sum."""
    t = Text()
    return t.finish(n, *PROGRAMS[kind](t, n, dtype, via))


# Without `ll`, which is for few bytes.
VARIANTS = {
    "all_reduce sum": ["one_shot", "two_shot", "plain", "nccl_window"],
    "all_reduce max": ["one_shot", "two_shot", "plain"],
    "all_gather": ["pull", "push", "copies", "pull_copies", "plain", "nccl_window", "copy_engine"],
    "reduce_scatter": ["pull", "plain", "nccl_window"],
    "all_to_all": ["pull", "push", "copies", "pull_copies", "plain", "copy_engine"],
    "all_to_all by rows": ["pull", "plain"],
    "broadcast": ["put", "plain"],
    "permute_ranks": ["put", "plain"],
    "combine_rows": ["pull"],
    "reduce_rows": ["push"],
}
OF_NCCL = ("plain", "nccl_window", "copy_engine")
# The number of elements of a result for each dtype: more than 2^31 of two bytes, more than 2^32 of one.
SIZES = {"bf16": ROWS * COLUMNS + COLUMNS, "u8": LONG // COLUMNS * COLUMNS + 2 * COLUMNS, "f32": 2**30 + 2 * COLUMNS}


PROFILE = pathlib.Path(__file__).parents[2] / "ir/src/machine/h200x2.json"


def preferring(kind, via):
    """The profile of two H200s, on which everything but this variant of a collective takes a thousand times longer."""
    profile = json.loads(PROFILE.read_text())
    kept = {(kind, via), ("dispatch_rows", "pull")}
    for curve in profile["curves"]:
        if (curve["collective"], curve["variant"]) not in kept:
            curve["points"] = [[size, 1000 * us] for size, us in curve["points"]]
    return profile


def check_collective(symmc, folder, kind, dtype, via, gpus):
    from safetensors.torch import load_file

    n = SIZES[dtype]
    program, result, machine = folder / "large.symm", folder / "result.safetensors", folder / "machine.json"
    machine.write_text(json.dumps(preferring(kind.split()[0], via)))
    program.write_text(collective_program(kind, dtype, n, via))
    command = [symmc, "run", program, "--backend", "cuda", "--gpus", gpus, "--machine", machine, "--seed", "3"]
    command += ["--draw", "shared", "--timeout", "120", "--compare", "none", "--output", result]
    if "nccl_window" in via or via == "copy_engine":
        command += ["--arena", "nccl"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        return "FAILED: " + " | ".join((ended.stderr or ended.stdout).strip().splitlines()[-3:])
    if f" as {via}" not in ended.stdout + ended.stderr:
        return f"FAILED: another variant ran: {(ended.stdout + ended.stderr).splitlines()[-1]}"
    tensors = load_file(result)
    wrong = [tensors[f"rank{rank}.out.0"].item() for rank in (0, 1)]
    sums = [tensors[f"rank{rank}.out.1"].item() for rank in (0, 1)]
    if any(wrong) or not all(sums):
        return f"FAILED: {wrong} elements of {n} are wrong, sums {sums}"
    return f"ok, sums {sums}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symmc", help="the command, for collectives")
    parser.add_argument("--gpus", default="0,0", help="the GPUs of the two ranks (default: 0,0)")
    parser.add_argument("--only", default="", help="run the checks whose names match this regular expression")
    arguments = parser.parse_args()
    failed = count = 0

    def report(name, check):
        nonlocal failed, count
        if not re.search(arguments.only, name):
            return
        count += 1
        start = time.monotonic()
        try:
            verdict = check()
        except Exception as error:  # Every check is reported, whatever fails.
            lines = [line for line in str(error).splitlines() if line.strip()]
            verdict = f"FAILED: {type(error).__name__}: {' | '.join(lines[:3])}"
        failed += verdict.startswith("FAILED")
        print(f"{name:<44} {time.monotonic() - start:5.1f} s  {verdict[:600]}", flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()

    for name, (make, tolerance) in CASES.items():
        report(name, lambda: check_function(make, tolerance))
    if arguments.symmc:
        one_gpu = len(set(arguments.gpus.split(","))) == 1
        with tempfile.TemporaryDirectory() as folder:
            for kind, variants in VARIANTS.items():
                for via in variants:
                    if one_gpu and via in OF_NCCL:
                        continue
                    for dtype in ("bf16", "f32") if kind in ("combine_rows", "reduce_rows") else SIZES:
                        # The indices of two ranks that reduce more than 2^32 elements do not fit one GPU.
                        if one_gpu and dtype == "u8" and "reduce" in kind:
                            continue
                        name = f"{kind}, {via}, {dtype}"
                        report(name, lambda: check_collective(arguments.symmc, pathlib.Path(folder), kind, dtype, via, arguments.gpus))
    print(f"{count} checks, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
