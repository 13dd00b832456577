#!/usr/bin/env python3
"""Compares operators in f16 and bf16 with eager: `python3 tests/coverage/narrow.py [PATTERN...] [OPTIONS]`.

The calls are PyTorch's samples of ops (`torch_samples.py`), of ops over lists of tensors, and FUNCTIONS; for ONNX its own tests of
operators (`onnx_nodes.py`). PATTERNs are regular expressions of their names. Each call runs with several draws of numbers by each door:

- compile: `torch.compile(backend="symmc")` with nothing left to the fallback, and its gradients;
- exported: a program of `torch.export` as it is saved, without decompositions;
- onnx: a model of one node.

Numbers are drawn as the samples have them, and scaled so that the largest is near the limit of the dtype or subnormal. Reductions run
on MANY elements too. The result of the same call in f64 is the truth. A call is wrong if a result is not finite where eager's and the
truth are, or if its distance from the truth, over all draws, exceeds FACTOR times the distance of eager's. ONNX has no eager: the
reference computes in f32 and rounds once.

The last lines count the calls of each door and dtype: ok, refused, wrong, apart (APART has the reasons). Exit code 1 if any is wrong.
Needs the packages torch, numpy, symmc, and onnx for its door.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import itertools
import math
import os
import pathlib
import re
import sys
import tempfile
import warnings

from torch_samples import TIES, apart, flat, in_double, leaves, rebuilt

FACTOR = 1.05
"""The largest ratio of two distances from the truth."""

SLACK = 0.01
"""The distance that is added to the allowed one, in roundings of the dtype: draws are samples."""

MANY = 70_000

DRAWS = {"ordinary": 20, "large": 3, "small": 3, "many": 1}
"""The number of draws for each size of numbers."""

AGAIN = 8
"""How many times as often a call is drawn if its distance is too large: a few elements may outweigh all others."""

DTYPES = ("float16", "bfloat16")
DOORS = ("compile", "exported", "onnx")

APART = {
    r"^\w+ (\w+\.)*(byte|char|short|int|long)#\d+ \w+ large": "conversions of floats beyond the range of the integers are not defined",
    r"^(compile|exported) (std|var)\S* \w+ (large|small)": "PyTorch squares in f64 on CPUs, and in f32 on GPUs, as symmc does",
    r"attention\S* \w+ large": "scores or sums of values exceed f32, and the kernels add them in another order",
    r"^compile \S*(linear|conv|addmm|addmv|baddbmm)\S* bfloat16 large": "sums of products exceed f32, and the kernels add them in another order",
    r"^compile addcdiv#": "Dynamo replaces `torch.addcdiv` with a `value` by three operators, and each rounds",
    r"^onnx \S*(rms_normalization|rotary_embedding)": "ONNX defines the operator with a rounding before the product with the weight",
}
"""Results that may be further away, as patterns of `door name dtype size`, with the reason."""

NO_DIGITS = 0.25
"""Results of eager that are this far from the truth say nothing."""

REDUCTIONS = r"(norm|var|std|mean|sum|softmax|logsumexp|normalize|cosine|distance|dist|loss|prod|cross_entropy|count|total)"


def functions():
    """Compositions that PyTorch's samples lack: a name, the function, and a function that draws its operands."""
    for name, function, shapes in compositions():
        yield name, function, lambda dtype, shapes=shapes: normal(shapes, dtype)
    for name, function, shapes, axis in sums():
        yield f"cancelling_{name}", function, lambda dtype, f=function, shapes=shapes, axis=axis: with_bias(f, shapes, axis, dtype)


def normal(shapes, dtype):
    import torch

    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


def with_bias(function, shapes, axis, dtype):
    """Two operands, and a bias that cancels their product: at one position for each channel, or everywhere without an axis."""
    factors = normal(shapes, dtype)
    product = function(*[t.double() for t in factors], None)
    bias = product if axis is None else product.movedim(axis, 0).flatten(1)[:, 0]
    return [*factors, (-1.01 * bias).to(dtype).contiguous()]


def sums():
    """Products with a bias: a name, the function, the shapes of its factors, and the axis of the bias in the product."""
    import torch
    import torch.nn.functional as F

    def addmm(x, w, b, **scales):
        return x @ w * scales.get("alpha", 1) / scales.get("beta", 1) if b is None else torch.addmm(b, x, w, **scales)

    def baddbmm(x, w, b, **scales):
        return x @ w * scales.get("alpha", 1) / scales.get("beta", 1) if b is None else torch.baddbmm(b, x, w, **scales)

    yield "linear", F.linear, [(3, 64), (8, 64)], -1
    yield "linear_of_vector", F.linear, [(64,), (8, 64)], None
    yield "linear_of_batches", F.linear, [(2, 3, 64), (8, 64)], -1
    yield "conv1d", F.conv1d, [(2, 16, 9), (6, 16, 3)], 1
    yield "conv2d", F.conv2d, [(1, 8, 5, 5), (6, 8, 3, 3)], 1
    yield "conv2d_of_groups", lambda x, w, b: F.conv2d(x, w, b, padding=1, groups=2), [(1, 8, 5, 5), (6, 4, 3, 3)], 1
    yield "conv3d", F.conv3d, [(1, 4, 4, 4, 4), (6, 4, 3, 3, 3)], 1
    yield "conv_transpose1d", F.conv_transpose1d, [(1, 16, 5), (16, 6, 3)], 1
    yield "conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2), [(1, 8, 4, 4), (8, 6, 3, 3)], 1
    yield "conv_transpose3d", F.conv_transpose3d, [(1, 4, 3, 3, 3), (4, 6, 2, 2, 2)], 1
    yield "addmm", addmm, [(4, 64), (64, 8)], None
    yield "addmm_of_vector", addmm, [(4, 64), (64, 8)], -1
    yield "addmm_scaled", lambda x, w, b: addmm(x, w, b, beta=0.5, alpha=3), [(4, 64), (64, 8)], None
    yield "addmv", lambda w, x, b: w @ x if b is None else torch.addmv(b, w, x), [(8, 64), (64,)], None
    yield "baddbmm", baddbmm, [(2, 4, 64), (2, 64, 8)], None
    yield "baddbmm_scaled", lambda x, w, b: baddbmm(x, w, b, beta=2, alpha=-1), [(2, 4, 64), (2, 64, 8)], None
    yield "addbmm", lambda x, w, b: (x @ w).sum(0) if b is None else torch.addbmm(b, x, w), [(2, 4, 64), (2, 64, 8)], None


def compositions():
    """A name, the function, and the shapes of its operands."""
    import torch
    import torch.nn.functional as F

    mask = torch.ones(5, 7, dtype=torch.bool).tril(1)
    places, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 3, 6])
    classes, weights = torch.tensor([1, 0, 4, -100]), torch.linspace(0.1, 1.3, 6).bfloat16()

    def clipped(x, y):
        total = torch.nn.utils.get_total_norm([x, y])
        return x * (1.0 / (total + 1e-6)).clamp(max=1.0), y * (1.0 / (total + 1e-6)).clamp(max=1.0)

    def trained(x, weight, bias):
        return F.batch_norm(x, None, None, weight, bias, training=True)

    def evaluated(x, weight, bias, mean):
        return F.batch_norm(x, mean.detach(), mean.detach().abs() + 0.5, weight, bias)

    yield "get_total_norm", lambda x, y: torch.nn.utils.get_total_norm([x, y]), [(64,), (32, 3)]
    yield "clip_grad_norm", clipped, [(64,), (32, 3)]
    yield "batch_norm_training", trained, [(16, 5, 4), (5,), (5,)]
    yield "batch_norm_evaluation", evaluated, [(16, 5, 4), (5,), (5,), (5,)]
    yield "matrix_norm", lambda x: torch.linalg.matrix_norm(x), [(24, 24)]
    yield "foreach_norm", lambda x, y: torch._foreach_norm([x, y]), [(64,), (32, 3)]
    yield "foreach_lerp", lambda x, y: torch._foreach_lerp([x, y], [y, x], 0.25), [(64,), (64,)]
    yield "foreach_addcdiv", lambda x, y, z: torch._foreach_addcdiv([x], [y], [z.abs() + 1], 0.1), [(64,)] * 3
    yield "foreach_addcmul", lambda x, y, z: torch._foreach_addcmul([x], [y], [z], 0.1), [(64,)] * 3
    yield "asinh_large", lambda x: (x.sign() * 200 + x).asinh(), [(64,)]
    yield "acosh_large", lambda x: (x.abs() + 200).acosh(), [(64,)]
    yield "encoder_layer", _encoder_layer(), [(2, 6, 16)]
    yield "linear_bias", lambda x, w, b: F.linear(x, w, b), [(16, 32), (24, 32), (24,)]
    yield "linear_without_bias", lambda x, w: F.linear(x, w), [(16, 32), (24, 32)]
    # A matrix times 0 is left out, whatever it holds.
    yield "addmm_beta_0", lambda x, y, z: torch.addmm(x * math.nan, y, z, beta=0), [(4, 5), (4, 8), (8, 5)]
    yield "addmv_beta_0", lambda x, y, z: torch.addmv(x * math.inf, y, z, beta=0, alpha=2), [(4,), (4, 8), (8,)]
    yield "baddbmm_beta_0", lambda x, y, z: torch.baddbmm(x * math.nan, y, z, beta=0), [(2, 4, 5), (2, 4, 8), (2, 8, 5)]
    yield "baddbmm_alpha_0", lambda x, y, z: torch.baddbmm(x, y, z, beta=3, alpha=0), [(2, 4, 5), (2, 4, 8), (2, 8, 5)]
    yield "lerp_of_tensors", torch.lerp, [(64,)] * 3
    yield "softmax_in_f32", lambda x: x.softmax(-1, dtype=torch.float32), [(8, 64)]
    yield "log_softmax_in_f32", lambda x: x.log_softmax(-1, dtype=torch.float32), [(8, 64)]
    yield "group_norm_affine", lambda x, w, b: F.group_norm(x, 3, w, b), [(2, 6, 8), (6,), (6,)]
    yield "layer_norm_affine", lambda x, w, b: F.layer_norm(x, (24,), w, b), [(5, 24), (24,), (24,)]
    yield "rms_norm_weight", lambda x, w: F.rms_norm(x, (24,), w, 1e-5), [(5, 24), (24,)]
    yield "instance_norm_affine", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [(2, 3, 24), (3,), (3,)]
    yield "norms", lambda x: tuple(torch.linalg.vector_norm(x, p, -1) for p in (0.5, 1, 2, 3, math.inf, -math.inf)), [(6, 32)]
    yield "attention_of_mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), [(2, 5, 8), (2, 7, 8), (2, 7, 8)]
    yield "attention_of_bias", lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), [(2, 5, 8), (2, 7, 8), (2, 7, 8), (5, 7)]
    yield "attention_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), [(1, 2, 6, 8)] * 3
    yield "cross_entropy_smoothed", lambda x: F.cross_entropy(x, classes, label_smoothing=0.1), [(4, 6)]
    yield "cross_entropy_weighted", lambda x: F.cross_entropy(x, classes, weights.to(x.dtype)), [(4, 6)]
    yield "kl_div_of_logs", lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="batchmean"), [(4, 6)] * 2
    for mode in ("sum", "mean", "max"):
        yield f"embedding_bag_{mode}", lambda w, mode=mode: F.embedding_bag(places, w, offsets, mode=mode), [(10, 16)]
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        yield f"interpolate_{mode}", lambda x, mode=mode: F.interpolate(x, scale_factor=2.0, mode=mode), [(1, 3, 5, 6)]


def _encoder_layer():
    import torch

    torch.manual_seed(0)
    layers = {}
    plain = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def run(x):
        if x.dtype not in layers:
            import copy

            layers[x.dtype] = copy.deepcopy(plain).to(x.dtype)
        return layers[x.dtype](x)

    return run


class Call:
    """A call of an operator whose operands can be drawn again."""

    def __init__(self, name, run, draw, has_gradients):
        self.name, self.run, self.draw, self.has_gradients = name, run, draw, has_gradients

    def operands(self, dtype, seed):
        """The structure of a call and its tensors. None if there is no such draw."""
        import torch

        torch.manual_seed(seed)
        return self.draw(dtype)


@contextlib.contextmanager
def samples_of(op, dtype):
    """The samples of an op. `op.sample_inputs` would set the seed."""
    samples = iter(op.sample_inputs_func(op, "cpu", dtype, False))
    yield samples
    if hasattr(samples, "close"):
        # Generators of samples must not end while a program is traced.
        samples.close()


def of_sample(op, number, gradients):
    """A call of the sample of this number."""

    def draw(dtype):
        with samples_of(op, dtype) as samples:
            sample = next(itertools.islice(samples, number, None), None)
        if sample is None:
            return None
        tensors = []
        tree = flat((sample.input, list(sample.args), dict(sample.kwargs)), tensors)
        return tree, [t.detach().clone().contiguous() for t in tensors]

    name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    return Call(f"{name}#{number}", lambda x, args, kwargs: op.op(x, *args, **kwargs), draw, gradients and op.supports_autograd)


def of_function(name, function, operands):
    def draw(dtype):
        tensors = []
        tree = flat((operands(dtype), [], {}), tensors)
        return tree, tensors

    return Call(name, lambda x, args, kwargs: function(*x), draw, "foreach" not in name)


def as_function(call, tree):
    """A function of tensors alone, whose result is a tuple of tensors."""
    import torch

    def function(*given):
        found = leaves(call.run(*rebuilt(tree, given)))
        if any(t.is_complex() or t.layout != torch.strided for t in found):
            raise NotImplementedError("complex or sparse results")
        return tuple(found)

    return function


def scaled(tensors, dtype, size):
    """The operands with their largest number near the limit of the dtype, or below its normal numbers."""
    import torch

    info = torch.finfo(dtype)
    to = {"large": info.max / 2, "small": info.tiny / 4}[size]
    out = []
    for t in tensors:
        largest = t.abs().max().double().item() if t.is_floating_point() and t.numel() else 0.0
        grow = largest > 0 and math.isfinite(largest)
        out.append((t.double() * 2.0 ** math.floor(math.log2(to / largest))).to(dtype) if grow else t)
    return out


def repeated(tensors):
    """One operand with MANY elements, if the call has one."""
    if len(tensors) != 1 or tensors[0].dim() == 0 or not tensors[0].is_floating_point() or not tensors[0].numel():
        return None
    flat_tensor = tensors[0].flatten()
    return [flat_tensor.repeat(-(-MANY // flat_tensor.numel()))[:MANY]]


def results(function, tensors, cotangents, gradients):
    """The results of a call, and the gradients for these cotangents."""
    import torch

    given = [t.detach().clone() for t in tensors]
    if not gradients:
        with torch.no_grad():
            return leaves(function(*given))
    given = [t.requires_grad_() if t.is_floating_point() else t for t in given]
    found = leaves(function(*given))
    roots = [t for t in found if t.requires_grad and t.is_floating_point()]
    if len(cotangents) < len(roots):
        # The seed is that of the draw: with the same cotangents in each draw, single roundings would decide.
        cotangents += [torch.randn(t.shape, dtype=torch.float64).bfloat16().double() for t in roots[len(cotangents) :]]
    loss = [c.to(t.dtype) for c, t in zip(cotangents, roots)]
    wanted = [t for t in given if t.requires_grad]
    gained = torch.autograd.grad(roots, wanted, loss, allow_unused=True) if roots and wanted else []
    return [t.detach() for t in found] + [t for t in gained if t is not None]


class Distances:
    """The distances of several results from the truth, over draws."""

    def __init__(self):
        self.relative = collections.defaultdict(lambda: [0.0, 0.0, 0])
        self.absolute = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
        self.broken = None

    def add(self, found, eager, truth):
        import torch

        if not len(found) == len(eager) == len(truth):
            self.broken = f"{len(eager)} results expected, {len(found)} found"
            return
        for at, (mine, theirs, exact) in enumerate(zip(found, eager, truth)):
            if not theirs.is_floating_point():
                if torch.equal(theirs, exact.to(theirs.dtype)) and not torch.equal(mine, theirs):
                    self.broken = f"result {at} is not eager's"
                continue
            if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
                self.broken = f"result {at} has another type"
                continue
            both = theirs.isfinite() & exact.to(theirs.dtype).isfinite()
            if not mine[both].isfinite().all():
                self.broken = f"result {at}: {mine[both][~mine[both].isfinite()][0].item()} in place of {theirs[both][~mine[both].isfinite()][0].item()}"
                continue
            mine, theirs, exact = (t[both].double() for t in (mine, theirs, exact))
            size = exact.norm().item()
            if size == 0 or not mine.numel():
                continue
            errors = [(t - exact).norm().item() for t in (mine, theirs)]
            for sums, norms in ((self.relative[at], [error / size for error in errors] + [1.0]), (self.absolute[at], [*errors, size])):
                sums[:] = [total + norm**2 for total, norm in zip(sums, norms)]

    def verdict(self, dtype):
        import torch

        if self.broken:
            return self.broken
        rounding = torch.finfo(dtype).eps / 2
        for at in sorted(self.relative):
            # One draw may outweigh all others in either: relative distances where the result cancels, absolute ones where it is large.
            distances = [[math.sqrt(part / sums[2]) for part in sums[:2]] for sums in (self.relative[at], self.absolute[at])]
            if all(theirs < NO_DIGITS and mine > FACTOR * theirs + SLACK * rounding for mine, theirs in distances):
                mine, theirs = min(distances, key=lambda pair: pair[0] / pair[1] if pair[1] else math.inf)
                ratio = mine / theirs if theirs else math.inf
                return f"result {at}: {ratio:.2f} x as far ({mine:.2e}, eager {theirs:.2e})"
        return None


def compiled(function, tensors):
    import torch

    torch._dynamo.reset()
    return torch.compile(function, backend="symmc", dynamic=False, options={"fallback": "error"})


def exported(function, tensors):
    """A program of `torch.export`, saved without decompositions and read again."""
    import torch

    import symmc

    class Sample(torch.nn.Module):
        def forward(self, *given):
            return function(*given)

    program = torch.export.export(Sample(), tuple(t.clone() for t in tensors), strict=False)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "program.pt2"
        torch.export.save(program, path)
        opened = symmc.open(path, ranks=1)
    if opened.opaque:
        raise symmc.UnsupportedError(f"{sorted(set(opened.opaque.values()))}")
    plan = symmc.compile(opened)

    def run(*given):
        named = dict(zip(opened.arguments, given, strict=True))
        return tuple(t.torch() for t in symmc.run(plan, [named])[0])

    return run


def sizes_of(name):
    return [size for size in DRAWS if size != "many" or re.search(REDUCTIONS, name)]


def tried(call, dtype, door, sizes, draws):
    """The outcome of a call by a door: a status and, for each size that is wrong, the reason."""
    import torch

    drawn = call.operands(dtype, 0)
    if drawn is None or not any(t.dtype == dtype for t in drawn[1]):
        return "unbuilt", []
    tree, first = drawn
    function, exact = as_function(call, tree), as_function(call, in_double(tree))
    gradients = call.has_gradients and door == "compile"
    try:
        results(function, first, [], gradients)
        results(exact, [widened(t, dtype) for t in first], [], gradients)
    except Exception:
        return "unbuilt", []
    try:
        run = {"compile": compiled, "exported": exported}[door](function, first)
        results(run, first, [], gradients)
    except Exception as error:
        return "refused", [" ".join(str(error).split())[:160] or type(error).__name__]
    wrong = []
    for size in sizes:
        distances = Distances()
        count = min(DRAWS[size], draws)
        for seed in range(count * AGAIN):
            if seed >= count and (size == "many" or distances.broken or distances.verdict(dtype) is None):
                break
            again = call.operands(dtype, seed)
            if again is None or repr(again[0]) != repr(tree) or [t.shape for t in again[1]] != [t.shape for t in first]:
                continue
            tensors = again[1]
            if size in ("large", "small"):
                tensors = scaled(tensors, dtype, size)
            mine = run
            if size == "many":
                tensors = repeated(tensors)
                if tensors is None:
                    continue
            cotangents = []
            try:
                theirs = results(function, tensors, cotangents, gradients)
                truth = results(exact, [widened(t, dtype) for t in tensors], cotangents, gradients)
                if size == "many":
                    mine = {"compile": compiled, "exported": exported}[door](function, tensors)
            except Exception:
                continue
            try:
                distances.add(results(mine, tensors, cotangents, gradients), theirs, truth)
            except Exception as error:
                distances.broken = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        if (why := distances.verdict(dtype)) is not None:
            wrong.append(f"{size}: {why}")
    return ("wrong" if wrong else "ok"), wrong


def judged(door, name, dtype, status, words):
    """The outcome of a call. It is apart if APART has a reason for each of its sizes that is wrong."""
    if status == "wrong":
        left = [word for word in words if not any(re.search(p, f"{door} {name} {dtype} {word}") for p in APART)]
        status, words = ("wrong", left) if left else ("apart", words)
    return door, name, dtype, status, words


def widened(t, dtype):
    import torch

    return t.to(torch.float64) if t.dtype == dtype else t


def samples_that_differ(op, limit):
    """The numbers of the first samples with different arguments other than tensors, or shapes."""
    import torch

    seen, out = set(), []
    with samples_of(op, torch.bfloat16) as samples:
        for number, sample in enumerate(itertools.islice(samples, 60)):
            tensors = []
            tree = flat((sample.input, list(sample.args), dict(sample.kwargs)), tensors)
            if not tensors or not all(t.numel() for t in tensors) or sum(t.numel() for t in tensors) > 1 << 14:
                continue
            # One sample for each set of arguments.
            key = (len(tensors), re.sub(r"\d", "", repr(tree)), max(t.dim() for t in tensors) > 0)
            if key not in seen:
                seen.add(key)
                out.append(number)
            if len(out) >= limit:
                break
    return out


def of_task(task):
    kind, index, dtype, door, limit, draws = task
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    dtype = getattr(torch, dtype)
    if kind == "function":
        calls = [of_function(*next(itertools.islice(functions(), index, None)))]
    else:
        from torch.testing._internal.common_methods_invocations import op_db

        op = op_db[index]
        if dtype not in op.supported_dtypes("cpu") or apart(op.name) or re.search(TIES, op.name):
            return []
        try:
            numbers = samples_that_differ(op, limit)
        except Exception:
            return []
        calls = [of_sample(op, number, True) for number in numbers]
    out = []
    for call in calls:
        try:
            status, words = tried(call, dtype, door, sizes_of(call.name), draws)
        except Exception as error:
            status, words = "unbuilt", [f"{type(error).__name__}: {error}"[:160]]
        out.append(judged(door, call.name, str(dtype).removeprefix("torch."), status, words))
    return out


def tasks(args):
    from torch.testing._internal.common_methods_invocations import op_db

    fits = lambda name: not args.patterns or any(re.search(p, name) for p in args.patterns)
    named = [("function", i) for i, (name, *_) in enumerate(functions()) if fits(name)]
    named += [("sample", i) for i, op in enumerate(op_db) if fits(op.name)]
    for door, (kind, index), dtype in itertools.product(args.door or DOORS, named, args.dtype or DTYPES):
        if door != "onnx":
            yield kind, index, dtype, door, args.limit, args.draws


def outcomes(args):
    if "onnx" in (args.door or DOORS):
        from narrow_onnx import cases

        yield from cases(args.patterns, args.dtype or DTYPES, args.draws)
    if args.jobs == 1:
        for task in tasks(args):
            yield from of_task(task)
        return
    with concurrent.futures.ProcessPoolExecutor(args.jobs, max_tasks_per_child=50) as pool:
        for found in pool.map(of_task, tasks(args)):
            yield from found


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    parser.add_argument("--door", action="append", choices=DOORS, help="only this door")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="only this dtype")
    parser.add_argument("--limit", type=int, default=2, help="samples of each op at most")
    parser.add_argument("--draws", type=int, default=20, help="draws of each call at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--refused", action="store_true", help="also list refused calls")
    args = parser.parse_args(words)
    counts = collections.defaultdict(collections.Counter)
    for door, name, dtype, status, why in outcomes(args):
        counts[door, dtype][status] += 1
        if status == "wrong" or args.refused and status == "refused":
            print(f"{status}: {door} {name} {dtype}: {'; '.join(why)}", flush=True)
    for (door, dtype), count in counts.items():
        print(f"{door} {dtype}: " + ", ".join(f"{status} {count[status]}" for status in ("ok", "refused", "wrong", "apart", "unbuilt")))
    return 1 if any(count["wrong"] for count in counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
