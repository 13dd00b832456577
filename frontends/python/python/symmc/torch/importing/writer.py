"""Writes graphs as archives that symmc reads: the part of the format of ``torch.export`` that the importer uses.

The format has an expression for each size, so nodes that only compute sizes are left out. A value that the format cannot hold raises an
error that names the node and its operator. PyTorch's own writer is not used: it differs between versions, and needs a whole
``ExportedProgram``.
"""

from __future__ import annotations

import ctypes
import functools
import io
import json
import math
import operator
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

import sympy
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import CustomObjArgument

import symmc
from symmc.torch.graphs.nodes import OPERATOR

Ranges = dict[str, tuple[int | None, int | None]]
"""The least and the largest value of each symbol, if there is one."""

Signature = list[tuple[str, dict]]
"""For each input or output of a program its kind, and the fields of this kind in addition to the value."""


@dataclass
class ProgramGraph:
    """A graph with the roles of its inputs and outputs, and the data of those inputs that are part of the program."""

    module: torch.nn.Module
    """Has the attributes that the graph reads."""
    graph: torch.fx.Graph
    inputs: Signature
    outputs: Signature
    ranges: Ranges
    weights: dict = field(default_factory=dict)
    constants: dict = field(default_factory=dict)
    dialects: tuple[str, ...] = ("ATEN",)
    """In PyTorch's dialect ``ATEN`` no operator writes its operands."""

    def archive(self) -> bytes:
        """The program as a file."""
        graph = _GraphWriter(self.graph, self.module, "ATEN" in self.dialects).written()
        names = [node.name for node in self.graph.nodes if node.op == "placeholder"]
        inputs = [_input(*one) for one in zip(self.inputs, names, graph["inputs"], strict=True)]
        outputs = [_output(*one) for one in zip(self.outputs, graph["outputs"], strict=True)]
        program = {
            "graph_module": {"graph": graph, "signature": {"input_specs": inputs, "output_specs": outputs}},
            "range_constraints": {symbol: {"min_val": low, "max_val": high} for symbol, (low, high) in self.ranges.items()},
            "schema_version": {"major": 8, "minor": 0},
            "verifiers": list(self.dialects),
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for entry, text in [("archive_format", "pt2"), ("byteorder", "little"), ("models/model.json", json.dumps(program))]:
                _put(archive, entry, text)
            _put_tensors(archive, "weights", self.weights)
            _put_tensors(archive, "constants", self.constants)
        return file.getvalue()


def _input(role: tuple[str, dict], name: str, value: dict) -> dict:
    """An entry of the signature. An argument that is a number is part of the program."""
    kind, fields = role
    if kind != "user_input":
        return {kind: {"arg": {"name": name}, **fields}}
    is_given = value.keys() & {"as_tensor", "as_sym_int", "as_custom_obj"}
    return {kind: {"arg": value}} if is_given else {"constant_input": {"name": name, "value": value}}


def _output(role: tuple[str, dict], value: dict) -> dict:
    kind, fields = role
    return {kind: {"arg": value if kind == "user_output" else value.get("as_tensor"), **fields}}


class _GraphWriter:
    """Writes one graph as data of the format."""

    def __init__(self, graph: torch.fx.Graph, module: torch.nn.Module, is_functional: bool):
        self.graph, self.module, self.is_functional = graph, module, is_functional
        self.tensors: dict[str, dict] = {}
        self.numbers: dict[str, dict[str, dict]] = {kind: {} for kind in _NUMBERS}
        self.first_readers: dict[torch.fx.Node, torch.fx.Node] = {}
        """For nodes that read one of several results, the first node that reads it: results have the names of these."""

    def written(self) -> dict:
        found: dict[str, list[dict]] = {"placeholder": [], "call_function": [], "output": []}
        for node in self.graph.nodes:
            try:
                if node.op != "get_attr" and node.target is not operator.getitem:
                    self._expect(node.op in found, node, f"{node.op} {node.target}")
                    found[node.op] += getattr(self, f"_{node.op}")(node)
            except (_Unwritable, UnicodeEncodeError) as error:
                target = _target(node.target)
                refusal = symmc.UnsupportedError(f"node `{node.name}` ({target}): {error}")
                refusal.node, refusal.op = node.name, target
                raise refusal from None
        return {
            "inputs": found["placeholder"],
            "nodes": found["call_function"],
            "outputs": found["output"],
            "tensor_values": self.tensors,
            **{f"sym_{kind}_values": known for kind, known in self.numbers.items()},
        }

    def _placeholder(self, node: torch.fx.Node) -> list[dict]:
        value = node.meta.get("val")
        if isinstance(value, CustomObjArgument):
            return [{"as_custom_obj": {"name": node.name}}]
        if isinstance(value, (torch.Tensor, torch.SymInt)):
            return [self._value(node.name, value)]
        if _kind(value) is not None:
            self._value(node.name, value)
        return [_scalar(value)]

    def _output(self, node: torch.fx.Node) -> list[dict]:
        returned = node.args[0]
        return [self._argument(one) for one in (returned if isinstance(returned, (tuple, list)) else [returned])]

    def _call_function(self, node: torch.fx.Node) -> list[dict]:
        target, value = node.target, node.meta.get("val")
        returns = target._schema.returns if isinstance(target, OpOverload) else None
        results = self._results(node, node.name, value)
        if not isinstance(target, (OpOverload, HigherOrderOperator)):
            if _kind(value) is not None:
                return []
            self._expect(not self.is_functional or value is None, node, f"{target}")
        if returns is not None:
            self._expect(not (self.is_functional and target._schema.is_mutable), node, f"{target}, which writes its operands")
        is_one_list = isinstance(value, dict) if returns is None else len(returns) == 1
        if not isinstance(results, list) or is_one_list:
            results = [results]
        written = {
            "target": _target(target),
            "name": node.name,
            "inputs": self._inputs(node),
            "outputs": [] if returns == [] else [_tensors(one) for one in results],
        }
        if OPERATOR in node.meta:
            written["metadata"] = {"custom": json.dumps({OPERATOR: node.meta[OPERATOR]})}
        return [written]

    @staticmethod
    def _expect(is_so: bool, node: torch.fx.Node, found: str) -> None:
        # The error names no node, because the rest of the graph is no program either.
        if not is_so:
            raise symmc.InputError(f"node `{node.name}`: expected a functional graph of ATen operators, found {found}")

    def _inputs(self, node: torch.fx.Node) -> list[dict]:
        if not isinstance(node.target, OpOverload):
            named = [*(("", given) for given in node.args), *node.kwargs.items()]
            return [{"name": name, "arg": self._argument(given)} for name, given in named]
        schema = node.target._schema.arguments
        given = dict(zip((argument.name for argument in schema), node.args)) | node.kwargs
        present = [argument for argument in schema if argument.name in given]
        return [{"name": one.name, "arg": self._argument(given[one.name], str(one.type))} for one in present]

    def _argument(self, given, declared: str = "Tensor") -> dict:
        """An argument of a declared type."""
        if isinstance(given, torch.fx.Node):
            return self._reference(given)
        if isinstance(given, (tuple, list)):
            return _list([self._argument(one) for one in given], declared)
        if isinstance(given, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._value(str(given), given)
        return _scalar(given)

    def _reference(self, node: torch.fx.Node) -> dict:
        """A node as an argument."""
        if node.op == "get_attr":
            inner = operator.attrgetter(node.target)(self.module)
            if isinstance(inner, torch.fx.GraphModule):
                return {"as_graph": {"graph": _GraphWriter(inner.graph, inner, self.is_functional).written()}}
            raise _Unwritable(f"expected a graph as the attribute {node.target}, found {type(inner).__name__}")
        node = self.first_readers.get(node, node)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return {"as_tensor": {"name": node.name}}
        kind = _kind(value)
        return {"as_custom_obj": {"name": node.name}} if kind is None else {f"as_sym_{kind}": {"as_name": node.name}}

    def _results(self, node: torch.fx.Node | None, name: str, value):
        """The results of a node: an entry, or a list of entries if the value is one. ``None`` is a node that does not exist, because
        nothing reads the result."""
        if not isinstance(value, (tuple, list, dict)):
            # The random state of attention has a dtype that the format lacks.
            is_absent = node is None and isinstance(value, torch.Tensor) and _name(value.dtype) not in _DTYPES
            return {"as_none": True} if is_absent else self._value(name, value)
        readers: dict[int | str, torch.fx.Node] = {}
        for user in [] if node is None else node.users:
            if user.target is not operator.getitem:
                raise _Unwritable(f"expected nodes that read one of its results, found {user.name} ({user.target})")
            self.first_readers[user] = readers.setdefault(user.args[1], user)
        keys = value if isinstance(value, dict) else range(len(value))
        names = {at: readers[at].name if at in readers else f"{name}_unused_{at}" for at in keys}
        return [self._results(readers.get(at), names[at], value[at]) for at in keys]

    def _value(self, name: str, value) -> dict:
        """Adds the type of a tensor, or the expression of a number."""
        if value is None:
            return {"as_none": True}
        if isinstance(value, torch.Tensor):
            self.tensors[name] = _tensor_meta(value)
            return {"as_tensor": {"name": name}}
        kind = _kind(value)
        if kind is None:
            raise _Unwritable(f"expected tensors and numbers, found {type(value).__name__}")
        self.numbers[kind][name] = _number(value)
        return {f"as_sym_{kind}": {"as_name": name}}


class _Unwritable(Exception):
    """The format cannot hold a value."""


def _target(target) -> str:
    """The name of an operator or a function in the format."""
    if isinstance(target, (OpOverload, HigherOrderOperator)):
        return f"torch.ops.{target}" if isinstance(target, OpOverload) else f"torch.ops.higher_order.{target.name()}"
    return f"{target.__module__}.{target.__name__}" if callable(target) else str(target)


def _list(items: list[dict], declared: str) -> dict:
    """A list of arguments."""
    if not items:
        kind = next((kind for kind in ("Tensor", "bool", "int", "float", "str") if kind in declared), "Tensor")
        return {"as_strings" if kind == "str" else f"as_{kind.lower()}s": []}
    keys = {key for item in items for key in item}
    if len(keys) == 1 and keys <= {"as_bool", "as_int", "as_float", "as_string", "as_tensor"}:
        return {f"{key}s": [item[key] for item in items] for key in keys}
    for kind in _NUMBERS:
        if keys <= {f"as_{kind}", f"as_sym_{kind}"}:
            return {f"as_sym_{kind}s": [item.get(f"as_sym_{kind}", item) for item in items]}
    if keys <= {"as_tensor", "as_none"}:
        return {"as_optional_tensors": items}
    if len(keys) == 1 and keys <= {"as_ints", "as_floats", "as_tensors"}:
        return {"as_lists": True}
    found = ", ".join(sorted(key.removeprefix("as_") for key in keys))
    raise _Unwritable(f"expected a list of arguments of one kind, found {found}")


def _tensors(result) -> dict:
    """A result, which may be a list of tensors."""
    if not isinstance(result, list):
        return result
    if any(not isinstance(one, dict) or not one.keys() <= {"as_tensor", "as_none"} for one in result):
        raise _Unwritable("expected tensors in a list of results, found others")
    return {"as_tensors": [one["as_tensor"] for one in result if "as_tensor" in one]}


_NUMBERS = {"bool": (bool, torch.SymBool), "int": (int, torch.SymInt), "float": (float, torch.SymFloat)}
"""The kinds of numbers, with their types."""


def _kind(value) -> str | None:
    """The kind of a number, which may be symbolic."""
    return next((kind for kind, types in _NUMBERS.items() if isinstance(value, types)), None)


def _number(value) -> dict:
    """A number, or its expression in symbols."""
    if isinstance(value, torch.SymInt) and value.node.expr.is_Integer:
        return {"as_int": _integer(int(value.node.expr))}
    if isinstance(value, torch.SymFloat) and value.node.expr.is_Float:
        return {"as_float": _float(float(value.node.expr))}
    if isinstance(value, torch.SymBool) and value.node.expr in (sympy.true, sympy.false):
        return {"as_bool": bool(value.node.expr)}
    is_symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return {"as_expr": {"expr_str": _expression(value.node.expr)}} if is_symbolic else _scalar(value)


_expression = functools.lru_cache(sympy.srepr)


def _integer(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise _Unwritable(f"expected integers of 64 bits, found {value}")
    return value


def _float(value: float) -> float | str:
    """A float; JSON has no infinities and no NaN."""
    return value if math.isfinite(value) else str(value)


_DTYPES = {
    name: number
    for first, names in (
        (1, "uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16"),
        (28, "uint16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint32 uint64"),
    )
    for number, name in enumerate(names.split(), first)
}
"""The numbers of dtypes in the format."""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(dtype: torch.dtype) -> int:
    if _name(dtype) not in _DTYPES:
        raise _Unwritable(f"expected a supported dtype, found {_name(dtype)}")
    return _DTYPES[_name(dtype)]


_ARGUMENTS: list[tuple[type, str, Callable]] = [
    (type(None), "as_none", lambda _: True),
    (bool, "as_bool", bool),
    (int, "as_int", _integer),
    (float, "as_float", _float),
    (complex, "as_complex", lambda given: {"real": _float(given.real), "imag": _float(given.imag)}),
    (str, "as_string", lambda given: given.encode().decode()),
    (torch.dtype, "as_scalar_type", _dtype),
    (OpOverload, "as_operator", _target),
    (HigherOrderOperator, "as_operator", _target),
    # The importer reads only the kind of these.
    (torch.device, "as_device", str),
    (torch.layout, "as_layout", str),
    (torch.memory_format, "as_memory_format", str),
    (dict, "as_string_to_argument", lambda _: True),
]
"""The types of arguments, except tensors and lists, with their kinds and values in the format."""


def _scalar(given) -> dict:
    """An argument that is no tensor and no list."""
    for known, key, written in _ARGUMENTS:
        if isinstance(given, known):
            return {key: written(given)}
    raise _Unwritable(f"expected values of types that ATen operators have, found {type(given).__name__}")


def _tensor_meta(value: torch.Tensor) -> dict:
    if value.layout != torch.strided:
        raise _Unwritable(f"expected the strided layout, found {value.layout}")
    if value.is_conj() or value.is_neg():
        raise _Unwritable("expected a tensor without a pending conjugation or negation")
    return {
        "dtype": _dtype(value.dtype),
        "sizes": [_number(size) for size in value.shape],
        "strides": [_number(stride) for stride in value.stride()],
        "storage_offset": _number(value.storage_offset()),
    }


def _put(archive: zipfile.ZipFile, entry: str, data: str | bytes) -> None:
    # Without the time, so that ranks with equal programs have equal files.
    archive.writestr(zipfile.ZipInfo(f"model/{entry}"), data)


def _put_tensors(archive: zipfile.ZipFile, kind: str, tensors: dict) -> None:
    """Adds the data of tensors. Tensors that share memory share an entry. Subclasses are pickled."""
    entries: dict[int, str] = {}
    config = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        is_pickled = type(tensor.data) not in (torch.Tensor, FakeTensor)
        key = id(tensor) if is_pickled else tensor.untyped_storage()._cdata
        if key not in entries:
            entries[key] = f"tensor_{len(entries)}"
            _put(archive, f"data/{kind}/{entries[key]}", _pickle(tensor) if is_pickled else _storage(tensor))
        meta = {**_tensor_meta(tensor), "device": {"type": tensor.device.type}}
        config[name] = {"path_name": entries[key], "use_pickle": is_pickled, "tensor_meta": meta}
    _put(archive, f"data/{kind}/model_{kind}_config.json", json.dumps({"config": config}))


def _storage(tensor: torch.Tensor) -> bytes:
    """The storage of a tensor, which may have no memory."""
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        return b""
    storage = tensor.untyped_storage().cpu()
    return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def _pickle(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()
