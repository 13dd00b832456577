"""Parts of graphs as text: equal parts have equal text, and other processes can run it.

A form does not depend on the place of the part in its graph: values are numbered in an order that follows from operators and types,
symbols by their first use. It holds the type and the extents of each value, so no operator has to run to find them.
"""

from __future__ import annotations

import functools
import json
import operator

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from symmc.torch.graphs.nodes import is_process_group
from symmc.torch.inductor import engine_ops
from symmc.torch.inductor.engine_ops import NoForm

_OPERATIONS = {"Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "Mod": operator.mod}

_HINT = 5040
"""The hint of symbols while types are made: a multiple of the usual divisors of sizes."""


class GraphPart:
    """Nodes of a graph as a form. ``inputs`` and ``outputs`` are nodes, ``symbols`` the names of the symbols in the graph."""

    def __init__(self, nodes: list[torch.fx.Node]):
        self.inputs: list[torch.fx.Node] = []
        self.values: list[list] = []
        self._nodes, self._inside, self._added = nodes, set(nodes), set()
        self._numbers: dict[torch.fx.Node, int | list] = {}
        self._symbols: dict[str, str] = {}
        while len(self._added) < len(nodes):
            self._add(min(self._ready(), key=self._sketch))
        returned = [node for node in nodes if any(user not in self._inside for user in node.users)]
        if any(not isinstance(self._numbers[node], int) for node in returned):
            raise NoForm("several results of one node leave the part together")
        self.outputs = sorted(returned, key=self._numbers.__getitem__)

    @property
    def symbols(self) -> list[str]:
        """The graph's names of the symbols, in the order of the form."""
        return list(self._symbols)

    def text(self, options: dict) -> str:
        """The form, with options of the plan."""
        outputs = [self._numbers[node] for node in self.outputs]
        told = {"values": self.values, "outputs": outputs, "symbols": len(self._symbols), "options": options}
        return json.dumps(told, separators=(",", ":"))

    def emit(self, target, arguments: list, like: torch.Tensor, dtype: torch.dtype | None = None, shape=None) -> dict:
        """Adds a call whose result has the type of a tensor. Returns a reference to the result."""
        call = [str(target), arguments, {"named": {}}]
        return {"value": self._number(dtype or like.dtype, like.shape if shape is None else shape, call)}

    def reference(self, given: torch.fx.Node) -> dict:
        if given not in self._numbers:
            if given in self._inside:
                raise NoForm(f"{given.name}: it is needed before it is computed")
            value = _tensor(given)
            self.inputs.append(given)
            self._numbers[given] = self._number(value.dtype, value.shape, [])
        if not isinstance(self._numbers[given], int):
            raise NoForm(f"{given.name}: several results as one argument")
        return {"value": self._numbers[given]}

    def _ready(self) -> list[torch.fx.Node]:
        """Nodes whose arguments in the part have been added."""
        done, inside = self._added, self._inside
        return [n for n in self._nodes if n not in done and all(g in done or g not in inside for g in n.all_input_nodes)]

    def _sketch(self, node: torch.fx.Node) -> str:
        """A key that distinguishes nodes independently of their position."""

        def reference(given: torch.fx.Node):
            if given in self._numbers:
                return self._numbers[given]
            value = _tensor(given)
            shape = [_written(size, lambda symbol: self._symbols.get(symbol, "?")) for size in value.shape]
            return [str(value.dtype), shape]

        return repr([str(node.target), _data((node.args, node.kwargs), reference)])

    def _named(self, symbol: str) -> str:
        return self._symbols.setdefault(symbol, f"s{len(self._symbols)}")

    def _add(self, node: torch.fx.Node) -> None:
        self._added.add(node)
        foreign = engine_ops.find_recipe(node)
        if foreign is not None:
            results = [result["value"] for result in foreign(self, node)]
            self._numbers[node] = results if isinstance(node.meta.get("val"), (tuple, list)) else results[0]
        elif node.target is operator.getitem:
            self._numbers[node] = self._numbers[node.args[0]][node.args[1] - engine_ops.first_result(node.args[0])]
        else:
            if not isinstance(node.target, torch._ops.OpOverload):
                raise NoForm(f"{node.name}: expected an operator of a library, found {node.target}")
            value = _tensor(node)
            call = [str(node.target), _data(node.args, self.reference), _data(node.kwargs, self.reference)]
            self._numbers[node] = self._number(value.dtype, value.shape, call)

    def _number(self, dtype: torch.dtype, shape, call: list) -> int:
        self.values.append([str(dtype).removeprefix("torch."), [_written(size, self._named) for size in shape], *call])
        return len(self.values) - 1


def _tensor(node: torch.fx.Node) -> torch.Tensor:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        raise NoForm(f"{node.name}: expected a tensor, found {type(value).__name__}")
    return value


def is_data(node: torch.fx.Node) -> bool:
    """Whether a form can hold a node of one result."""
    try:
        _data((node.args, node.kwargs), _tensor)
        [_written(size, str) for size in _tensor(node).shape]
    except NoForm:
        return False
    return True


def _data(value, reference):
    """An argument of a node as data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.fx.Node):
        # The process group itself, which is an input of the graph, is represented by its name.
        group = getattr(value.meta.get("val"), "real_obj", None)
        return getattr(group, "group_name", None) or reference(value)
    if isinstance(value, torch._ops.OpOverload):
        return {"operator": str(value)}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        return [_data(one, reference) for one in value]
    if isinstance(value, dict):
        return {"named": {name: _data(one, reference) for name, one in sorted(value.items())}}
    raise NoForm(f"{type(value).__name__} in an argument")


def _argument(told, values: list):
    """An argument of data, for these values."""
    if isinstance(told, list):
        return [_argument(one, values) for one in told]
    if not isinstance(told, dict):
        return told
    if "value" in told:
        return values[told["value"]]
    if "dtype" in told:
        return getattr(torch, told["dtype"])
    return {name: _argument(one, values) for name, one in told["named"].items()}


def _written(size, named) -> int | str | list:
    """A size as data: a number, a symbol, or an operation with its operands."""
    expression = size.node.expr if isinstance(size, torch.SymInt) else size
    if isinstance(expression, int) or expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return named(str(expression))
    name = type(expression).__name__
    if name not in _OPERATIONS:
        raise NoForm(f"a size of {name}")
    operands = [_written(operand, named) for operand in expression.args]
    return [name, *(sorted(operands, key=repr) if name in ("Add", "Mul") else operands)]


def _read(size, values: dict):
    """A size of data, for values that may be symbols themselves."""
    if isinstance(size, list):
        return functools.reduce(_OPERATIONS[size[0]], [_read(operand, values) for operand in size[1:]])
    return values[size] if isinstance(size, str) else size


class GraphForm:
    """A form, parsed."""

    def __init__(self, text: str):
        told = json.loads(text)
        self.values, self.outputs, self.options = told["values"], told["outputs"], told["options"]
        self.symbols = [f"s{number}" for number in range(told["symbols"])]

    @property
    def is_collective(self) -> bool:
        """Whether it is a collective and the wait for it, and nothing else."""
        return sum(len(value) > 2 for value in self.values) == 2

    @property
    def groups(self) -> list[str]:
        found = []
        for _, _, *call in self.values:
            if call:
                schema = _operator(call[0])._schema.arguments
                names = [name for name, argument in zip(call[1], schema) if is_process_group(argument)]
                found += [name for name in names + [call[2]["named"].get("group_name")] if name is not None]
        return list(dict.fromkeys(found))

    def results(self, sizes, like: torch.Tensor) -> list[torch.Tensor]:
        """Tensors of the types of the outputs, for values of the symbols."""
        known = dict(zip(self.symbols, sizes))
        types = [self.values[number][:2] for number in self.outputs]
        return [like.new_empty([_read(n, known) for n in shape], dtype=getattr(torch, dtype)) for dtype, shape in types]

    def module(self) -> tuple[torch.fx.GraphModule, list[str]]:
        """The part as a separate graph, and the names of its symbols."""
        environment = ShapeEnv()
        known = {symbol: _symbol(environment, symbol, number) for number, symbol in enumerate(self.symbols)}
        with FakeTensorMode(shape_env=environment):
            types = [
                torch.empty([_read(n, known) for n in shape], dtype=getattr(torch, dtype))
                for dtype, shape, *_ in self.values
            ]
        graph, nodes = torch.fx.Graph(), []
        for number, (_, _, *call) in enumerate(self.values):
            if call:
                target, given, named = call
                nodes.append(graph.call_function(_operator(target), tuple(_argument(given, nodes)), _argument(named, nodes)))
            else:
                nodes.append(_placeholder(graph, number))
            nodes[-1].meta["val"] = types[number]
        graph.output(tuple(nodes[number] for number in self.outputs))
        return torch.fx.GraphModule(torch.nn.Module(), graph), [str(size.node.expr) for size in known.values()]


def _operator(name: str):
    space, name, *overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), overload[0] if overload else "default")


def _placeholder(graph: torch.fx.Graph, number: int) -> torch.fx.Node:
    """An input, after the other inputs and before all other nodes."""
    first = next((node for node in graph.nodes if node.op != "placeholder"), None)
    with graph.inserting_before(first):
        return graph.placeholder(f"input_{number}")


def _symbol(environment: ShapeEnv, name: str, number: int) -> torch.SymInt:
    source, hint = ConstantSource(name), _HINT * (number + 1)
    options = {"constraint_dim": None, "do_not_specialize_zero_one": True}
    symbol = environment.create_symbol(hint, source, DimDynamic.DYNAMIC, **options)
    return environment.create_symintnode(symbol, hint=hint, source=source)
