"""Writes src/schemas.txt: the schemas of the ops that have a rule, from the `onnx` package and ONNX Runtime,
and the names of ONNX's other ops.

    python3 schemas.py > src/schemas.txt        (needs onnx, onnxruntime and numpy)

A line is: op, the first version of the schema, the numbers of operands and of results as least..most (`*` is any
number), the dtypes of the operands, and the attributes: name:type, then `!` if it is required, or `=` and its default.

The dtypes are `@`, then a type variable for each operand, then `;T=` and the dtypes of the variable T, as the letters of
LETTERS. Operands with the same variable have the same dtype. `~` after the last variable means that variadic operands may
have different dtypes. A variable without dtypes accepts any type, such as a sequence.
"""

import pathlib
import re

import numpy
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

OLDEST = 7
TYPES = {1: "float", 2: "int", 3: "string", 4: "tensor", 5: "graph", 6: "floats", 7: "ints", 8: "strings", 11: "sparse"}
UNBOUNDED = 2**31 - 1
LETTERS = {
    "bool": "b", "uint8": "u", "uint16": "w", "uint32": "v", "int8": "c", "int16": "s", "int32": "i", "int64": "l",
    "float8e4m3fn": "4", "float8e5m2": "5", "float8e8m0": "8", "float16": "h", "bfloat16": "y", "float": "f", "double": "d",
}

# ONNX Runtime registers the collectives only if it is built with NCCL, and the norm under ONNX's domain.
UNREGISTERED = [
    "com.microsoft::AllGather 1 1..1 1..1 @T;T=buwvcsil458hyfd axis:int=0 group_size:int=1",
    "com.microsoft::AllReduce 1 1..1 1..1 @T;T=buwvcsilhyfd group_size:int=1",
    "com.microsoft::AllToAll 1 1..1 1..1 @T;T=buwvcsil458hyfd group_size:int=1",
    "com.microsoft::SimplifiedLayerNormalization 1 2..2 1..2 @T,V;T=hyfd;V=hyfd axis:int=-1 epsilon:float=1e-05 stash_type:int=1",
]


def with_rules():
    rows = pathlib.Path(__file__).parent.joinpath("src", "ops").glob("*.rs")
    return {name for path in rows for name in re.findall(r'\brow\w*\(\s*"([^"]+)"', path.read_text())}


def default(proto):
    """The text of a default; None if there is none."""
    kind = TYPES.get(proto.type)
    if kind == "float":
        return str(numpy.float32(proto.f))
    if kind == "int":
        return str(proto.i)
    if kind == "string":
        return proto.s.decode()
    if kind == "ints":
        return "[" + ",".join(str(i) for i in proto.ints) + "]"
    return None


def attribute(name, schema):
    if isinstance(schema, onnx.defs.OpSchema.Attribute):
        proto = schema.default_value
    else:
        proto = onnx.AttributeProto.FromString(schema._default_value)
    code = int(getattr(schema.type, "value", schema.type))
    text = f"{name}:{TYPES.get(code, 'other')}"
    if schema.required:
        return text + "!"
    given = default(proto)
    return text if given is None else f"{text}={given}"


def letters(types):
    """The letters of the tensor types among these. Empty if other kinds of values are accepted as well."""
    found = [t.removeprefix("tensor(").removesuffix(")") for t in types]
    if any("(" in t for t in found):
        return ""
    return "".join(letter for name, letter in LETTERS.items() if name in found) or "-"


def operands(schema):
    """The dtypes of the operands."""
    constraints = {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints}
    names, fixed = [], {}
    for one in schema.inputs:
        name = one.type_str if isinstance(schema, onnx.defs.OpSchema) else one.typeStr
        if name not in constraints:
            # The type itself.
            name = fixed.setdefault(name, f"_{len(fixed)}")
        alike = one.is_homogeneous if isinstance(schema, onnx.defs.OpSchema) else one.isHomogeneous
        names.append(name + ("" if alike else "~"))
    sets = {n: letters(types) for n, types in constraints.items()} | {n: letters([t]) for t, n in fixed.items()}
    used = sorted({n.rstrip("~") for n in names})
    return "@" + ",".join(names) + "".join(f";{n}={sets[n]}" for n in used)


def line(name, schema):
    bounds = lambda low, high: f"{low}..{'*' if high >= UNBOUNDED else high}"
    words = [name, str(schema.since_version)]
    if schema.deprecated:
        return " ".join([*words, "deprecated"])
    words += [bounds(schema.min_input, schema.max_input), bounds(schema.min_output, schema.max_output)]
    words.append(operands(schema))
    words += [attribute(n, a) for n, a in sorted(schema.attributes.items())]
    return " ".join(words)


def main():
    rules = with_rules()
    schemas = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            schemas.setdefault(schema.name, []).append(schema)
    others = sorted(set(schemas) - rules)
    for schema in runtime.get_all_operator_schema():
        name = schema.name if schema.domain == "" else f"{schema.domain}::{schema.name}"
        if name in rules and name not in schemas:
            schemas[name] = [schema]
    print(f"# Written by schemas.py from onnx {onnx.__version__}; see there for the form.")
    print(f"newest {onnx.defs.onnx_opset_version()}")
    print("others " + " ".join(others))
    lines = list(UNREGISTERED)
    for name in sorted(rules & set(schemas)):
        history = sorted(schemas[name], key=lambda s: s.since_version)
        read = [s for i, s in enumerate(history) if i + 1 == len(history) or history[i + 1].since_version > OLDEST]
        lines += [line(name, s) for s in read]
    print("\n".join(sorted(lines)))


main()
