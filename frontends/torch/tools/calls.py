"""Records calls of PyTorch's operators that use defaults for arguments, and the dtypes that operators accept.

    python3 calls.py ../src/ops calls > ../tests/suite/calls.txt
    python3 calls.py ../src/ops dtypes > ../tests/suite/dtypes.txt

The calls come from PyTorch's own samples (`op_db`) and from EXTRA below. Each operator with a rule is called with every
dtype; with each optional argument left out, on operands of ordinary and of small size; and with numbers that f16 and bf16
round. The lines have the form of `tests/suite/ops.txt`.

The table of dtypes has one line for each operator, call and operand: the dtypes of the results for every dtype of that
operand (columns) against every dtype of the others (rows), as the letters of LETTERS. `.` means that PyTorch raises an error,
and `,` that only the CPU kernel is missing.
"""

import itertools
import math
import pathlib
import re
import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

NAMES = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
}
LETTERS = {dtype: letter for dtype, letter in zip(NAMES, "builhyfd")}

SAMPLES = 24
"""The number of samples that are used per operator and dtype."""

MOST = 32
"""The largest total number of elements of the operands of a line, and of its results."""

# Results that operands do not define, arbitrary order, values that differ between kernels of one version, and ops
# with separate tests.
LEFT_OUT = re.compile(
    r"aten\.(empty|new_empty|native_dropout|dropout|feature_dropout|bernoulli|rand|multinomial|topk|sort|argsort|msort|kthvalue|erfinv"
    r"|_assert|sym_|_functional|resize|set_|_foreach|_fused_adam|_fused_sgd|stft|_fft|fft_|istft|view_as|detach|_scaled_dot"
    r"|_native_batch_norm_legit\b|_embedding_bag_|_cudnn|histc|complex|polar|real|imag|conj|_conj|resolve|angle|lift"
    r"|erfc|softplus|item|_local_scalar|_grouped_mm|as_strided|_unsafe_view|nonzero|unique|masked_select)"
)


# Left out of the table of dtypes: complex numbers, ops that only other operators call, and ops that reject numbers outside of a range.
UNTYPED = re.compile(r"aten\.(binary_cross_entropy\b|_fft|stft|istft|linspace|polar|complex|_embedding_bag_backward|take_along_dim)")

# Where devices differ for f16 and bf16: kernels for CPUs round the number to the dtype in sums and not in thresholds, those
# for GPUs the other way around. symmc follows the GPU kernels.
DEVICES = re.compile(r"aten\.(add|sub|subtract|rsub|threshold|threshold_backward|index_add)\b")

# Operands whose dtypes PyTorch does not check. It reads them as another dtype, or rejects them later.
UNCHECKED = {
    ("aten.convolution", "bias"),
    ("aten.convolution_backward", "weight"),
    ("aten.linalg_solve_triangular", "B"),
}


def rules(folder):
    rows = set()
    for file in pathlib.Path(folder).rglob("*.rs"):
        # A row names several ops, and its string may continue on the next line.
        for names in re.findall(r'row\w*\(\s*"([^"]+)"', file.read_text()):
            rows |= set(names.replace("\\", " ").split())
    return rows


def has_rule(rows, overload):
    full = str(overload)
    return full in rows or full.rsplit(".", 1)[0] in rows


def named(overload, args, kwargs):
    """The arguments of a call by their names, in the order of the schema; None if they do not match it."""
    schema, found = overload._schema.arguments, {}
    if len(args) > len(schema):
        return None
    for argument, value in zip(schema, args):
        found[argument.name] = value
    known = {argument.name for argument in schema}
    if not set(kwargs) <= known:
        return None
    found.update(kwargs)
    return {a.name: found[a.name] for a in schema if a.name in found}


def tensors_of(arguments):
    return [t for t in pytree.tree_leaves(list(arguments.values())) if isinstance(t, torch.Tensor)]


class Recorder(TorchDispatchMode):
    """Records the calls below autograd, including those of gradients."""

    def __init__(self, take):
        super().__init__()
        self.take = take

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.take(func, args, kwargs)
        return func(*args, **kwargs)


def copied(value):
    def of(t):
        return t.detach().clone().contiguous() if isinstance(t, torch.Tensor) else t

    return pytree.tree_map(of, value)


def leaves(value):
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


class Calls:
    """The smallest call of each operator, dtypes and set of arguments."""

    def __init__(self, rows, left_out):
        self.rows, self.left_out, self.found = rows, left_out, {}

    def take(self, overload, args, kwargs):
        if not isinstance(overload, torch._ops.OpOverload) or overload._schema.is_mutable:
            return
        if not has_rule(self.rows, overload) or self.left_out.match(str(overload)):
            return
        arguments = named(overload, args, kwargs)
        if arguments is None or not all(fits(a.type, arguments[a.name]) for a in overload._schema.arguments if a.name in arguments):
            return
        tensors = tensors_of(arguments)
        if any(t.dtype not in NAMES or t.layout != torch.strided or t.is_quantized for t in tensors):
            return
        given = tuple(name for name, value in arguments.items() if value is not None)
        has_axes = all(t.dim() for t in tensors)
        key = (str(overload), given, tuple(t.dtype for t in tensors), has_axes)
        size = sum(t.numel() for t in tensors)
        known = self.found.get(key)
        good = 0 < size <= MOST and all(t.numel() for t in tensors)
        # The norm of one element is only rounding noise.
        shape = arguments.get("normalized_shape")
        good = good and (shape is None or math.prod(shape) > 1)
        if good and (known is None or size > known[0] and size <= 24 or known[0] > 24 and size < known[0]):
            self.found[key] = (size, overload, copied(arguments))


def collect(rows, dtypes, left_out=LEFT_OUT):
    """Calls of all samples."""
    calls = Calls(rows, left_out)
    for op in op_db:
        for dtype in dtypes:
            if dtype in op.supported_dtypes("cpu"):
                of_op(calls, op, dtype)
    for overload, arguments in EXTRA():
        calls.take(overload, [], arguments)
    return calls.found


def of_op(calls, op, dtype):
    torch.manual_seed(0)
    grads = dtype.is_floating_point and op.supports_autograd
    try:
        samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grads), SAMPLES))
    except Exception:
        return
    packets = {getattr(op, "aten_name", op.name), op.name.split(".")[-1], op.name.replace(".", "_").replace("nn_functional_", "")}
    for sample in samples:
        for name in packets:
            packet = getattr(torch.ops.aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                function = getattr(packet, overload)
                try:
                    with torch.no_grad():
                        function(sample.input, *sample.args, **sample.kwargs)
                except Exception:
                    continue
                calls.take(function, (sample.input, *sample.args), sample.kwargs)
        try:
            with Recorder(calls.take):
                result = leaves(op(sample.input, *sample.args, **sample.kwargs))
                result = [t for t in result if t.requires_grad]
                if result and sum(t.numel() for t in result) <= MOST:
                    torch.autograd.backward(result, [torch.ones_like(t) / 2 for t in result])
        except Exception:
            continue


def EXTRA():
    """Calls of operators without samples."""
    aten = torch.ops.aten
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        torch.manual_seed(1)
        x, w, g = (torch.randn(shape).to(dtype) for shape in ((2, 4), (4,), (2, 4)))
        wide = dtype if dtype == torch.float64 else torch.float32
        rstd = (torch.rand(2, 1) + 0.5).to(wide)
        yield aten.rms_norm.default, {"input": x, "normalized_shape": [4], "weight": w, "eps": 1e-5}
        yield aten.rms_norm.default, {"input": x, "normalized_shape": [2, 4], "eps": 1e-5}
        for other in (torch.float16, torch.bfloat16, torch.float32):
            yield aten.rms_norm.default, {"input": x, "normalized_shape": [4], "weight": w.to(other), "eps": 1e-5}
            yield aten.layer_norm.default, {"input": x, "normalized_shape": [4], "weight": w.to(other), "bias": w.to(other)}
        # PyTorch before 2.9 lacks some of these.
        if hasattr(aten, "_fused_rms_norm"):
            yield aten._fused_rms_norm.default, {"input": x, "normalized_shape": [4], "weight": w, "eps": 1e-5}
            yield aten._fused_rms_norm.default, {"input": x, "normalized_shape": [4], "weight": None, "eps": None}
        if hasattr(aten, "_fused_rms_norm_backward"):
            for weight in (w, None):
                yield aten._fused_rms_norm_backward.default, {
                    "grad_out": g, "input": x, "normalized_shape": [4], "rstd": rstd, "weight": weight, "output_mask": [True, weight is not None],
                }
        for name in ("leaky_relu", "elu", "celu", "selu", "hardtanh", "threshold", "softplus", "hardshrink", "softshrink"):
            if hasattr(aten, name):
                more = {"threshold": 0.3, "value": 0.5} if name == "threshold" else {}
                yield getattr(aten, name).default, {"self": x, **more}
        table, indices, offsets = torch.randn(6, 3).to(dtype), torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2])
        for mode in (0, 1, 2):
            yield aten._embedding_bag.default, {"weight": table, "indices": indices, "offsets": offsets, "mode": mode}
            yield aten._embedding_bag_forward_only.default, {"weight": table, "indices": indices, "offsets": offsets, "mode": mode}


def result_of(overload, arguments):
    """The result of a call: tensors, and whether it is one list of tensors. None if PyTorch raises an error."""
    schema = overload._schema.arguments
    # Arguments after an omitted one are passed by name.
    args, kwargs, skipped = [], {}, False
    for a in schema:
        if a.name not in arguments:
            skipped = True
        elif skipped or a.kwarg_only:
            kwargs[a.name] = arguments[a.name]
        else:
            args.append(arguments[a.name])
    return overload(*args, **kwargs)


def number(x):
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, float) and math.isfinite(x) and x == int(x) and abs(x) < 1e15:
        return str(int(x)) if x else "0.0" if str(x)[0] != "-" else "-0.0"
    return repr(x).replace("nan", "NaN")


def shown(t):
    digits = {torch.float64: 17, torch.float32: 9, torch.float16: 6, torch.bfloat16: 5}.get(t.dtype)
    values = t.flatten().tolist()
    if digits:
        values = [float(f"%.{digits}g" % v) for v in values]
    return f"{NAMES[t.dtype]}[{','.join(map(str, t.shape))}]: " + " ".join(number(v) for v in values)


def argument(value, place):
    """An argument in the form of the lines, or None if they cannot represent it."""
    if isinstance(value, torch.Tensor):
        return place(value)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "inf" in text or "e" in text else text + ".0"
    if isinstance(value, str):
        return None if " " in value else f"'{value}'"
    if isinstance(value, torch.dtype):
        return f":{NAMES[value]}" if value in NAMES else None
    if isinstance(value, (list, tuple)):
        if any(isinstance(v, (list, tuple, float, str)) for v in value):
            return None
        parts = [argument(v, place) for v in value]
        return None if None in parts else f"[{','.join(parts)}]"
    return None


IMMATERIAL = ("device", "layout", "memory_format", "non_blocking", "pin_memory", "requires_grad")


def line(overload, arguments):
    """The line of a call. None if PyTorch raises an error or the form cannot represent the call."""
    try:
        given = result_of(overload, copied(arguments))
    except Exception:
        return None
    is_list = isinstance(given, (list, tuple)) and len(overload._schema.returns) == 1
    results = list(given) if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(r, torch.Tensor) and r.dtype in NAMES for r in results) or sum(r.numel() for r in results) > 2 * MOST:
        return None
    operands = []

    def place(tensor):
        operands.append(tensor)
        return f"%t{len(operands) - 1}"

    words = []
    for name, value in arguments.items():
        if name in IMMATERIAL:
            continue
        text = argument(value, place)
        if text is None:
            return None
        words.append(f"{name}={text}")
    left = "; ".join(f"t{i}={shown(t)}" for i, t in enumerate(operands))
    right = "; ".join(shown(r) if r.numel() else shown(r).rstrip() for r in results)
    return f"{left} | {overload} {' '.join(words)} | {'list ' if is_list else ''}{right}"


def quantised(arguments, scale=1.0):
    """The same call with floats that have short decimal representations."""

    def of(t):
        if isinstance(t, torch.Tensor) and t.dtype.is_floating_point:
            return (torch.round(t.double() * 16) / 16 * scale).to(t.dtype)
        return t

    return {name: pytree.tree_map(of, value) for name, value in arguments.items()}


def fits(type_, value):
    """Whether an argument has the type of the schema. Python lets a bool pass for an integer, and a tensor for a name."""
    kind = str(type_)
    if isinstance(value, torch.Tensor):
        return "Tensor" in kind
    if isinstance(value, bool):
        return "bool" in kind or "number" in kind
    return True


def meeting(value, number):
    """A tensor whose first elements are a number, rounded to its dtype, and its double."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    value = value.clone()
    value.view(-1)[:2] = torch.tensor([number, 2 * number], dtype=torch.float64).to(value.dtype)[: value.numel()]
    return value


def numbers_of(overload):
    return [a.name for a in overload._schema.arguments if str(a.type) in ("number", "Optional[number]", "float", "Optional[float]")]


def variants(overload, arguments):
    """A call with each optional argument omitted, and with other numbers."""
    schema = {a.name: a for a in overload._schema.arguments}
    names = [a.name for a in schema.values() if a.name not in IMMATERIAL]
    if not numbers_of(overload) and all(not schema[n].has_default_value() and "Optional" not in str(schema[n].type) for n in names):
        tensors = tensors_of(arguments)
        if len(tensors) < 2 or not tensors[0].dtype.is_floating_point:
            return
    optional = [n for n in arguments if schema[n].has_default_value() or isinstance(schema[n].type, torch.OptionalType)]
    required = {n for n in arguments if not schema[n].has_default_value()}
    plain = quantised(arguments)
    left = [dict(plain)]
    for name in optional:
        fewer = dict(plain)
        if name in required:
            fewer[name] = None
        else:
            del fewer[name]
        left.append(fewer)
    bare = {n: (None if n in optional else v) for n, v in plain.items() if n in required}
    yield from [*left[1:3], bare]
    tensors = tensors_of(arguments)
    floats = any(t.dtype.is_floating_point for t in tensors)
    names = numbers_of(overload)
    if floats and any(str(schema[n].type) in ("float", "Optional[float]") for n in names):
        small = quantised(arguments, 2.0**-10)
        yield small
        yield {n: v for n, v in small.items() if n in required and n not in optional} | {
            n: None for n in optional if n in required
        }
    if floats:
        tensors = [n for n in required if isinstance(arguments[n], torch.Tensor)]
        # A number may replace a tensor of the schema.
        others = [n for n in tensors if len(tensors) > 1 and arguments[n].dtype.is_floating_point]
        if DEVICES.match(str(overload)) and not any(t.dtype in (torch.float32, torch.float64) for t in tensors_of(plain)):
            return
        for name, value in itertools.product([*names, *others], (0.1, -1.3)):
            # If an element equals the number after rounding to the dtype, it matters which of the two is compared.
            yield {n: meeting(v, value) for n, v in plain.items()} | {name: value}


def record_calls(rows):
    lines = {}
    for key, (_, overload, arguments) in sorted(collect(rows, list(NAMES)).items(), key=lambda item: str(item[0])):
        for variant in variants(overload, arguments):
            text = line(overload, variant)
            if text is not None and len(text) < 600:
                operands, call, _ = text.split(" | ")
                types = tuple(re.findall(r"=(\w+)\[([\d,]*)\]", operands))
                small = max((abs(float(w)) for w in re.findall(r"(?<= )-?[\d.e-]+(?=[ ;]|$)", operands)), default=1) < 0.02
                lines.setdefault((call, types, small), text)
    return lines.values()


MISSING = re.compile("not implemented for|without overflow|not supported for|not supported on|does not support|unsupported dtype", re.IGNORECASE)
"""PyTorch's errors if one device has no kernel for a dtype that the operator accepts."""


def dtypes_of(overload, arguments):
    """The letters of the results of a call, or the reason why there are none."""
    try:
        found = result_of(overload, copied(arguments))
    except Exception as error:
        return "," if MISSING.search(str(error)) else "."
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    return "".join(LETTERS.get(r.dtype, ",") for r in results if isinstance(r, torch.Tensor))


def with_dtypes(arguments, main, place, other):
    """A call whose operands have the same dtype, except the one at a position."""
    at, first = itertools.count(), tensors_of(arguments)[0].dtype

    def of(value):
        if not isinstance(value, torch.Tensor):
            return value
        here = next(at)
        dtype = other if here == place else main if value.dtype == first else value.dtype
        if dtype == value.dtype:
            return value
        # Not 0, because integers cannot be divided by 0.
        return (value.abs() + 1 if value.dtype.is_floating_point else value).to(dtype)

    return {n: main if isinstance(v, torch.dtype) else pytree.tree_map(of, v) for n, v in arguments.items()}


def table(overload, arguments):
    """The lines of a call in the table of dtypes."""
    operands = []

    def place(tensor):
        operands.append(tensor)
        return f"%t{len(operands) - 1}"

    kept = [(n, v) for n, v in arguments.items() if n not in IMMATERIAL]
    words = [(n, ":main" if isinstance(v, torch.dtype) else argument(v, place)) for n, v in kept]
    names = [n for n, v in kept for _ in leaves(v)]
    if len(operands) < 2 or any(text is None for _, text in words):
        return
    try:
        given = result_of(overload, copied(arguments))
    except Exception:
        return
    is_list = isinstance(given, (list, tuple)) and len(overload._schema.returns) == 1
    results = [r for r in (given if isinstance(given, (list, tuple)) else [given])]
    if not all(isinstance(r, torch.Tensor) for r in results):
        return
    shapes = ["[" + ",".join(map(str, t.shape)) + "]" for t in (*operands, *results)]
    left = " ".join(f"{NAMES[t.dtype]}{s}" for t, s in zip(operands, shapes))
    right = " ".join(shapes[len(operands) :])
    first = operands[0].dtype
    same = sum(t.dtype == first for t in operands)
    for at in range(len(operands)):
        if at == 0 and same == 2 and len(operands) == 2 or (str(overload).rsplit(".", 1)[0], names[at]) in UNCHECKED:
            continue
        rows = ["-".join(dtypes_of(overload, with_dtypes(arguments, main, at, other)) for other in NAMES) for main in NAMES]
        if same == 1 and at == 0:
            rows = ["-".join(dtypes_of(overload, with_dtypes(arguments, main, 0, main)) for main in NAMES)] * len(NAMES)
        call = " ".join(f"{n}={text}" for n, text in words)
        yield f"{left} | {overload} {call} | {'list ' if is_list else ''}{right} | {at} | {'/'.join(rows)}"


def record_dtypes(rows):
    """The table, with one call for each operator and number of operands."""
    chosen = {}
    found = collect(rows, [torch.float32, torch.int64, torch.bool], UNTYPED)
    for (name, given, types, *_), (size, overload, arguments) in found.items():
        has_axes = all(t.dim() for t in tensors_of(arguments))
        key, rank = (name, len(types)), (torch.float32 not in types[:1], len(given), size)
        if has_axes and (key not in chosen or rank < chosen[key][0]):
            chosen[key] = (rank, overload, quantised(arguments))
    for _, (_, overload, arguments) in sorted(chosen.items()):
        yield from table(overload, arguments)


def main():
    rows = rules(sys.argv[1])
    if sys.argv[2] == "calls":
        print(*record_calls(rows), sep="\n")
    else:
        print(*record_dtypes(rows), sep="\n")


if __name__ == "__main__":
    main()
