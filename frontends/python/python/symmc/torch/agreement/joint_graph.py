"""Graphs with collectives of several ranks, as functions that all these ranks call together.

Dynamo compiles for each rank alone, and recompiles when the sizes of one rank change; the other ranks do not notice. So ranks agree
when they call a graph. In every call each rank publishes the number of its graph and a digest of its sizes on a
:class:`~symmc.torch.ranks.board.Board`, and all ranks decide from the same numbers:

- The sizes are the same, and this combination of graphs was compiled together before: its plan runs.
- The sizes are the same, and the combination is new: the ranks compile the graphs together, as one program.
- The sizes differ, or the graphs are not one program: PyTorch runs the collectives of this call, and symmc runs the operators
  between them on each rank. If the collectives do not match, all ranks raise an error.

What a rank knows before it calls the graph is part of these numbers: arguments that no run can use, an error of an earlier run, and sessions
that an error has ended. A rank that fails later leaves a notice, which ends the waits of the others in this call, and ends the sessions of
the call on all ranks. The next call opens other sessions.
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily

import symmc
from symmc.torch.agreement import matching
from symmc.torch.graphs.nodes import copy_graph, process_groups_in
from symmc.torch.graphs.sizes import ignored_guards, shape_env_of, symbol_sources
from symmc.torch.partition import compiler
from symmc.torch.partition.fallback import in_eager
from symmc.torch.partition.search import PartitionSearch
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.board import Board, Words, open_board
from symmc.torch.ranks.digest import digest_of, digest_of_sizes
from symmc.torch.ranks.exchange import GraphsDiffer, JointCall, is_raised_by_all, peer_error, raised_by_all
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.runtime.operands import OperandCheck, checked
from symmc.torch.runtime.planned_graph import PlannedGraph
from symmc.torch.runtime.runner import BAD_DATA
from symmc.torch.settings.options import Options


def compile_joint_graph(module: torch.fx.GraphModule, options: Options, arenas: Arenas | None = None):
    """A function of the list of the inputs of a graph."""
    names = process_groups_in(module.graph)
    if not process_groups.connects_several_ranks(names):
        return checked(compiler.compile_graph(module, PartitionSearch(options, arenas=arenas)), module.graph)
    return JointGraph(module, options, names, arenas)


_BAD_DATA, _FAILED = 1, 2
"""Bits of the state of a rank before a call: an earlier run on a GPU had bad data, or failed."""

_ABORTED, _INCOMPLETE = 4, 8
"""Bits of the state of a rank: an error has ended sessions, or a call of this graph, whose decisions other ranks may not have."""

_OVERLAP = 16
"""A bit of the state of a rank: arguments share memory. The last published number says which."""

_WITHIN = 32
"""A bit of the state of a rank in a round within a call, in which ranks compare collectives that PyTorch will run."""


class JointGraph:
    """A graph with collectives of several ranks, as a function of the list of its inputs."""

    def __init__(self, module: torch.fx.GraphModule, options: Options, names: list[str], arenas: Arenas | None = None):
        self._boxed_call = True
        self.module = torch.fx.GraphModule(module, copy_graph(module.graph, {}))
        self.options, self.names, self.arenas = options, names, arenas
        self.tracing = TracingContext.try_get()
        values = [node.meta.get("val") for node in self.module.graph.nodes if node.op == "placeholder"]
        self.symbol_sources = symbol_sources(values)
        self.operands = OperandCheck(self.module.graph)
        self.board: Board | None = None
        self.number = 0
        """Its number among the graphs of this rank on the board, from 1."""
        self.decisions: dict[tuple[int, ...], PartitionSearch | str] = {}
        """For each combination of graphs of all ranks, by their numbers: the plan, or the reason why they are not one program."""
        self.is_incomplete = False
        """Whether an error of one rank has ended the last call."""
        self.separate: PartitionSearch | None = None
        """The form that leaves the collectives to PyTorch."""
        self.lock = threading.Lock()
        """Threads that call one function take turns."""

    def __call__(self, inputs: list):
        # An exception may be raised between any two instructions: only a `with` of a lock never leaves it locked.
        with self.lock:
            board = self.open()
            with board.lock:
                board.await_background()
                call = _JointCall(self, board, inputs)
                try:
                    return call.run()
                except BaseException as error:
                    # Errors of the board end it on all ranks. Ctrl-C, or an alarm of the caller, ends the wait on this rank only.
                    if not isinstance(error, symmc.Error):
                        call.continue_in_background()
                    raise

    def open(self) -> Board:
        """The board on which its ranks publish what they run."""
        if self.board is None:
            ranks, _ = process_groups.connect_ranks(self.names, self.options.timeout)
            with ranks.reporting_errors():
                self.board = open_board(ranks)
            self.number = self.board.register_function()
        return self.board

    def run(self, inputs: list, sizes: tuple[int, ...], pending_error: symmc.Error | None, published: list[Words]):
        """One call, after all ranks have published what they would run."""
        if any(state for _, _, state, _ in published):
            self._expect_ready(pending_error, published)
        if len({digest for _, digest, *_ in published}) > 1:
            return self._run_separately(inputs, sizes, "the ranks call it with different sizes")
        numbers = tuple(number for number, *_ in published)
        found = self.decisions.get(numbers)
        if found is None:
            return self._compile_together(inputs, sizes, numbers)
        if isinstance(found, str):
            return self._run_separately(inputs, sizes, found)
        return found.function(inputs)

    def begin_call(self, numbers: tuple[int, ...]) -> None:
        """A call of these graphs of all ranks begins."""
        search = self.decisions.get(numbers)
        for runner in [] if search is None or isinstance(search, str) else search.runners:
            runner.begin_call()

    def state(self, inputs: list) -> tuple[int, int, symmc.Error | None]:
        """The state of this rank before a call, the arguments that share memory, and the error of an earlier run on a GPU."""
        state, arguments, pending_error = 0, 0, None
        try:
            for runner in self._runners():
                runner.poll()
        except symmc.Error as error:
            pending_error = error
            state |= _BAD_DATA if isinstance(error, BAD_DATA) else _FAILED
        if any(arenas.aborted and self.board.ranks.members in arenas.aborted for arenas in self._all_arenas()):
            state |= _ABORTED
        if self.is_incomplete:
            state |= _INCOMPLETE
        pair = self.operands.find_overlap(inputs)
        if pair is not None:
            state |= _OVERLAP
            arguments = pair[0] << 31 | pair[1]
        return state, arguments, pending_error

    def _expect_ready(self, pending_error: symmc.Error | None, published: list[Words]) -> None:
        """Raises on all ranks if one of them cannot make this call. Ends the sessions of all ranks if those of one have ended."""
        ranks = self.board.ranks
        if any(state & (_BAD_DATA | _FAILED | _ABORTED) for _, _, state, _ in published):
            for arenas in self._all_arenas():
                arenas.abandon_aborted(ranks.members)
        if any(state & _INCOMPLETE for _, _, state, _ in published):
            # Ranks may have decided, or planned, differently far. They compile together again.
            self.decisions.clear()
            self.is_incomplete = False
        if pending_error is not None:
            raise raised_by_all(pending_error)
        for rank, (_, _, state, arguments) in zip(ranks.members, published):
            if state & (_BAD_DATA | _FAILED):
                kind, what = (symmc.DataError, "received bad data") if state & _BAD_DATA else (symmc.PeerError, "failed")
                error = kind(f"rank {rank} {what} in an earlier run")
                error.culprit = error.rank = rank
                raise raised_by_all(error)
            if state & _OVERLAP:
                raise raised_by_all(self.operands.overlap_error((arguments >> 31, arguments & (1 << 31) - 1), rank))

    def fail(self, error: BaseException, numbers: tuple[int, ...], exchange: JointCall) -> None:
        """Notifies the other ranks of an error of this rank in a call, unless they have it too, or need this rank no more."""
        if isinstance(error, BAD_DATA) or is_raised_by_all(error) or self._ends_alone(error, numbers):
            return
        self.is_incomplete = True
        exchange.report(error)
        for arenas in self._all_arenas():
            arenas.abort(self.board.ranks.members, error)

    def _ends_alone(self, error: BaseException, numbers: tuple[int, ...]) -> bool:
        """Whether a call has begun its only run, which ends without this rank, before an error that is not of the run."""
        search = self.decisions.get(numbers)
        function = None if isinstance(search, str) or search is None else search.function
        return not isinstance(error, symmc.Error) and isinstance(function, PlannedGraph) and function.runner.has_started

    def _all_arenas(self) -> list[Arenas]:
        own = [] if self.arenas is None else [self.arenas]
        return list(dict.fromkeys([*own, *(runner.arenas for runner in self._runners())]))

    def _runners(self):
        return [runner for found in self.decisions.values() if not isinstance(found, str) for runner in found.runners]

    def _compile_together(self, inputs: list, sizes: tuple[int, ...], numbers: tuple[int, ...]):
        """Compiles the graph together with these graphs of the other ranks, and runs it."""
        ranks, search = self.board.ranks, PartitionSearch(self.options, self._symbols(sizes), self.arenas)
        with ranks.reporting_errors():
            try:
                is_sound = self._build(search)
            except GraphsDiffer as error:
                search.difference, is_sound = error, False
            all_sound = ranks.all_gather(b"1" if is_sound else b"0", "a graph that is compiled")
        if search.difference is not None or b"0" in all_sound:
            why = "the form of a graph depends on its sizes"
            if search.difference is not None:
                why = f"the graphs of ranks differ: {search.difference}"
            self.decisions[numbers] = why
            if is_sound and search.difference is not None:
                self.separate = search
            return self._run_separately(inputs, sizes, why)
        # All ranks have compiled it, even if the run fails.
        self.decisions[numbers] = search
        return search.function(inputs)

    def _run_separately(self, inputs: list, sizes: tuple[int, ...], why: str):
        """Runs the graph of this rank without the others, and its collectives by PyTorch."""
        symbols = self._symbols(sizes)
        own = matching.list_collectives(self.module.graph, symbols)
        published = self.board.gather(self.board.next_round((digest_of(own), 0, _WITHIN, 0)))
        for rank, (_, _, state, _) in zip(self.board.ranks.members, published):
            if not state & _WITHIN:
                raise peer_error(rank, f"rank {rank} failed before it compared the collectives of this call")
        digests = tuple(word for word, *_ in published)
        if digests not in self.board.matching_collectives or self.options.fallback == "error":
            ranks = self.board.ranks
            exchanged = [json.loads(one) for one in ranks.all_gather(json.dumps([symbols, own]).encode(), "collectives")]
            matching.expect_matching(ranks.members, [collectives for _, collectives in exchanged])
            self.board.matching_collectives.add(digests)
            if self.options.fallback == "error":
                differ = matching.describe_different_sizes(ranks.members, [sizes for sizes, _ in exchanged])
                raise raised_by_all(symmc.DisagreementError(f"ranks do not run a graph as one program: {differ or why}"))
        if self.separate is None:
            search = PartitionSearch(self.options, arenas=self.arenas)
            search.leave_collectives(self.module.graph, why)
            self._build(search)
            self.separate = search
        return self.separate.function(inputs)

    def _symbols(self, sizes: tuple[int, ...]) -> dict[str, int]:
        return {symbol: size for (symbol, *_), size in zip(self.symbol_sources, sizes)}

    def _build(self, search: PartitionSearch) -> bool:
        """Finds the function that runs the graph in this way. Returns whether it may be compiled code. Eager runs the graph if compiled
        code would be valid for the sizes of this call only, because Dynamo has made its guards already."""
        environment = shape_env_of(self.module.graph)
        context = contextlib.nullcontext() if self.tracing is None else tracing(self.tracing)
        before = ignored_guards(environment)
        with unset_fake_temporarily(), torch.no_grad(), context:
            compiler.compile_graph(torch.fx.GraphModule(self.module, copy_graph(self.module.graph, {})), search)
        if ignored_guards(environment) == before:
            return True
        warnings.warn("symmc leaves a graph with collectives to eager: its form depends on its sizes", stacklevel=2)
        search.function = in_eager(self.module)
        return False


class _JointCall:
    """One call of a function, whose caller holds the locks of the function and of the board."""

    def __init__(self, function: JointGraph, board: Board, inputs: list):
        self.function, self.board, self.inputs = function, board, inputs
        self.is_waiting = False
        """Whether this rank has published its numbers, and waits for those of the others."""
        self.pending_error: symmc.Error | None = None
        self.own_error: Exception | None = None
        """The error for which this rank can take no part."""

    def run(self):
        """The results."""
        function = self.function
        values = self.inputs
        self.sizes = tuple([values[at] if axis is None else values[at].shape[axis] for _, at, axis in function.symbol_sources])
        state = arguments = 0
        try:
            state, arguments, self.pending_error = function.state(values)
        except Exception as error:
            # The other ranks expect this one. It raises in the call.
            self.own_error = error
        self.round = self.board.next_round((function.number, digest_of_sizes(*self.sizes), state, arguments))
        self.is_waiting = True
        return self._run(self._await_agreement())

    def _await_agreement(self) -> list[Words]:
        """The numbers of all ranks in the round that begins the call. A rank that is within the call before, in which this rank failed,
        comes to the next round."""
        published = self.board.gather(self.round)
        while any(state & _WITHIN for _, _, state, _ in published):
            self.round = self.board.next_round(self.round[1])
            published = self.board.gather(self.round)
        return published

    def _run(self, published: list[Words]):
        """The rest of the call, after the agreement."""
        function, exchange = self.function, self.board.joint_call(self.round)
        numbers = tuple(number for number, *_ in published)
        function.begin_call(numbers)
        try:
            self.is_waiting = False
            with exchange:
                if self.own_error is not None:
                    raise self.own_error
                return function.run(self.inputs, self.sizes, self.pending_error, published)
        except BaseException as raised:
            error = function.operands.explain(raised, self.inputs)
            function.fail(error, numbers, exchange)
            if error is raised:
                raise
            raise error from raised

    def continue_in_background(self) -> None:
        """Continues the call after an interrupt of the wait for other ranks, which expect this rank. Its results are dropped. The next
        call on the board waits for its end."""
        if self.is_waiting:
            self.inputs = list(self.inputs)
            self.board.continue_in_background(self._finish)

    def _finish(self) -> None:
        try:
            with torch.no_grad():
                self._run(self._await_agreement())
        except Exception:
            # The next call reports the error.
            pass
