"""Graphs that run as plans."""

from __future__ import annotations

import hashlib
import operator

import torch

import symmc
from symmc.torch import _graph, _ranks
from symmc.torch._options import Options

_LEAST = 16
"""The least bound of a size that the graph leaves open."""

_ALIGN = 16
"""What memory of GPUs that a session uses starts at a multiple of."""

_DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


class Refused(Exception):
    """Nodes that symmc does not run, by their numbers, and why."""

    def __init__(self, nodes: dict[int, str], error: Exception):
        super().__init__(str(error))
        self.nodes, self.error = nodes, error


class Compiled:
    """A graph as a function of the list of its inputs. What is on another device than the rest is copied in every call."""

    def __init__(self, module: torch.fx.GraphModule, options: Options):
        self._boxed_call = True
        self.options = options
        self.lifted = _graph.Lifted.of(module)
        self.ranks, cells = _ranks.taking_part(self.lifted.groups)
        self.groups = {str(number): cells[name] for number, name in enumerate(self.lifted.groups)}
        self.archives = [_graph.archived(self.lifted.exported)]
        self.program = self._checked(lambda: self._agreed(self._opened({})))
        self._refuse(set(self.program.opaque.values()))
        self.where = self._symbols()
        self.device = self._device()
        values = self.lifted.values
        # On the host nothing is elsewhere, and tensors are aligned for their elements as they are.
        self.align = _ALIGN if self.device.type == "cuda" else 1
        self.elsewhere = [k for k, at in enumerate(self.lifted.inputs) if values[at].device != self.device]
        self.host_results = [k for k, device in enumerate(self.lifted.devices) if device != self.device]
        self.caps: dict[str, int] = {}
        self.plan: symmc.Plan | None = None
        self.session: symmc.Session | None = None
        self.sizes: tuple[int, ...] | None = None
        self.results: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._checked(lambda: self._plan_for(self._traced()))

    def _calls(self) -> list[torch.fx.Node]:
        return [node for node in self.lifted.exported.graph.nodes if node.op == "call_function"]

    def _refuse(self, operators: set[str]) -> None:
        """Refuses these operators, if there are any."""
        if operators:
            calls = [node for node in self._calls() if str(node.target) in operators]
            error = symmc.UnsupportedError(f"operators that symmc does not know: {', '.join(sorted(operators))}")
            raise Refused({node.meta[_graph.NUMBER]: f"{node.target} is not known" for node in calls}, error)

    def _checked(self, work):
        """What work gives; an error that names a node of the graph is about that node."""
        try:
            return work()
        except symmc.Error as error:
            calls = {node.name: node for node in self._calls()}
            name = error.node or ""
            node = calls.get(name) or calls.get(name.split(".")[0])
            if error.kind not in ("input", "unsupported") or node is None:
                raise
            if node.target is operator.getitem:
                # A node of several results is called by the first of them.
                node = node.args[0]
            raise Refused({node.meta[_graph.NUMBER]: str(error)}, error) from error

    def _traced(self) -> tuple[int, ...]:
        """The sizes of the inputs that the graph was traced with."""
        values = self.lifted.values
        sizes = [values[at] if axis is None else values[at].shape[axis] for _, at, axis in self.where]
        return tuple(size.node.hint or _LEAST for size in sizes)

    def _device(self) -> torch.device:
        """Where the graph runs: on the GPU of its tensors, if one of them is there."""
        tensors = [node.meta["val"] for node in self.lifted.exported.graph.nodes if _is_tensor(node)]
        gpus = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
        others = {tensor.device.type for tensor in tensors} - {"cpu", "cuda"}
        if others or len(gpus) > 1:
            found = ", ".join(sorted(others) + sorted(map(str, gpus)))
            raise symmc.UnsupportedError(f"expected tensors of one GPU, or of the host, found some of {found}")
        return next(iter(gpus), torch.device("cpu"))

    def _opened(self, dims) -> symmc.Program:
        return _graph.opened(self.archives, ranks=len(self.ranks.members), groups=self.groups, dims=dims)

    def _agreed(self, program: symmc.Program) -> symmc.Program:
        """The program of all ranks: theirs may differ in constants."""
        if len(self.ranks.members) == 1:
            return program
        digest = hashlib.sha256(program.text().encode()).digest()
        if len(set(self.ranks.all_gather(digest))) == 1:
            return program
        self.archives = self.ranks.all_gather(self.archives[0])
        return self._opened({})

    def _symbols(self) -> list[tuple[str, int, int | None]]:
        """For each symbol of the program the input of the graph, and the axis of that, which tell its value."""
        told: dict[str, tuple[int, int | None]] = {}
        for at, value in enumerate(self.lifted.values):
            sizes = [(None, value)] if isinstance(value, torch.SymInt) else []
            if isinstance(value, torch.Tensor):
                sizes = list(enumerate(value.shape))
            for axis, size in sizes:
                if isinstance(size, torch.SymInt):
                    told.setdefault(str(size.node.expr), (at, axis))
        where = []
        for name, alias in self.program.aliases.items():
            if name in self.program.symbols:
                found = told.get(alias) or told.get(name)
                if found is None:
                    raise symmc.UnsupportedError(f"no input has the size {alias}")
                where.append((name, *found))
        return where

    def _plan_for(self, sizes: tuple[int, ...]) -> bool:
        """Makes a plan that serves these sizes, unless the one that there is does; whether it did."""
        for (name, _, _), size in zip(self.where, sizes):
            most = self.program.symbols[name][1]
            if size > self.caps.get(name, 0):
                self.caps[name] = min(most, max(_LEAST, 1 << max(size - 1, 0).bit_length()))
                self.plan = None
        if self.plan is not None:
            return False
        program = self._opened({name: (None, cap) for name, cap in self.caps.items()}) if self.caps else self.program
        buckets = {name: self._buckets(cap) for name, cap in self.caps.items()} if self.options.buckets else {}
        self.planned = program
        self.plan = symmc.compile(program, machine=self._machine(), buckets=buckets)
        if self.options.report:
            with open(self.options.report, "a", encoding="utf-8") as file:
                file.write(self.plan.report() + "\n")
        return True

    def _open_for(self, sizes: tuple[int, ...]) -> bool:
        """Opens a session that serves these sizes, unless the one that there is does; whether it did."""
        if not self._plan_for(sizes) and self.session is not None:
            return False
        if self.session is not None:
            self.session.close()
        gpu = self.device.index if self.device.type == "cuda" else None
        self.session = symmc.Session(self.plan, self.ranks.group(), gpu=gpu, timeout=self.options.timeout)
        return True

    def _buckets(self, cap: int) -> list[int]:
        return sorted({bound for bound in self.options.buckets if bound < cap} | {cap})

    def _machine(self) -> str | None:
        if self.options.machine is not None or self.device.type != "cuda":
            return self.options.machine
        return "h200x4" if len(self.ranks.members) > 2 else "h200x2"

    def _resize(self, sizes: tuple[int, ...]) -> None:
        opened = self._open_for(sizes)
        self.session.set(**{name: size for (name, _, _), size in zip(self.where, sizes)})
        if opened:
            # Single numbers that differ between ranks.
            for name, tensor in self.planned.parameters(self.ranks.rank).items():
                self.session.write(f"w.{name}", tensor)
        returned = [value for value in self.session.outputs() if value.replaces is None]
        self.results = [(tuple(value.shape), _DTYPES[value.dtype]) for value in returned]
        self.sizes = sizes

    def __call__(self, inputs: list):
        sizes = tuple(inputs[at] if axis is None else inputs[at].shape[axis] for _, at, axis in self.where)
        if sizes != self.sizes:
            self._resize(sizes)
        given = [inputs[at] for at in self.lifted.inputs]
        lent = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in given]
        for at in self.elsewhere:
            lent[at] = lent[at].to(self.device)
        if self.align > 1:
            lent = [tensor if tensor.data_ptr() % self.align == 0 else tensor.clone() for tensor in lent]
        results = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self.results]
        stream = torch.cuda.current_stream(self.device).cuda_stream if self.device.type == "cuda" else None
        self.session.launch([t.data_ptr() for t in lent], [t.data_ptr() for t in results], stream)
        for at in self.lifted.mutated:
            if lent[at] is not given[at]:
                given[at].copy_(lent[at])
        for at in self.host_results:
            results[at] = results[at].cpu()
        return [self._output(out, inputs, results, sizes) for out in self.lifted.outputs]

    def _output(self, out: _graph.Output, inputs, results, sizes):
        if out.number is not None:
            return results[out.number]
        if out.input is not None:
            return inputs[out.input]
        if isinstance(out.value, torch.SymInt):
            values = {str(alias): size for alias, size in zip(self._aliases(), sizes)}
            expression = out.value.node.expr
            return int(expression.subs({s: values[str(s)] for s in expression.free_symbols}))
        return out.value

    def _aliases(self):
        return [self.program.aliases[name] for name, _, _ in self.where]


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
