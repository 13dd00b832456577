"""Writes dtypes.txt: the dtypes that ONNX Runtime accepts for the operands of the cases of ops.py.

    python3 dtypes.py > dtypes.txt        (needs onnx, onnxruntime and numpy)

A line is: version, op and attributes | operands, as in ops.txt, but only constants have data | the position of each
operand that is not a constant, and for every dtype of LETTERS whether ONNX Runtime accepts it there: `x` if it does, `.` if
it reports a type error, `?` if it fails for another reason. The position `*` varies all these operands together.
"""

import sys

import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ops import CASES, C, attribute, typed

onnxruntime.set_default_logger_severity(4)
CODES = {"b": TensorProto.BOOL, "u": TensorProto.UINT8, "i": TensorProto.INT32, "l": TensorProto.INT64,
         "h": TensorProto.FLOAT16, "y": TensorProto.BFLOAT16, "f": TensorProto.FLOAT, "d": TensorProto.DOUBLE}
LETTERS = "builhyfd"


def accepts(version, op, attributes, operands, results, changed):
    """The letter for a call whose operands at some positions have another dtype."""
    names, values, constants = [], [], []
    for k, operand in enumerate(operands):
        names.append("" if operand is None else f"x{k}")
        if isinstance(operand, C):
            constants.append(numpy_helper.from_array(operand.array, f"x{k}"))
        elif operand is not None:
            code = changed.get(k, helper.np_dtype_to_tensor_dtype(operand.dtype))
            values.append(helper.make_tensor_value_info(f"x{k}", code, operand.shape))
    domain, _, name = op.rpartition("::")
    found = [f"r{k}" for k in range(results)]
    node = helper.make_node(name, names, found, domain=domain, **attributes)
    kind = TensorProto.UNDEFINED
    outputs = [helper.make_tensor_value_info(n, kind, None) for n in found]
    for output in outputs:
        # The dtype of the result follows from the operands.
        output.ClearField("type")
    graph = helper.make_graph([node], "case", values, outputs, constants)
    sets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        text = str(error)
        if "NOT_IMPLEMENTED" in text:
            return "x"
        # Other type errors are of the results, and of functions with which ONNX Runtime replaces ops.
        is_of_operands = "of input parameter" in text or "bound to different types" in text
        return "." if is_of_operands and f"({name})" in text else "?"
    return "x"


def main():
    print("# Written by dtypes.py: version, op and attributes | operands | position and dtypes.")
    known = set()
    for version, op, attributes, operands, *results in CASES:
        given = [k for k, operand in enumerate(operands) if operand is not None and not isinstance(operand, C)]
        key = (version, op, tuple(k for k in given))
        if key in known or not given:
            continue
        known.add(key)
        count = results[0] if results else 1
        rows = []
        for name, places in [*((str(k), [k]) for k in given), *([("*", given)] if len(given) > 1 else [])]:
            letters = [accepts(version, op, attributes, operands, count, dict.fromkeys(places, CODES[c])) for c in LETTERS]
            rows.append(name + "".join(letters))
        shown = []
        for operand in operands:
            if operand is None:
                shown.append("-")
            elif isinstance(operand, C):
                shown.append("const " + typed(operand.array))
            else:
                shown.append(typed(operand).split(":")[0])
        text = " ".join(f"{k}={attribute(v)}" for k, v in attributes.items())
        print(f"{version} {op} {text}".strip() + " | " + "; ".join(shown) + " | " + " ".join(rows))


if __name__ == "__main__":
    sys.exit(main())
