"""Runs programs on tensors of PyTorch, with a plan and a session for the sizes of each call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch
from torch._prims_common import make_contiguous_strides_for

import symmc
from symmc._symmc import TORCH_DTYPES, SizeAssumptions, SizeStep, nearest_machine
from symmc.torch.importing import programs
from symmc.torch.ranks.exchange import GraphsDiffer, RankGroup
from symmc.torch.runtime.arenas import Arenas
from symmc.torch.settings import reports
from symmc.torch.settings.options import Options

_LEAST = 16
"""The least bound of a size that the graph leaves open."""

_MOST = 1 << 39
"""The largest size. Larger and negative integers are numbers, and so are symbols that were numbers before: each value has its own plan."""

BAD_DATA = (symmc.IndexRangeError, symmc.DataError)
"""Errors of a run that end its session on all ranks without a lasting fault: the next call opens another session."""

DTYPES = {name: getattr(torch, in_torch) for name, in_torch in TORCH_DTYPES}


def machine_for(options: Options, device: str, ranks: int) -> str | None:
    """The machine profile for this number of ranks; None for that of the host."""
    if options.machine is not None or device != "cuda":
        return options.machine
    return nearest_machine(ranks)


class ProgramSource(Protocol):
    """The source of a program, such as a lifted graph."""

    @property
    def steps(self) -> Sequence[SizeStep]:
        """Sizes that are always multiples of a number."""

    @property
    def numbers(self) -> Sequence[str]:
        """Sizes that have to be numbers in the program."""

    def archive(self, ranges: dict[str, tuple[int, int]]) -> bytes:
        """The program of this rank as a file, for symbols in these ranges."""


class PlanRunner:
    """A program on one device, for any sizes."""

    def __init__(
        self, source: ProgramSource, symbols: list[str], ranks: RankGroup, groups: dict, options: Options, may_fix_sizes: bool = False,
        arenas: Arenas | None = None,
    ):  # fmt: skip
        self.source, self.symbols, self.ranks, self.groups, self.options = source, symbols, ranks, groups, options
        self.assumptions = SizeAssumptions(source.steps, may_fix_sizes)
        self.arenas = arenas or Arenas(are_shared=False)
        self.ranges: dict[str, tuple[int, int]] = {}
        """The least and the largest value of each symbol in the plan."""
        self.program: symmc.Program | None = None
        self.plan: symmc.Plan | None = None
        self.session: symmc.Session | None = None
        self.opened: symmc.Plan | None = None
        """The plan of the session."""
        self.is_on_gpu = False
        self.sizes: tuple[int, ...] | None = None
        self.results: list[tuple] = []
        """Extents, strides and type of each result."""
        self.counted: dict[int, tuple[int, ...]] = {}
        """The results with axes whose number of elements is data, by their numbers, with these axes."""
        self._runs_before: tuple[symmc.Session | None, int] = (None, 0)
        """The session at the beginning of the present call, and the number of its runs."""
        self.unfinished: list[tuple[Sequence, Sequence]] = []
        """Tensors of runs that were interrupted before they were waited for. Such runs continue."""
        self.lock = threading.Lock()
        """Threads that call one function take turns: the session runs for one of them."""

    def begin_call(self) -> None:
        """A call of all ranks begins."""
        self._runs_before = (self.session, 0 if self.session is None else self.session.started_runs)

    @property
    def has_started(self) -> bool:
        """Whether the present call of all ranks has started its run, which ends without the caller then."""
        session, (before, count) = self.session, self._runs_before
        return session is not None and session.started_runs > (count if session is before else 0)

    def _opened(self, values: dict[str, int]) -> symmc.Program:
        """The program of all ranks, for sizes in the ranges and such as these."""
        members = len(self.ranks.members)

        def opened(archives: list[bytes], dims: dict[str, str]) -> symmc.Program:
            definitions = list(self.options.definitions)
            return programs.open_archives(
                archives, ranks=members, groups=self.groups, dims=dims, definitions=definitions, assume_sizes=False
            )

        program, refusal, own = None, None, b""
        sizes: dict[str, int] = {}
        try:
            own = self.source.archive(self.ranges)
            # All ranks get the same result: their programs differ in single numbers at most, and their sizes are equal.
            program = self.assumptions.open_program(lambda dims: opened([own], dims), values)
            sizes = {symbol: values[symbol] for symbol in program.aliases.values() if symbol in values}
        except (symmc.InputError, symmc.UnsupportedError) as error:
            refusal = error
        if members > 1 and not self.ranks.programs_agree(program and program.text(), refusal, own, sizes):
            # The programs differ, which is allowed in single numbers. A single rank may be refused because of one.
            archives = self.ranks.all_gather(own)
            try:
                return opened(archives, self.assumptions.dims())
            except symmc.InputError as error:
                raise refusal or GraphsDiffer(error) from error
        if refusal is not None:
            raise refusal
        return program

    def plan_for(self, sizes: tuple[int, ...], device: torch.device, accept=lambda program: None) -> bool:
        """Makes a plan that serves these sizes of the symbols, unless the current one does. Returns whether it made one."""
        with self.ranks.reporting_errors():
            return self._plan_for(sizes, device, accept)

    def needs_plan(self, sizes: tuple[int, ...]) -> bool:
        """Whether these sizes of the symbols need another plan. The next plan will serve them."""
        if sizes == self.sizes and self.plan is not None:
            return False
        for symbol, size in zip(self.symbols, sizes):
            least, most = self.ranges.get(symbol, (0, -1))
            if not least <= size <= most:
                is_size = 0 <= size <= _MOST and least != most
                self.ranges[symbol] = (0, max(_LEAST, 1 << max(size - 1, 0).bit_length())) if is_size else (size, size)
                self.plan = None
        if not self.assumptions.drop_refuted(self.assumptions.complete(dict(zip(self.symbols, sizes)))):
            self.plan = None
        return self.plan is None

    @property
    def is_open(self) -> bool:
        """Whether its session runs the current plan."""
        return self.session is not None and self.opened is self.plan

    def _plan_for(self, sizes: tuple[int, ...], device: torch.device, accept) -> bool:
        if not self.needs_plan(sizes):
            return False
        values = self.assumptions.complete(dict(zip(self.symbols, sizes)))
        self.assumptions.fix(self.source.numbers, values)
        self.program = self._opened(values)
        accept(self.program)
        self.program_sizes(sizes)
        buckets = self.options.bucket_ends(self.program, self.assumptions)
        keywords = self.options.of_compile(self.program.arguments)
        self.plan = symmc.compile(self.program, machine=self.machine(device), buckets=buckets, **keywords)
        if self.options.report:
            reports.append(self.plan, self.options.report)
        return True

    def program_sizes(self, sizes: tuple[int, ...]) -> dict[str, int]:
        values = self.assumptions.complete(dict(zip(self.symbols, sizes)))
        for symbol in self.program.aliases.values():
            if symbol not in values:
                raise symmc.UnsupportedError(f"no input of the graph has the size {symbol}")
        return {name: values[symbol] for name, symbol in self.program.aliases.items()}

    def machine(self, device: torch.device) -> str | None:
        """The machine profile; None for that of the host."""
        return machine_for(self.options, device.type, len(self.ranks.members))

    def _prepare_sizes(self, sizes: tuple[int, ...], device: torch.device) -> None:
        """Prepares the next runs for these sizes."""
        self.plan_for(sizes, device)
        if self.plan is not None and not self.is_open:
            if self.session is not None:
                self.arenas.close(self.session)
            gpu = device.index if device.type == "cuda" else None
            try:
                self.session = self.arenas.open(self, self.plan, self.ranks, gpu, self.options.timeout)
            except symmc.Error as error:
                raise self.ranks.numbered_in_job(error)
            self.sizes, self.opened = None, self.plan
        is_new = self.sizes is None
        self.session.set(**self.program_sizes(sizes))
        if is_new:
            # These parameters are single numbers that differ between ranks.
            for name, tensor in self.program.parameters(self.ranks.rank).items():
                self.session.write(f"w.{name}", tensor)
        returned = [value for value in self.session.outputs() if value.replaces is None]
        self.results = [(value.shape, make_contiguous_strides_for(value.shape), DTYPES[value.dtype]) for value in returned]
        self.counted = {number: value.counted_axes for number, value in enumerate(returned) if value.counted_axes}
        self.sizes = sizes

    def _cut(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results with as many elements as the run gave. On a GPU this waits for the run."""
        if not self.counted:
            return results
        if self.is_on_gpu:
            if torch.cuda.is_current_stream_capturing():
                raise symmc.UnsupportedError("a result has extents that are data, which a CUDA graph cannot return")
            torch.cuda.current_stream().synchronize()
            self.session.wait()
        cut = list(results)
        for number, axes in self.counted.items():
            extents = self.session.extents(f"out.{number}")
            for axis in axes:
                cut[number] = cut[number].narrow(axis, 0, extents[axis])
            cut[number] = cut[number].contiguous()
        return cut

    def run(self, sizes: tuple[int, ...], given: tuple[torch.Tensor, ...], device: torch.device, stream=None):
        """Runs once. Returns the results that replace no argument, and the tensors that were used as arguments: copies of those whose
        layout a run cannot use.

        On a GPU the run is enqueued on the stream whose handle ``stream`` returns once operands and results exist, by default on the
        current stream.
        """
        with self.lock:
            self.is_on_gpu = device.type == "cuda"
            if self.is_on_gpu and len(self.ranks.members) == 1:
                # Runs on a stream report bad data after their call has returned.
                self.poll()
            if sizes != self.sizes:
                self._prepare_sizes(sizes, device)
            results, handle = _empty(device, self.results), None
            if device.type == "cuda":
                handle = _stream_of(device.index) if stream is None else stream()
            if self.unfinished and self.session.poll():
                self.unfinished.clear()
            try:
                unusable = self.session.launch(given, results, handle)
                if unusable is not None:
                    given = tuple(_as_contiguous(one) if at in unusable else one for at, one in enumerate(given))
                    self.session.launch(given, results, handle)
            except BAD_DATA as error:
                self.abandon()
                raise self.ranks.numbered_in_job(error)
            except symmc.Error as error:
                self.unfinished.append((given, results))
                raise self.ranks.numbered_in_job(error)
            except BaseException:
                # An interrupt ends the wait for a run that has started.
                self.unfinished.append((given, results))
                raise
            return self._cut(results), given

    def poll(self) -> None:
        """Raises the error of an earlier run on a GPU. On the host runs have ended when their call returns."""
        # The driver refuses to query events while a stream is captured.
        if self.session is None or not self.is_on_gpu or torch.cuda.is_current_stream_capturing():
            return
        try:
            self.session.poll()
        except BAD_DATA:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Drops a session that has ended, for all programs that share it; the next run opens another one."""
        if self.session is not None:
            self.arenas.abandon(self.session)
        self.forget_session()

    def forget_session(self) -> None:
        """The session has ended."""
        self.session = self.opened = self.sizes = None
        self.unfinished.clear()

    def close(self) -> None:
        with self.lock:
            if self.session is not None:
                self.arenas.close(self.session)
            self.plan = self.session = self.opened = self.sizes = None


_empty_on_host = torch._C._dynamo.guards._empty_strided_cpu
_empty_on_gpu = torch._C._dynamo.guards._empty_strided_cuda
"""The functions by which Inductor's graphs make tensors: on the current GPU, without the dispatcher."""


def _empty(device: torch.device, wanted: list[tuple]) -> list[torch.Tensor]:
    """Tensors of these extents, strides and types."""
    if device.type == "cpu":
        return [_empty_on_host(*one) for one in wanted]
    if device.index == torch._C._cuda_getDevice():
        return [_empty_on_gpu(*one) for one in wanted]
    return [torch.empty_strided(size, stride, dtype=dtype, device=device) for size, stride, dtype in wanted]


def _as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is contiguous and aligned."""
    return tensor.clone() if tensor.is_contiguous() else tensor.contiguous()


def _stream_of(gpu: int) -> int:
    """The driver's handle of the stream of PyTorch on a GPU."""
    return torch._C._cuda_getCurrentRawStream(gpu)
