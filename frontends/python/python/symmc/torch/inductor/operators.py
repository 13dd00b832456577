"""Operators of symmc in graphs of PyTorch, and the sessions that run them.

They are called hundreds of times in a pass over a model, while the GPU waits for the CPU. A call is a look-up and a run. A form has one
program, plan and session, for all graphs that have it.

Ranks agree on a call only if it needs another plan or session, and on the first call after a failure (``graph_calls``).

``planned`` returns its results on the current stream. ``start`` begins the same run on a stream of its own, after the work that the
current stream has, and ``wait`` makes the current stream wait for the results. Operands are arguments of both, so that their memory is
not reused in between. On the host ``start`` is the whole run. Runs of a device are in the order of the calls, as those of a
communicator: two sessions that run at the same time could wait for each other.
"""

from __future__ import annotations

import contextlib
import functools
import threading

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

import symmc
from symmc._symmc import SizeAssumptions
from symmc.torch.graphs.nodes import rename_process_groups
from symmc.torch.importing import programs
from symmc.torch.importing.lift import LiftedGraph
from symmc.torch.inductor import graph_calls
from symmc.torch.inductor.form import GraphForm
from symmc.torch.inductor.graph_calls import site_of
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.digest import digest_of
from symmc.torch.ranks.exchange import is_raised_by_all
from symmc.torch.runtime.operands import find_without_memory, without_memory_error
from symmc.torch.runtime.runner import BAD_DATA, DTYPES, PlanRunner, machine_for
from symmc.torch.settings.options import Options

_library = torch.library.Library("symmc", "DEF")
_library.define("planned(Tensor[] inputs, SymInt[] sizes, str form, str site) -> Tensor[]")
_library.define("start(Tensor[] inputs, SymInt[] sizes, str form, str site) -> Tensor")
_library.define("wait(Tensor started, Tensor[] inputs, SymInt[] sizes, str form) -> Tensor[]")

_MOST = 8192
"""The largest value of a symbol for which a form is checked to be worth a plan."""

_world = dist.distributed_c10d._world if dist.is_available() else None


class PlannedForm:
    """A form as a function of its inputs, for the current process groups."""

    def __init__(self, text: str):
        self.world = _world.default_pg
        form = form_of(text)
        self.options = Options.of(form.options)
        self.ranks, self.groups = process_groups.connect_groups(form.groups, self.options.timeout)
        self.is_left = False
        """Whether PyTorch runs the form, as all ranks have decided."""
        self.has_taken_part = False
        """Whether the present call has begun a run, so that the others need nothing more of this rank."""
        self.history = graph_calls.history_of(tuple(form.groups)) if len(self.ranks.members) > 1 else None
        if self.history is not None:
            self.history.forms.add(self)
        self.module, self.symbols = form.module()
        self.lifted = LiftedGraph.from_module(self.module)
        self.begin = _collective(self.module) if form.is_collective else None
        """Starts a form that is a single collective, by PyTorch."""
        self.runner = PlanRunner(self.lifted, self.symbols, self.ranks, self.groups, self.options)
        self.decided: tuple[tuple[int, ...] | None, bool] = (None, False)
        """Sizes, and whether PyTorch runs them: where the plan has the vendor's library for them, which PyTorch calls as well."""

    def begin_call(self) -> None:
        """Resets what the last call has begun."""
        self.has_taken_part = False
        self.runner.begin_call()

    def start(self, sizes: tuple[int, ...], inputs: tuple[torch.Tensor, ...], device: torch.device, stream=None):
        """Starts a run. Returns its results, and whether PyTorch runs it: then each result is to be waited for."""
        history = self.history
        if history is None or not (history.needs_agreement or self._needs_ranks(sizes)):
            return self._start(sizes, inputs, device, stream)
        with history.lock:
            call = history.agree(self, self.ranks, sizes)
            with call:
                # A rank whose wait was interrupted takes no part.
                call.raise_failure()
                if self.is_left_to_pytorch(sizes, device):
                    # PyTorch ends no wait for a rank that fails before it has decided.
                    self.ranks.all_gather(b"", "a collective that PyTorch runs")
                return self._start(sizes, inputs, device, stream)

    def wait(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Waits for results of PyTorch."""
        try:
            return list(map(torch.ops._c10d_functional.wait_tensor.default, results))
        except Exception as error:
            if self.history is not None:
                # This rank has taken part, others may wait for each other.
                self.history.notify(error, is_left_in_pytorch=True)
                self.history.end_sessions(error)
            raise

    def took_part(self, error: BaseException) -> bool:
        """Whether this rank has begun its run in a call that failed with this error."""
        # A run that fails ends on all ranks.
        return self.has_taken_part or self.runner.has_started and not isinstance(error, symmc.Error)

    def explain(self, error: BaseException, inputs: tuple[torch.Tensor, ...]) -> BaseException:
        """The error of a run on these inputs, which names an input without memory if there is one."""
        freed = find_without_memory(inputs) if isinstance(error, symmc.InputError) else None
        if freed is None:
            return error
        node = [node for node in self.module.graph.nodes if node.op == "placeholder"][freed]
        user = next(iter(node.users))
        operand = f"operand {user.all_input_nodes.index(node)} of {user.target._opname}"
        return without_memory_error(f"{operand}, with the extents {list(inputs[freed].shape)},")

    def state(self, sizes: tuple[int, ...]) -> int:
        """A digest of its plan."""
        with self.runner.lock:
            self.runner.needs_plan(sizes)
            return digest_of([sorted(self.runner.ranges.items()), self.runner.plan is not None, self.decided == (sizes, True)])

    def forget_plan(self) -> None:
        """Drops its plan. All ranks call this together."""
        self.runner.close()
        self.runner = PlanRunner(self.lifted, self.symbols, self.ranks, self.groups, self.options)
        self.decided, self.is_left = (None, False), False

    def abort(self, error: BaseException) -> None:
        """Ends its session on all ranks, because of an error of this rank."""
        self.runner.arenas.abort(self.ranks.members, error)

    def _needs_ranks(self, sizes: tuple[int, ...]) -> bool:
        """Whether ranks exchange something before a run of these sizes."""
        runner = self.runner
        if sizes == runner.sizes and runner.is_open:
            return False
        with runner.lock:
            return runner.needs_plan(sizes) or not (runner.is_open or self.decided == (sizes, True))

    def _start(self, sizes: tuple[int, ...], inputs: tuple[torch.Tensor, ...], device: torch.device, stream):
        self.is_left = self.is_left_to_pytorch(sizes, device)
        if self.is_left:
            begun = self.begin(*inputs)
            self.has_taken_part = True
            return [begun], True
        return self.runner.run(sizes, inputs, device, stream)[0], False

    def is_left_to_pytorch(self, sizes: tuple[int, ...], device: torch.device) -> bool:
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
            program = programs.open_archives([archive], ranks=ranks, groups=groups, dims=sizes.dims(), assume_sizes=False)
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
                graph_calls.forget_forms()
    return _planned.setdefault(text, {}).setdefault(device, PlannedForm(text))


def _call_form(text: str, site_text: str, sizes: list[int], inputs: list[torch.Tensor], begun_before, stream=None):
    """Starts a run of a form at its place in a graph, after other runs. Returns the form, its results, and whether PyTorch runs it."""
    call, form, site, given = None, None, site_of(site_text), tuple(inputs)
    device = given[0].device
    try:
        call = graph_calls.enter(site)
        for begun in begun_before:
            begun.wait()
        planned = _find_planned(text, device)
        planned.begin_call()
        # An error before this concerns no run, also not the last one of the form.
        form = site.form = planned
        results, is_left = form.start(tuple(sizes), given, device, stream)
        graph_calls.take_part(call, site)
        return form, results, is_left
    except BaseException as raised:
        error = raised
        if form is not None and call is not None and form.took_part(raised):
            graph_calls.take_part(call, site)
        if call is not None:
            # Also if another error interrupts what follows.
            call.has_failed = True
        if form is not None:
            with contextlib.suppress(Exception):
                error = form.explain(raised, given)
        is_shared = form is not None and (isinstance(error, BAD_DATA) or is_raised_by_all(error))
        graph_calls.fail(error, site.graph if call is None else None, form.history if is_shared else None)
        _drop_started_runs()
        if error is raised:
            raise
        raise error from raised


class _StartedRun:
    """A run that was started and not yet waited for."""

    def __init__(
        self, form: PlannedForm, results: list[torch.Tensor], inputs: list[torch.Tensor], end: torch.cuda.Event | None, is_left: bool
    ):  # fmt: skip
        self.form, self.results, self.inputs, self.end, self.is_left = form, results, inputs, end, is_left
        self.thread = threading.get_ident()

    def wait(self) -> list[torch.Tensor]:
        """Makes the current stream wait for the results."""
        if self.end is not None:
            torch.cuda.current_stream(self.results[0].device).wait_event(self.end)
        if self.is_left:
            self.results = self.form.wait(self.results)
        return self.results


_started: dict[int, _StartedRun] = {}
"""The started runs, by the address of their token in the graph."""


def _drop_started_runs() -> None:
    """Drops the runs of a graph of this thread that raises, which does not wait for them."""
    for token, begun in list(_started.items()):
        if begun.thread == threading.get_ident() and _started.pop(token, None) is not None and begun.end is not None:
            # Until then they use the memory of their tensors.
            with contextlib.suppress(Exception):
                begun.end.synchronize()


@functools.cache
def _side(gpu: int) -> torch.cuda.Stream:
    """The stream of a GPU on which runs are begun."""
    return torch.cuda.Stream(gpu)


def _run(inputs: list[torch.Tensor], sizes: list[int], text: str, site: str) -> list[torch.Tensor]:
    """The results of a form on these inputs, with these values of its symbols."""
    form, results, is_left = _call_form(text, site, sizes, inputs, list(_started.values()) if _started else ())
    return form.wait(results) if is_left else results


def _start(inputs: list[torch.Tensor], sizes: list[int], text: str, site: str) -> torch.Tensor:
    """Starts a run. Returns its token."""
    device = inputs[0].device
    side = _side(device.index) if device.type == "cuda" else None

    def stream() -> int:
        side.wait_stream(torch.cuda.current_stream(device))
        return side.cuda_stream

    form, results, is_left = _call_form(text, site, sizes, inputs, (), None if side is None else stream)
    end = None if side is None or is_left else side.record_event()
    token = inputs[0].new_empty(1, dtype=torch.int64)
    _started[token.data_ptr()] = _StartedRun(form, results, inputs, end, is_left)
    return token


def _wait(started: torch.Tensor, inputs: list[torch.Tensor], sizes: list[int], text: str) -> list[torch.Tensor]:
    """Waits for a started run, and returns its results."""
    return _started.pop(started.data_ptr()).wait()


def _fake(inputs, sizes, text, site):
    return form_of(text).results(sizes, inputs[0])


def _fake_start(inputs, sizes, text, site):
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
    # All ranks run it, so none may leave it out because it does not use the results.
    torch.fx.node.has_side_effect(getattr(torch.ops.symmc, _name).default)
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
