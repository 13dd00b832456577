"""Graphs with collectives of several ranks, as functions that all these ranks call together.

Ranks compile by themselves: Dynamo compiles anew where sizes of one rank change, and the others know nothing of it. So what
needs the other ranks is done when the graph is called. In every call each rank tells the others what it would run, on a
:class:`~symmc.torch._board.Board`, and all of them find the same:

- All have the version of one joint compilation, and the same sizes: its plans run.
- None has a version yet, and the sizes are the same: the ranks compile their graphs together, as one program.
- Anything else: PyTorch runs the collectives in this call, and symmc on each rank what is between them. If the collectives
  do not fit each other, all ranks raise an error.
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
import zlib

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily

import symmc
from symmc.torch import _cut, _fitting, _graph, _ranks
from symmc.torch._board import Board, board_of
from symmc.torch._compiled import where
from symmc.torch._options import Options
from symmc.torch._ranks import Apart
from symmc.torch._runner import BAD_DATA

_NONE, _NEVER = 0, -1
"""Versions: of a graph that the ranks have not compiled together yet, and of one that is no one program with theirs."""


def compiled(module: torch.fx.GraphModule, options: Options):
    """A function of the list of the inputs of a graph."""
    names = _graph.groups_in(module.graph)
    if not _ranks.are_several(names):
        return _cut.compiled(module, _cut.Search(options))
    return Together(module, options, names)


class Together:
    """A graph with collectives of several ranks."""

    def __init__(self, module: torch.fx.GraphModule, options: Options, names: list[str]):
        self._boxed_call = True
        self.module = torch.fx.GraphModule(module, _graph.copied(module.graph, {}))
        self.options, self.names = options, names
        self.tracing = TracingContext.try_get()
        values = [node.meta.get("val") for node in self.module.graph.nodes if node.op == "placeholder"]
        self.where = where(values)
        self.board: Board | None = None
        self.version = _NONE
        """The number of the round after which all ranks compiled this graph together."""
        self.planned: _cut.Search | None = None
        """What runs the graph in plans of all ranks."""
        self.apart: _cut.Search | None = None
        """What leaves the collectives to PyTorch."""
        self.turn = threading.Lock()
        """Threads that call one function take turns."""

    def __call__(self, inputs: list):
        self.turn.acquire()
        call = _Call(self, inputs)
        try:
            return call.run()
        except KeyboardInterrupt:
            call.go_on()
            raise
        finally:
            call.end()

    def open(self) -> Board:
        """Where its ranks tell each other what they run."""
        if self.board is None:
            ranks, _ = _ranks.connected(self.names, self.options.timeout)
            with ranks.telling():
                self.board = board_of(ranks, _ranks.world())
        return self.board

    def run(self, inputs: list, sizes: tuple[int, ...], trouble: Exception | None, told: list[tuple[int, ...]]):
        """One call, of which all ranks have told what they would run."""
        if any(in_trouble for *_, in_trouble in told):
            self._expect_no_trouble(trouble, told)
        versions = {version for version, *_ in told}
        if len(versions) == 1 and len({digest for _, digest, _ in told}) == 1:
            if self.version > _NONE:
                return self.planned.function(inputs)
            if self.version == _NONE:
                return self._join(inputs, sizes)
        return self._run_apart(inputs, sizes, "ranks call it with different sizes, or not all of them compiled it anew")

    def trouble(self) -> Exception | None:
        """What an earlier run on a GPU reported."""
        try:
            for runner in self.planned.runners if self.planned is not None else ():
                runner.poll()
        except BAD_DATA as error:
            return error
        return None

    def _expect_no_trouble(self, trouble: Exception | None, told: list[tuple[int, ...]]) -> None:
        """Ends the sessions of all ranks where one of them was given bad data in an earlier run."""
        for runner in self.planned.runners if self.planned is not None else ():
            runner.abandon()
        if trouble is not None:
            raise trouble
        ranks = [self.board.ranks.members[at] for at, (*_, in_trouble) in enumerate(told) if in_trouble]
        error = symmc.DataError(f"rank {ranks[0]} was given data in an earlier run that a step refuses")
        error.rank = ranks[0]
        raise error

    def _join(self, inputs: list, sizes: tuple[int, ...]):
        """Compiles the graph together with all ranks, and runs it."""
        version, ranks, search = self.board.rounds, self.board.ranks, _cut.Search(self.options, self._symbols(sizes))
        with ranks.telling():
            try:
                is_sound = self._build(search)
            except Apart as error:
                search.apart, is_sound = error, False
            all_sound = ranks.all_gather(b"1" if is_sound else b"0", "a graph that is compiled")
        if search.apart is not None or b"0" in all_sound:
            self.version = _NEVER
            self.apart = search if is_sound and search.apart is not None else None
            why = "the form of a graph depends on its sizes" if search.apart is None else f"the graphs differ: {search.apart}"
            return self._run_apart(inputs, sizes, why)
        self.planned = search
        try:
            results = search.function(inputs)
        except BAD_DATA:
            self.version = version
            raise
        self.version = version
        return results

    def _run_apart(self, inputs: list, sizes: tuple[int, ...], why: str):
        """Runs the graph of this rank alone, and its collectives by PyTorch."""
        symbols = self._symbols(sizes)
        own = _fitting.collectives_of(self.module.graph, symbols)
        digests = tuple(word for word, *_ in self.board.gather((_fitting.digest_of(own), 0, 0)))
        if digests not in self.board.fitting or self.options.fallback == "error":
            ranks = self.board.ranks
            told = [json.loads(one) for one in ranks.all_gather(json.dumps([symbols, own]).encode(), "collectives")]
            _fitting.expect_fitting(ranks.members, [collectives for _, collectives in told])
            self.board.fitting.add(digests)
            if self.options.fallback == "error":
                differ = _fitting.sizes_that_differ(ranks.members, [sizes for sizes, _ in told])
                raise symmc.DisagreementError(f"ranks do not run a graph as one program: {differ or why}")
        if self.apart is None:
            search = _cut.Search(self.options)
            search.leave_collectives(self.module.graph, why)
            self._build(search)
            self.apart = search
        return self.apart.function(inputs)

    def _symbols(self, sizes: tuple[int, ...]) -> dict[str, int]:
        return {symbol: size for (symbol, *_), size in zip(self.where, sizes)}

    def _build(self, search: _cut.Search) -> bool:
        """Finds what runs the graph in this way; whether it may be compiled code. Eager runs it if that would hold for the sizes
        of this call alone: Dynamo has made its guards already."""
        environment = _graph.environment_of(self.module.graph)
        context = contextlib.nullcontext() if self.tracing is None else tracing(self.tracing)
        before = _graph.ignored_guards(environment)
        with unset_fake_temporarily(), torch.no_grad(), context:
            _cut.compiled(torch.fx.GraphModule(self.module, _graph.copied(self.module.graph, {})), search)
        if _graph.ignored_guards(environment) == before:
            return True
        warnings.warn("symmc leaves a graph with collectives to eager: its form depends on its sizes", stacklevel=2)
        search.function = _cut.in_eager(self.module)
        return False


class _Call:
    """One call of a function, which holds what threads take turns for until it has ended."""

    def __init__(self, function: Together, inputs: list):
        self.function, self.inputs = function, inputs
        self.board: Board | None = None
        """Where the other ranks have been told that this one takes part, while nobody knows yet what they told."""
        self.is_locked = self.is_waiting = self.goes_on = False

    def run(self):
        """The results."""
        function = self.function
        self.board = function.open()
        self.board.turn.acquire()
        self.is_locked = True
        values = self.inputs
        self.sizes = tuple([values[at] if axis is None else values[at].shape[axis] for _, at, axis in function.where])
        self.trouble = function.trouble()
        self.is_waiting = True
        told = self.board.gather((function.version, _digest(self.sizes), int(self.trouble is not None)))
        self.is_waiting = False
        return function.run(values, self.sizes, self.trouble, told)

    def go_on(self) -> None:
        """After an interrupt of the wait for other ranks: they know that this one takes part, so it does, and its results go."""
        if self.is_waiting:
            self.goes_on, self.inputs = True, list(self.inputs)
            threading.Thread(target=self._finish, daemon=True).start()

    def _finish(self) -> None:
        try:
            with torch.no_grad():
                self.function.run(self.inputs, self.sizes, self.trouble, self.board.resume())
        except Exception:
            # The next call finds what is wrong.
            pass
        finally:
            self._release()

    def end(self) -> None:
        """Lets other threads have their turn, unless the call goes on."""
        if not self.goes_on:
            self._release()

    def _release(self) -> None:
        if self.is_locked:
            self.board.turn.release()
        self.function.turn.release()


def _digest(sizes: tuple[int, ...]) -> int:
    """A number that stands for sizes, the same in all processes."""
    return hash(sizes) ^ zlib.crc32(repr(sizes).encode())
