"""The ONNX door of `narrow.py`: ONNX's own tests of operators with f32 operands, as models of a narrower dtype.

The reference evaluator gives the truth in f64, and the expected result: computed in f32 and rounded once.
"""

import pathlib
import re
import tempfile

import numpy
import onnx
import onnx.numpy_helper
import torch
from narrow import DRAWS, Distances, judged, scaled
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator
from onnx_nodes import APART as UNDEFINED
from onnx_nodes import constant_inputs

import symmc

FLOAT = onnx.TensorProto.FLOAT
CODES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}

# Ops of several kernels of ONNX Runtime, or whose results choose among equals.
LEFT_OUT = r"(_expanded|quantize|qlinear|cast|_ver18|gradient|adam|adagrad|momentum|lstm|gru|rnn|sequence|optional|string|image_decoder|nonzero|topk|unique|argm|compress)"


def narrowed(model, dtype):
    """A model with a narrower dtype in place of f32."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in [*copy.graph.input, *copy.graph.output, *copy.graph.value_info]:
        if value.type.tensor_type.elem_type == FLOAT:
            value.type.tensor_type.elem_type = CODES[dtype]
    return copy


def arguments(case):
    """The operands of a case by name. None if they are not dense tensors of f32 and integers."""
    given = [numpy.asarray(value) for value in case.data_sets[0][0] if isinstance(value, (numpy.ndarray, numpy.generic))]
    names = [one.name for one in case.model.graph.input]
    if len(given) != len(names) or any(one.dtype.kind not in "fiub" for one in given):
        return None
    if not any(one.dtype == numpy.float32 for one in given) or any(one.dtype in (numpy.float16, numpy.float64) for one in given):
        return None
    return dict(zip(names, given))


def drawn(given, dtype, seed):
    """Operands near those of a case, as tensors."""
    generator = torch.Generator().manual_seed(seed)

    def one(value):
        t = torch.from_numpy(numpy.array(value))
        if t.dtype != torch.float32:
            return t
        factors = torch.rand(t.shape, generator=generator) + 0.5 if seed else torch.ones(t.shape)
        return (t * factors).to(dtype)

    return {name: one(value) for name, value in given.items()}


def imported(case, dtype, given, constants):
    """A function of tensors by names that runs the model."""
    model = narrowed(case.model, dtype)
    for name in constants:
        model.graph.initializer.append(onnx.numpy_helper.from_array(given[name], name))
    kept = [one for one in model.graph.input if one.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "case.onnx"
        onnx.save(model, path)
        program = symmc.open(path, ranks=1)
    if program.opaque:
        raise symmc.UnsupportedError(f"{sorted(set(program.opaque.values()))}")
    plan = symmc.compile(program)
    names = dict(zip([one.name for one in kept], program.arguments, strict=True))

    def run(tensors):
        return [t.torch() for t in symmc.run(plan, [{own: tensors[name] for name, own in names.items()}])[0]]

    return run


def reference(case, tensors, to):
    """The results of the reference for operands converted to this dtype."""
    evaluator = ReferenceEvaluator(case.model)
    feeds = {name: (t.to(to) if t.is_floating_point() else t).numpy() for name, t in tensors.items()}
    return [torch.from_numpy(numpy.array(one)) for one in evaluator.run(None, feeds)]


def compared(case, dtype, draws):
    given = arguments(case)
    if given is None or len(case.model.graph.node) != 1:
        return "unbuilt", []
    kind = getattr(torch, dtype)
    try:
        first = drawn(given, kind, 0)
        results = reference(case, first, torch.float64)
        if not any(one.is_floating_point() for one in results):
            return "unbuilt", []
    except Exception:
        return "unbuilt", []
    for constants in (set(), constant_inputs(case)):
        try:
            run = imported(case, dtype, given, constants)
            run(first)
            break
        except Exception as error:
            reason = str(error).splitlines()[0][:160]
    else:
        return "refused", [reason]
    wrong = []
    for size in ("ordinary", "large", "small"):
        distances = Distances()
        for seed in range(min(DRAWS[size], draws)):
            tensors = drawn(given, kind, seed)
            if size != "ordinary":
                tensors = dict(zip(tensors, scaled(list(tensors.values()), kind, size)))
            try:
                with numpy.errstate(all="ignore"):
                    truth = reference(case, tensors, torch.float64)
                    once = reference(case, tensors, torch.float32)
                theirs = [one.to(kind) if one.is_floating_point() else one for one in once]
            except Exception:
                continue
            try:
                distances.add(run(tensors), theirs, truth)
            except Exception as error:
                distances.broken = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        if (why := distances.verdict(kind)) is not None:
            wrong.append(f"{size}: {why}")
    return ("wrong" if wrong else "ok"), wrong


def cases(patterns, dtypes, draws):
    for case in collect_testcases(None):
        name = case.name.removeprefix("test_")
        if re.search(LEFT_OUT, name) or any(re.search(p, name) for p in UNDEFINED.values()) or not case.data_sets:
            continue
        if patterns and not any(re.search(p, name) for p in patterns):
            continue
        for dtype in dtypes:
            status, words = compared(case, dtype, draws)
            yield judged("onnx", name, dtype, status, words)
