"""Mixtures of experts: tokens go to the ranks of their experts, and weighted sums of the results come back.

    exchange = symmc.moe.ExpertExchange(group, experts=256, slots=8, hidden=7168, tokens=128, dtype=torch.bfloat16)
    routing = exchange.route(ids)                          # ids [tokens, slots]: the experts of each token
    rows = exchange.dispatch(x, routing)                   # [capacity, hidden]: the tokens for this rank's experts
    y = exchange.combine(run_experts(rows, routing.ends), routing, weights)

All shapes are static, and numbers of rows are data on the device, so runs can be captured in CUDA graphs. A routing with more rows than the
capacity raises a `DataError` that names the exchange (`name=`), the count and the capacity. No token is dropped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from typing import Any, Literal

import torch

import symmc
from symmc._symmc import TORCH_DTYPES

__all__ = ["ExpertExchange", "Routing"]

Layout = Literal["expert", "batched", "rank"]
LAYOUTS: tuple[Layout, ...] = ("expert", "batched", "rank")

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_.]*")

NAMES = {getattr(torch, name): ours for ours, name in TORCH_DTYPES}


@dataclasses.dataclass(frozen=True)
class Routing:
    """Where the tokens of one call go, as `ExpertExchange.route` computes it. The tensors are i64. `ranks` is the number of ranks of the
    group.

    A *row* is a row of the result of `dispatch`, and its number is `rank * capacity + row`. A *slot* is one choice of an expert by a token,
    and its number is `(rank * tokens + token) * slots + slot`.
    """

    rows: torch.Tensor
    """`[tokens, slots]`: the row of each slot of this rank's tokens, or -1."""
    all_rows: torch.Tensor
    """`[ranks * tokens, slots]`: the same for the tokens of all ranks. The ranks have equal tensors."""
    slots: torch.Tensor
    """`[capacity]`: the slot of each row of this rank, or -1."""
    counts: torch.Tensor
    """`[sections]`: the number of rows of each section, which is a local expert, or in the layout `rank` a source rank."""
    ends: torch.Tensor
    """`[sections]`: the end of each section, as `torch._grouped_mm` takes it (in i32)."""

    @property
    def tokens(self) -> int:
        """The number of tokens of each rank."""
        return self.rows.shape[0]

    def by_slot(self) -> Routing:
        """The same routing with each slot as a token of its own, for values that belong to slots."""
        return dataclasses.replace(self, rows=self.rows.reshape(-1, 1), all_rows=self.all_rows.reshape(-1, 1))


class ExpertExchange:
    """The exchange of tokens between the ranks of a group that share experts.

    Rank `p` of `n` ranks has the experts from `p * experts / n` up to `(p + 1) * experts / n`. All ranks create their exchange together, and
    call the same methods in the same order with tensors of the same shapes. A rank with fewer tokens fills `ids` up with -1.

    - group: a process group of PyTorch, a `symmc.Group`, or None for the ranks of the environment.
    - experts: the number of experts of all ranks together, a multiple of the number of ranks.
    - slots: the number of experts that each token chooses (top-k).
    - hidden: the number of elements of a token.
    - tokens: the most tokens of a rank in one call.
    - dtype: the dtype of `rows_buffers` and `tokens_buffers`. Tokens of other dtypes and widths can be dispatched as well, such as scales.
    - capacity: the most rows that a rank receives. By default it is enough for any routing that gives each token different
      experts.
    - align: each section begins at a multiple of this many rows.
    - layout: `expert` (one row per slot, in order of local expert; contiguous), `batched` (the same, but each local expert has
      `capacity / local experts` rows) or `rank` (one row per token and rank, in order of source rank).
    - gpu: the number of the GPU, or None for the host. machine: the profile that decisions are made by.
    - timeout: the longest wait for other ranks, in seconds.
    - name: the name of the layer, such as `layers.3`. The error of a routing with more rows than the capacity has it.
    """

    def __init__(
        self,
        group: Any = None,
        *,
        experts: int,
        slots: int,
        hidden: int,
        tokens: int,
        dtype: torch.dtype = torch.bfloat16,
        capacity: int | None = None,
        align: int = 1,
        layout: Layout = "expert",
        gpu: int | None = None,
        machine: str | None = None,
        timeout: float = 30.0,
        name: str | None = None,
    ) -> None:
        group = symmc.Group.from_env() if group is None else group
        ranks = rank_count(group)
        for argument, number in {"experts": experts, "slots": slots, "hidden": hidden, "tokens": tokens, "align": align}.items():
            if not is_positive_integer(number):
                raise symmc.InputError(f"{argument}: expected a positive integer, found {number!r}")
        if experts % ranks:
            raise symmc.InputError(f"experts: expected a multiple of {ranks} ranks, found {experts}")
        if layout not in LAYOUTS:
            raise symmc.InputError(f"layout: expected one of {', '.join(LAYOUTS)}, found {layout!r}")
        if dtype not in NAMES:
            raise symmc.InputError(f"dtype: expected one of {', '.join(map(str, NAMES))}, found {dtype}")
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise symmc.InputError(f"name: expected letters, digits, '_' and '.', and no digit or '.' first, found {name!r}")
        self.name = name
        self.ranks = ranks
        self.experts = experts
        self.slots = slots
        self.hidden = hidden
        self.tokens = tokens
        self.dtype = dtype
        self.align = align
        self.layout: Layout = layout
        self.sections = ranks if layout == "rank" else experts // ranks
        self.capacity = self.worst_capacity() if capacity is None else capacity
        if not is_positive_integer(self.capacity):
            raise symmc.InputError(f"capacity: expected a positive integer, found {capacity!r}")
        if layout == "batched" and self.capacity % self.sections:
            raise symmc.InputError(f"capacity: expected a multiple of {self.sections} local experts, found {self.capacity}")
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._gpu = gpu
        self._machine = machine
        self._group = group
        self._timeout = timeout
        self._sessions: dict[tuple[Any, ...], symmc.Session] = {}
        self._plans: dict[tuple[Any, ...], symmc.Plan] = {}
        # For each kind of combination, the numbers of tokens that return as sums.
        self._ranges_of_sums: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
        self._base = symmc.Session(
            self._plan(self._route_program()), group, gpu=gpu, timeout=timeout, extendable=True
        )
        self._sessions["route",] = self._base

    def worst_capacity(self) -> int:
        """The capacity that is enough for any routing of `tokens` tokens on each rank."""
        local = self.experts // self.ranks
        here = self.ranks * self.tokens
        if self.layout == "rank":
            return here + self.sections * (self.align - 1)
        if self.layout == "batched":
            return here * local
        return here * min(self.slots, local) + self.sections * (self.align - 1)

    # Memory

    def tokens_buffers(self, count: int = 1) -> list[torch.Tensor]:
        """Symmetric tensors `[tokens, hidden]`. `dispatch` reads tokens there in place, as all of one or as its first rows; other tensors
        are copied first. In one call all ranks use the same of several buffers. All ranks call this together, before the first `dispatch`
        of such tokens."""
        key = ("dispatch", self.dtype, self.hidden, self.slots)
        return self._open_with_buffers(key, [self.tokens, self.hidden], count)

    def rows_buffers(self, weights: torch.dtype | None = torch.float32, count: int = 1) -> list[torch.Tensor]:
        """Symmetric tensors `[capacity, hidden]`. `combine` with weights of this dtype (None for no weights) reads the results of experts
        there in place; other tensors are copied first. In one call all ranks use the same of several buffers. All ranks call this
        together, before the first such `combine`."""
        key = ("combine", self.dtype, self.hidden, self.slots, weights)
        return self._open_with_buffers(key, [self.capacity, self.hidden], count)

    def _open_with_buffers(self, key: tuple[Any, ...], shape: list[int], count: int) -> list[torch.Tensor]:
        if key in self._sessions:
            raise symmc.InputError(f"buffers of {key[0]}: expected a call before the first {key[0]}, and only one")
        # Each buffer starts at a multiple of 64 bytes.
        size = -(-math.prod(shape) * self.dtype.itemsize // 64) * 64
        session = symmc.Session(
            self._plan_for(key), self._group, gpu=self._gpu, timeout=self._timeout, symmetric_bytes=count * size
        )
        self._sessions[key] = session
        return [session.allocate_symmetric(shape, NAMES[self.dtype]).torch() for _ in range(count)]

    # Runs

    def route(self, ids: torch.Tensor) -> Routing:
        """The routing of this rank's tokens by `ids` `[tokens, slots]`: i64 or i32, the experts of each token, or -1 for none."""
        tokens = self._expect("ids", ids, [None, self.slots], (torch.int64, torch.int32))
        if not 1 <= tokens <= self.tokens:
            raise symmc.InputError(f"ids: expected 1 to {self.tokens} tokens, found {tokens}; -1 stands for no expert")
        shapes = [[tokens, self.slots], [self.ranks * tokens, self.slots], [self.capacity], [self.sections], [self.sections]]
        outputs = [torch.empty(shape, dtype=torch.int64, device=self.device) for shape in shapes]
        self._run(("route",), tokens, (ids.to(torch.int64).contiguous(),), outputs)
        return Routing(*outputs)

    def dispatch(self, x: torch.Tensor, routing: Routing, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """The tokens of this rank's experts `[capacity, hidden]`, from `x` `[tokens, hidden]` of all ranks. Rows without a token are zero.

        With gradients, the gradient of `x` is the sum over the rows of each token. fp8 tokens are moved as they are.
        """
        if needs_gradient({"x": x}, out):
            result: torch.Tensor = _Dispatch.apply(x, self, routing)  # type: ignore[no-untyped-call]
            return result
        return self._dispatch(x.detach(), routing, out)

    def combine(
        self,
        rows: torch.Tensor,
        routing: Routing,
        weights: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sums `[tokens, hidden]` over the slots of each token of the row of the slot times its weight.

        rows: `[capacity, hidden]`, floats, the results of this rank's experts. weights: `[tokens, slots]`, floats, or None for 1. Products
        and sums are f32 (f64 for f64). The rows of one rank are added in order of slot, then the sums of the ranks, and the last sum is
        rounded. If that is estimated to be faster, each rank adds its own rows and sends sums; the bits are the same.
        """
        if needs_gradient({"rows": rows, "weights": weights}, out):
            result: torch.Tensor = _Combine.apply(rows, weights, self, routing)  # type: ignore[no-untyped-call]
            return result
        return self._combine(rows.detach(), routing, None if weights is None else weights.detach(), out)

    def row_weights(self, weights: torch.Tensor, routing: Routing) -> torch.Tensor:
        """The weight of each row `[capacity]`, from the weights `[tokens, slots]` of all ranks."""
        return self.dispatch(weights.reshape(-1, 1), routing.by_slot()).squeeze(1)

    def _dispatch(self, x: torch.Tensor, routing: Routing, out: torch.Tensor | None = None) -> torch.Tensor:
        payload = as_bytes(x)
        slots = routing.rows.shape[1]
        self._expect("x", payload, [routing.tokens, None], tuple(NAMES))
        width = payload.shape[1]
        result = out if out is not None else torch.empty(self.capacity, x.shape[1], dtype=x.dtype, device=self.device)
        raw = as_bytes(result)
        self._expect("out", raw, [self.capacity, width], (payload.dtype,))
        key = ("dispatch", payload.dtype, width, slots)
        self._run(key, routing.tokens, (payload.contiguous(), routing.slots, routing.all_rows), [raw])
        return result

    def _combine(
        self, rows: torch.Tensor, routing: Routing, weights: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        floats = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
        self._expect("rows", rows, [self.capacity, None], floats)
        slots = routing.rows.shape[1]
        width = rows.shape[1]
        shape = [routing.tokens, width]
        result = out if out is not None else torch.empty(shape, dtype=rows.dtype, device=self.device)
        self._expect("out", result, [routing.tokens, width], (rows.dtype,))
        key = (rows.dtype, width, slots, None if weights is None else weights.dtype)
        returns_sums = self._returns_sums(key, routing.tokens)
        operands = [rows.contiguous(), routing.all_rows if returns_sums else routing.rows]
        if weights is not None:
            self._expect("weights", weights, [routing.tokens, slots], floats)
            operands.append(weights.contiguous())
        self._run(("sums" if returns_sums else "combine", *key), routing.tokens, tuple(operands), [result])
        return result

    def _returns_sums(self, key: tuple[Any, ...], tokens: int) -> bool:
        """Whether combining this many tokens is faster if each rank first adds its own rows and then sends the sums."""
        # In the layout of ranks a token has at most one row on each rank, so there is nothing to add before rows return.
        if self.ranks == 1 or self.layout == "rank":
            return False
        ranges = self._ranges_of_sums.get(key)
        if ranges is None:
            # The gather of the ids belongs to an earlier call, so it does not join that of the weights.
            choices = self._plan(self._choice_program(*key), coalesce=False).choices()
            # A combination that returns as sums has its own estimate among the alternatives.
            sums = [c for c in choices if any(name.startswith("combine_rows.") for name in c.estimates)]
            ranges = self._ranges_of_sums[key] = [choice.symbols["t"] for choice in sums]
        return any(low <= tokens <= high for low, high in ranges)

    def _run(self, key: tuple[Any, ...], tokens: int, arguments: tuple[Any, ...], outputs: list[Any]) -> None:
        session = self._sessions.get(key)
        if session is None:
            session = self._base.open_program(self._plan_for(key))
            self._sessions[key] = session
        session.set(t=tokens)
        stream = None if self._gpu is None else torch.cuda.current_stream(self.device).cuda_stream
        unusable = session.launch(arguments, outputs, stream)
        if unusable:
            # Tensors that are not aligned are copied.
            copies = tuple(a.clone() if i in unusable else a for i, a in enumerate(arguments))
            session.launch(copies, outputs, stream)

    def poll(self) -> bool:
        """Whether all calls of this rank have ended. Raises the error of a call that failed, also of one that was captured in a CUDA
        graph; the caller waits for its replays first."""
        return all([session.poll() for session in self._sessions.values()])

    def close(self) -> None:
        """Ends the exchange of this rank. Others finish the calls that this rank has finished."""
        with contextlib.ExitStack() as sessions:
            for session in self._sessions.values():
                sessions.callback(session.close)

    def __enter__(self) -> ExpertExchange:
        return self

    def __exit__(self, *exception: Any) -> Literal[False]:
        sessions = contextlib.ExitStack()
        for session in self._sessions.values():
            sessions.push(session)
        sessions.__exit__(*exception)
        return False

    # Programs

    def _plan(self, text: str, *, coalesce: bool = True) -> symmc.Plan:
        return symmc.compile(symmc.from_text(text), machine=self._machine, bind=True, coalesce=coalesce)

    def _plan_for(self, key: tuple[Any, ...]) -> symmc.Plan:
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(self._text(key))
        return plan

    def _text(self, key: tuple[Any, ...]) -> str:
        texts = {"dispatch": self._dispatch_program, "combine": self._combine_program, "sums": self._sums_program}
        return texts[key[0]](*key[1:])

    def _program(self, name: str, lines: list[str], *, slots: int) -> str:
        most = self.tokens * (self.slots if slots < self.slots else 1)
        head = [f'program "moe.{name}" ranks {self.ranks}', f"symbol t in 1..={most}", "group @ep world"]
        return "\n".join([*head, *lines]) + "\n"

    def _route_program(self) -> str:
        routing, names = self._routing(self.slots)
        return self._program("route", [*routing, *(f"return %{name}" for name in names)], slots=self.slots)

    def _routing(self, slots: int) -> tuple[list[str], list[str]]:
        """Lines that route the ids of all ranks, and the names of the results."""
        everyone = f"{self.ranks}*t"
        types = [f"[t, {slots}]", f"[{everyone}, {slots}]", f"[{self.capacity}]", f"[{self.sections}]", f"[{self.sections}]"]
        names = ["rows", "all_rows", "slots", "counts", "ends"]
        if self.name:
            # Errors name a step by its first result.
            names = [f"{self.name}.{name}" for name in names]
        results = ", ".join(f"%{name}: i64{shape}" for name, shape in zip(names, types, strict=True))
        lines = [
            f"arg %ids: i64[t, {slots}]",
            f"%all_ids: i64[{everyone}, {slots}] = all_gather %ids group=@ep",
            f"{results} = route %all_ids experts={self.experts} align={self.align} layout={self.layout} group=@ep",
        ]
        return lines, names

    def _dispatch_program(self, dtype: torch.dtype, width: int, slots: int) -> str:
        kind = NAMES[dtype]
        return self._program("dispatch", [
            f"arg %x: {kind}[t, {width}]",
            f"arg %slots: i64[{self.capacity}]",
            f"arg %all_rows: i64[{self.ranks}*t, {slots}]",
            f"%y: {kind}[{self.capacity}, {width}] = dispatch_rows %x, %slots, %all_rows group=@ep",
            "return %y",
        ], slots=slots)

    def _combine_program(self, dtype: torch.dtype, width: int, slots: int, weights: torch.dtype | None) -> str:
        rows = [f"arg %rows: i64[t, {slots}]"]
        return self._combination("combine", dtype, width, slots, weights, rows, "%rows")

    def _choice_program(self, dtype: torch.dtype, width: int, slots: int, weights: torch.dtype | None) -> str:
        """A combination for which the compiler chooses between rows and sums. It is not run. Its routing proves that the ranks have the
        same `all_rows`, as those of a `Routing` are."""
        routing, names = self._routing(slots)
        return self._combination("choice", dtype, width, slots, weights, routing, f"%{names[0]}")

    def _combination(
        self,
        name: str,
        dtype: torch.dtype,
        width: int,
        slots: int,
        weights: torch.dtype | None,
        rows_lines: list[str],
        rows: str,
    ) -> str:
        kind = NAMES[dtype]
        argument = [] if weights is None else [f"arg %weights: {NAMES[weights]}[t, {slots}]"]
        operand = "" if weights is None else ", %weights"
        return self._program(name, [
            f"arg %x: {kind}[{self.capacity}, {width}]",
            *rows_lines,
            *argument,
            f"%y: {kind}[t, {width}] = combine_rows %x, {rows}{operand} group=@ep",
            "return %y",
        ], slots=slots)

    def _sums_program(self, dtype: torch.dtype, width: int, slots: int, weights: torch.dtype | None) -> str:
        """The combination in which each rank adds its own rows. All ranks pass the same `all_rows`."""
        kind = NAMES[dtype]
        wide = "f64" if dtype == torch.float64 else "f32"
        weights_lines = []
        operand = ""
        if weights is not None:
            weights_kind = NAMES[weights]
            operand = ", %all_weights"
            weights_lines = [
                f"arg %weights: {weights_kind}[t, {slots}]",
                f"%all_weights: {weights_kind}[{self.ranks}*t, {slots}] = all_gather %weights group=@ep",
            ]
        return self._program("sums", [
            f"arg %x: {kind}[{self.capacity}, {width}]",
            f"arg %all_rows: i64[{self.ranks}*t, {slots}]",
            *weights_lines,
            f"%y: {kind}[t, {width}], %sums: {wide}[{self.ranks - 1}*t, {width}] = reduce_rows %x, %all_rows{operand} group=@ep",
            "return %y",
        ], slots=slots)

    def _expect(
        self, name: str, tensor: torch.Tensor, shape: list[int | None], dtypes: tuple[torch.dtype, ...]
    ) -> int:
        """Checks a tensor of the caller, and returns its first extent."""
        expect_tensor(name, tensor)
        fits = tensor.dim() == len(shape) and all(e in (None, n) for e, n in zip(shape, tensor.shape, strict=True))
        if not fits:
            wanted = "[" + ", ".join("any" if e is None else str(e) for e in shape) + "]"
            raise symmc.InputError(f"{name}: expected the shape {wanted}, found {list(tensor.shape)}")
        if tensor.dtype not in dtypes:
            raise symmc.InputError(f"{name}: expected {' or '.join(map(str, dtypes))}, found {tensor.dtype}")
        if tensor.device != self.device:
            raise symmc.InputError(f"{name}: expected a tensor on {self.device}, found one on {tensor.device}")
        return tensor.shape[0]


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that programs have: bytes for fp8 and other dtypes of one byte."""
    return x.view(torch.uint8) if x.dtype not in NAMES and x.element_size() == 1 else x


def is_positive_integer(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def expect_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise symmc.InputError(f"{name}: expected a torch.Tensor, found {type(value).__name__}")


def needs_gradient(operands: dict[str, torch.Tensor | None], out: torch.Tensor | None) -> bool:
    """Whether a call records its gradient. A call that writes to `out` cannot."""
    needing = []
    for name, operand in operands.items():
        if operand is not None:
            expect_tensor(name, operand)
            if operand.requires_grad and torch.is_grad_enabled():
                needing.append(name)
    if needing and out is not None:
        raise symmc.InputError(
            f"out: expected None, because {needing[0]} requires a gradient; torch.no_grad() leaves gradients out"
        )
    return bool(needing)


def rank_count(group: Any) -> int:
    """The number of ranks of a group."""
    if isinstance(group, symmc.Group):
        return group.ranks
    size = getattr(group, "size", None)
    if not callable(size):
        # PyTorch gives ranks outside of a new group a number in its place.
        raise symmc.InputError(f"group: expected a symmc.Group or a process group with this rank, found {group!r}")
    return int(size())


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: ExpertExchange, routing: Routing) -> torch.Tensor:
        ctx.exchange = exchange
        ctx.routing = routing
        return exchange._dispatch(x, routing)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return ctx.exchange.combine(gradient, ctx.routing), None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weights: torch.Tensor | None, exchange: ExpertExchange, routing: Routing
    ) -> torch.Tensor:
        ctx.exchange = exchange
        ctx.routing = routing
        ctx.save_for_backward(rows, weights)
        return exchange._combine(rows, routing, weights)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:  # type: ignore[override]
        rows, weights = ctx.saved_tensors
        exchange: ExpertExchange = ctx.exchange
        routing: Routing = ctx.routing
        by_row = exchange.dispatch(gradient, routing)
        if weights is None:
            return by_row, None, None, None
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        # All ranks make the same exchanges, whichever gradients they need.
        row_weights = exchange.row_weights(weights.to(wide), routing).unsqueeze(1)
        products = (by_row.to(wide) * rows.to(wide)).sum(1, keepdim=True)
        of_weights = exchange.combine(products, routing.by_slot())
        return (by_row.to(wide) * row_weights).to(rows.dtype), of_weights.reshape(weights.shape).to(weights.dtype), None, None
