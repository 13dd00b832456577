"""Operators of symmc in graphs of PyTorch, and the sessions that run them.

They are called hundreds of times in a pass over a model, while the GPU waits for the CPU. A call is a look-up and a run. A form has one
program, plan and session, for all graphs that have it.

Ranks agree on a call only if it needs another plan or session. A rank that fails in such a call leaves a notice for the others. In other
calls it ends the session, so that the runs of the others end. Ranks then plan the form again together.

``planned`` returns its results on the current stream. ``start`` begins the same run on a stream of its own, after the work that the
current stream has, and ``wait`` makes the current stream wait for the results. Operands are arguments of both, so that their memory is
not reused in between. On the host ``start`` is the whole run. Runs of a device are in the order of the calls, as those of a
communicator: two sessions that run at the same time could wait for each other.
"""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

import symmc
from symmc._symmc import SizeAssumptions
from symmc.torch.graphs.nodes import rename_process_groups
from symmc.torch.importing import programs
from symmc.torch.importing.lift import LiftedGraph
from symmc.torch.inductor.form import GraphForm
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.board import Board
from symmc.torch.ranks.exchange import JointCall, RankGroup, WorldCache, is_raised_by_all
from symmc.torch.runtime.operands import find_without_memory, without_memory_error
from symmc.torch.runtime.runner import BAD_DATA, DTYPES, PlanRunner, machine_for
from symmc.torch.settings.options import Options

_library = torch.library.Library("symmc", "DEF")
_library.define("planned(Tensor[] inputs, SymInt[] sizes, str form) -> Tensor[]")
_library.define("start(Tensor[] inputs, SymInt[] sizes, str form) -> Tensor")
_library.define("wait(Tensor started, Tensor[] inputs, SymInt[] sizes, str form) -> Tensor[]")

_MOST = 8192
"""The largest value of a symbol for which a form is checked to be worth a plan."""

_world = dist.distributed_c10d._world if dist.is_available() else None

_boards = WorldCache({})
"""The boards of forms, by their ranks and the timeout of their waits."""


def _board_of(ranks: RankGroup) -> Board:
    boards, key = _boards(), (ranks.members, ranks.timeout)
    if key not in boards:
        boards[key] = Board(ranks)
    return boards[key]


class PlannedForm:
    """A form as a function of its inputs, for the current process groups."""

    def __init__(self, text: str):
        self.world, self.text = _world.default_pg, text
        form = form_of(text)
        self.module, symbols = form.module()
        lifted = LiftedGraph.from_module(self.module)
        options = Options.of(form.options)
        ranks, groups = process_groups.connect_groups(lifted.groups, options.timeout)
        self.runner = PlanRunner(lifted, symbols, ranks, groups, options)
        self.board = _board_of(ranks) if len(ranks.members) > 1 else None
        self.decided: tuple[tuple[int, ...] | None, bool] = (None, False)
        """Sizes, and whether PyTorch runs them: where the plan has the vendor's library for them, which PyTorch calls as well."""
        self.begin = _collective(self.module) if form.is_collective else None
        """Starts a form that is a single collective, by PyTorch."""

    def start(self, sizes: tuple[int, ...], inputs: tuple[torch.Tensor, ...], device: torch.device, stream=None):
        """Starts a run. Returns its results, and whether PyTorch runs it: then each result is to be waited for."""
        call: JointCall | None = None
        self.runner.has_started = False
        try:
            if self.board is None or not self._needs_ranks(sizes, device):
                return self._start(sizes, inputs, device, stream)
            with self.board.lock:
                round = self.board.next_round((0, 0, 0, 0))
                call = self.board.joint_call(round)
                self.board.gather(round)
                with call:
                    # A rank whose wait was interrupted takes no part.
                    call.raise_failure()
                    return self._start(sizes, inputs, device, stream)
        except BaseException as raised:
            error = self._explain(raised, inputs)
            self._fail(error, call)
            if error is raised:
                raise
            raise error from raised

    def _explain(self, error: BaseException, inputs: tuple[torch.Tensor, ...]) -> BaseException:
        """The error of a run on these inputs, which names an input without memory if there is one."""
        freed = find_without_memory(inputs) if isinstance(error, symmc.InputError) else None
        if freed is None:
            return error
        node = [node for node in self.module.graph.nodes if node.op == "placeholder"][freed]
        user = next(iter(node.users))
        return without_memory_error(f"operand {user.all_input_nodes.index(node)} of {user.target._opname}, with the extents {list(inputs[freed].shape)},")

    def _needs_ranks(self, sizes: tuple[int, ...], device: torch.device) -> bool:
        """Whether ranks exchange something before a run of these sizes."""
        runner, is_left = self.runner, self.decided == (sizes, True)
        if sizes == runner.sizes and runner.is_open:
            return False
        with runner.lock:
            return runner.needs_plan(sizes) or not (runner.is_open or is_left)

    def _start(self, sizes: tuple[int, ...], inputs: tuple[torch.Tensor, ...], device: torch.device, stream):
        if self.is_left(sizes, device):
            return [self.begin(*inputs)], True
        return self.runner.run(sizes, inputs, device, stream)[0], False

    def _fail(self, error: BaseException, call: JointCall | None) -> None:
        """Ends the call of the other ranks, because of an error of this one, and drops the plan on all of them."""
        is_run_of_others = isinstance(error, KeyboardInterrupt) and self.runner.has_started
        if isinstance(error, BAD_DATA) or is_raised_by_all(error) or is_run_of_others:
            return
        if call is not None:
            call.report(error)
        self.runner.arenas.abort(self.runner.ranks.members, error)
        planned = _planned.get(self.text, {})
        for device in [device for device, form in planned.items() if form is self]:
            del planned[device]
        # The graph that raises does not wait for them.
        _started.clear()

    def is_left(self, sizes: tuple[int, ...], device: torch.device) -> bool:
        """Whether PyTorch runs these sizes."""
        decided = self.decided
        return (decided if decided[0] == sizes else self._decide(sizes, device))[1]

    def _decide(self, sizes: tuple[int, ...], device: torch.device):
        is_left = False
        if self.begin is not None and self.runner.machine(device) is not None:
            with self.runner.lock:
                self.runner.plan_for(sizes, device)
                is_left = not _gains(_serving(self.runner.plan.choices(), self.runner.program_sizes(sizes)))
        self.decided = (sizes, is_left)
        return self.decided


def _collective(module: torch.fx.GraphModule):
    """A function that starts the collective of a form, with PyTorch's names of process groups."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(module.graph, known)
    begun = next(new for new in known.values() if new.op == "call_function")
    for node in list(begun.users):
        graph.erase_node(node)
    graph.output(begun)
    rename_process_groups(graph, lambda name: process_groups.find_process_group(name).group_name)
    return torch.fx.GraphModule(module, graph)


def _serving(choices: list[symmc.Choice], values: dict[str, int]) -> list[symmc.Choice]:
    """The choices of the bucket that serves these values."""
    return [c for c in choices if all(low <= values[name] <= high for name, (low, high) in c.symbols.items())]


def _gains(choices: list[symmc.Choice]) -> bool:
    """Whether any collective uses another variant than the vendor's library."""
    return any(choice.chosen != "plain" for choice in choices)


@functools.cache
def form_of(text: str) -> GraphForm:
    return GraphForm(text)


@functools.cache
def is_worth_it(text: str, device: str, ranks: int) -> bool:
    """Whether a form has a plan for this number of ranks that uses more than the vendor's library at some size.

    This is decided while a graph is compiled. All ranks get the same result, since it follows from the form and the machine's profile.
    On the host there is no library to compare with, unless the profile of another machine is asked for.
    """
    form = form_of(text)
    options = Options.of(form.options)
    known = {str(dtype).removeprefix("torch.") for dtype in DTYPES.values()}
    if any(dtype not in known for dtype, *_ in form.values):
        return False
    with unset_fake_temporarily(), torch.no_grad():
        module, symbols = form.module()
        lifted = LiftedGraph.from_module(module)
        groups = {str(number): [list(range(ranks))] for number in range(len(lifted.groups))}
        machine = machine_for(options, device, ranks)
        try:
            archive, sizes = lifted.archive(dict.fromkeys(symbols, (0, _MOST))), SizeAssumptions(lifted.steps, may_fix_sizes=False)
            program = programs.open_archives([archive], ranks=ranks, groups=groups, dims=sizes.dims())
            plan = symmc.compile(program, machine=machine, buckets=options.bucket_ends(program, sizes))
        except (symmc.InputError, symmc.UnsupportedError, symmc.ResourceError):
            return False
    return not program.opaque and (machine is None or _gains(plan.choices()))


_planned: dict[str, dict[torch.device, PlannedForm]] = {}
"""The planned forms, by text and device of the operands."""


def _find_planned(text: str, device: torch.device) -> PlannedForm:
    """The planned form of a text. After the default process group is replaced, forms are planned again."""
    known = _planned.get(text, _NOWHERE).get(device)
    if known is None or known.world is not _world.default_pg:
        known = _plan_form(text, device)
    return known


_NOWHERE: dict = {}


def _plan_form(text: str, device: torch.device) -> PlannedForm:
    """Plans a form when it runs first, on all ranks together."""
    for known in list(_planned.values()):
        for place, planned in list(known.items()):
            if planned.world is not _world.default_pg:
                del known[place]
                planned.runner.close()
    return _planned.setdefault(text, {}).setdefault(device, PlannedForm(text))


class _StartedRun:
    """A run that was started and not yet waited for."""

    def __init__(self, results: list[torch.Tensor], inputs: list[torch.Tensor], end: torch.cuda.Event | None, is_left: bool):
        self.results, self.inputs, self.end, self.is_left = results, inputs, end, is_left

    def wait(self) -> list[torch.Tensor]:
        """Makes the current stream wait for the results."""
        if self.end is not None:
            torch.cuda.current_stream(self.results[0].device).wait_event(self.end)
        if self.is_left:
            self.results = list(map(torch.ops._c10d_functional.wait_tensor.default, self.results))
        return self.results


_started: dict[int, _StartedRun] = {}
"""The started runs, by the address of their token in the graph."""


@functools.cache
def _side(gpu: int) -> torch.cuda.Stream:
    """The stream of a GPU on which runs are begun."""
    return torch.cuda.Stream(gpu)


def _run(inputs: list[torch.Tensor], sizes: list[int], text: str) -> list[torch.Tensor]:
    """The results of a form on these inputs, with these values of its symbols."""
    if _started:
        for begun in list(_started.values()):
            begun.wait()
    device = inputs[0].device
    results, is_left = _find_planned(text, device).start(tuple(sizes), tuple(inputs), device)
    return list(map(torch.ops._c10d_functional.wait_tensor.default, results)) if is_left else results


def _start(inputs: list[torch.Tensor], sizes: list[int], text: str) -> torch.Tensor:
    """Starts a run. Returns its token."""
    token = inputs[0].new_empty(1, dtype=torch.int64)
    device, end = inputs[0].device, None
    side = _side(device.index) if device.type == "cuda" else None

    def stream() -> int:
        side.wait_stream(torch.cuda.current_stream(device))
        return side.cuda_stream

    results, is_left = _find_planned(text, device).start(tuple(sizes), tuple(inputs), device, None if side is None else stream)
    if side is not None and not is_left:
        end = side.record_event()
    _started[token.data_ptr()] = _StartedRun(results, inputs, end, is_left)
    return token


def _wait(started: torch.Tensor, inputs: list[torch.Tensor], sizes: list[int], text: str) -> list[torch.Tensor]:
    """Waits for a started run, and returns its results."""
    return _started.pop(started.data_ptr()).wait()


def _fake(inputs, sizes, text):
    return form_of(text).results(sizes, inputs[0])


def _fake_start(inputs, sizes, text):
    return inputs[0].new_empty(1, dtype=torch.int64)


def _fake_wait(started, inputs, sizes, text):
    return form_of(text).results(sizes, inputs[0])


_CALLED = "called_{}"
"""The name of an operator's function in ``torch.ops.symmc``, where Inductor's graphs find it."""

for _name, _kernel, _meta in [("planned", _run, _fake), ("start", _start, _fake_start), ("wait", _wait, _fake_wait)]:
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _key)
        # Graphs that contain it have been differentiated already.
        _library.impl(_name, torch.library.fallthrough_kernel, f"Autograd{_key}")
    torch.library.register_fake(f"symmc::{_name}", _meta, lib=_library)
    setattr(torch.ops.symmc, _CALLED.format(_name), _kernel)


def lower() -> None:
    """Makes code of Inductor call the functions of the operators without the dispatcher, which takes longer than they do."""
    from torch._inductor import lowering

    for name in ("planned", "start", "wait"):
        op = getattr(torch.ops.symmc, name).default
        if op not in lowering.lowerings:
            lowering.make_fallback(op, layout_constraint=lowering.require_contiguous, warn=False)
            lowering.lowerings[op] = _lowered(lowering.lowerings[op], op, f"torch.ops.symmc.{_CALLED.format(name)}")


def _lowered(lowered, op: torch._ops.OpOverload, function: str):
    """Lowers an operator in the same way as other operators that Inductor does not support, with another name for the call."""

    @functools.wraps(lowered)
    def of(*given, **named):
        from torch._inductor.virtualized import V

        made = lowered(*given, **named)
        if not V.graph.cpp_wrapper and not getattr(V.graph, "fx_wrapper", False):
            kernels = reversed(V.graph.operations)
            kernel = next((kernel for kernel in kernels if getattr(kernel, "op_overload", None) is op), None)
            if kernel is not None:
                kernel.python_kernel_name = function
        return made

    return of
