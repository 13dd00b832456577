"""Process groups of PyTorch: their names in graphs, their ranks, and the ranks that they connect."""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch.distributed as dist

from symmc import Error, Group, InputError, UnsupportedError
from symmc.torch.ranks.exchange import PATIENCE, GraphsDiffer, RankGroup, StoreRound, WorldCache, await_value, failure_in, members_text


def register_groups(groups) -> None:
    """Sets the process groups of names in graphs: a mapping, or a function that returns the group of a name or None."""
    if isinstance(groups, Mapping):
        _known.insert(0, groups.get)
    elif callable(groups):
        _known.insert(0, groups)
    else:
        raise InputError(f"option groups: expected a mapping from names to process groups or a function, found {groups!r}")


def find_process_group(name: str):
    for find in _known:
        group = find(name)
        if group is not None:
            return group
    raise InputError(f"process group {name}: it does not exist, or was destroyed (destroy_process_group)")


def _of_torch(name: str):
    try:
        return dist.distributed_c10d._resolve_process_group(name)
    except (KeyError, RuntimeError):
        return None


def _of_engines(name: str):
    """The group of a coordinator of vLLM or SGLang, which use different names."""
    for module in ("vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state"):
        coordinator = getattr(sys.modules.get(module), "_groups", {}).get(name)
        if coordinator is not None and coordinator() is not None:
            return coordinator().device_group
    return None


_known: list[Callable] = [_of_torch, _of_engines]
"""The functions that find process groups, in this order."""


def members_of(name: str) -> tuple[int, ...]:
    """The ranks of a process group, by its name in graphs, as numbers in the job and in the order of the group."""
    _expect_initialized()
    try:
        return tuple(dist.get_process_group_ranks(find_process_group(name)))
    except (KeyError, RuntimeError) as error:
        raise InputError(f"process group {name}: it does not exist, or was destroyed (destroy_process_group)") from error


def describe_members(names: Iterable[str]) -> str:
    """The end of a message: the ranks of the groups with these names that this rank is in."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    found = {name: group for name in names if (group := _of_torch(name)) is not None}
    ranks = [f"group `{name}` has the ranks {dist.get_process_group_ranks(group)}" for name, group in found.items()]
    return f"; on rank {dist.get_rank()} of this job {', '.join(ranks)}" if ranks else ""


def _expect_initialized() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("torch.distributed has no process group: call init_process_group first")


def group_sizes() -> dict[str, int]:
    """The number of ranks of each existing process group of PyTorch, by name."""
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    names = dist.distributed_c10d._world.pg_names
    return {str(name): dist.get_world_size(group) for group, name in names.items()}


def alone() -> RankGroup:
    """A group of this rank alone."""
    return RankGroup((dist.get_rank() if dist.is_available() and dist.is_initialized() else 0,), 0)


def connects_several_ranks(names: Iterable[str]) -> bool:
    """Whether process groups with these names connect this rank with others."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    try:
        return any(len(members_of(name)) > 1 for name in names)
    except InputError:
        return False


def sort_by_creation(names: Iterable[str]) -> list[str]:
    """Names of process groups in the order in which the groups were made, which is the same on all ranks."""
    names = list(names)
    if not (dist.is_available() and dist.is_initialized()):
        return names
    made = {group: at for at, group in enumerate(dist.distributed_c10d._world.pg_map)}

    def place(name: str) -> int:
        try:
            return made.get(find_process_group(name), len(made))
        except InputError:
            return len(made)

    return sorted(names, key=place)


Cells = dict[int, list[tuple[tuple[int, ...], str]]]
"""For each rank the members and the name of each of its groups, in the order in which they were made."""

_known_cells = WorldCache({})
"""The groups of all ranks, as these published them once, and the name of these ranks, by the groups of this rank."""

_tokens = WorldCache([])
"""A random text of this rank."""


def connect_ranks(names: Iterable[str], timeout: float) -> tuple[RankGroup, Cells]:
    """The ranks that programs with these groups connect, and for each rank the members and the name of each of its groups, in the
    order in which they were made.

    A rank in a group with a rank that takes part takes part too. The ranks tell each other their groups when these are used together
    for the first time.
    """
    names = sort_by_creation(names)
    own = [members_of(name) for name in names]
    if not own:
        return alone(), {}
    known, key = _known_cells(), tuple(own)
    if key not in known:
        known[key] = _exchange_cells([(members, _display_name(name)) for name, members in zip(names, own)], timeout)
    cells, name = known[key]
    members = tuple(sorted(cells))
    return RankGroup(members, members.index(dist.get_rank()), timeout, name), cells


def _display_name(name: str) -> str:
    """The name of a process group for messages."""
    described = getattr(find_process_group(name), "group_desc", None)
    return name if not described or described == "undefined" else described


def _exchange_cells(own: list[tuple[tuple[int, ...], str]], timeout: float) -> tuple[Cells, str]:
    """The groups of all ranks that these groups connect, and a name that all of these ranks get. The members of a group count the exchanges of each group, since a rank may
    be in several groups."""
    me = dist.get_rank()
    groups = dict.fromkeys(members for members, _ in own)
    rounds = {members: StoreRound(f"symmc/cells/{members_text(members)}", members, timeout) for members in groups}
    tokens = _tokens()
    if not tokens:
        tokens.append(secrets.token_hex(8))
    text = json.dumps([tokens[0], [[members_text(members), rounds[members].number, name] for members, name in own]])
    cells: Cells = {}
    said_tokens: dict[int, str] = {}
    members, _ = own[0]
    asked = [(me, f"{members_text(members)}/{rounds[members].number}")]
    try:
        for exchange in rounds.values():
            exchange.publish(text)
        while asked:
            rank, program = asked.pop()
            if rank in cells:
                continue
            topic = f"symmc/cells/{program}"
            message = await_value(f"{topic}/{rank}", rank, timeout, f"{topic}/lost")
            failure = failure_in(message, rank)
            if failure is not None:
                for exchange in rounds.values():
                    exchange.finish()
                raise failure
            said_tokens[rank], said = json.loads(message.decode())
            cells[rank] = [(tuple(map(int, part.split("."))), name) for part, _, name in said]
            asked.extend((r, f"{part}/{number}") for (members, _), (part, number, _) in zip(cells[rank], said) for r in members)
    except BaseException as error:
        for exchange in rounds.values():
            exchange.withdraw(error)
            if not isinstance(error, Error):
                exchange.publish_failure(error)
        raise
    for exchange in rounds.values():
        exchange.finish()
    return cells, hashlib.sha256(json.dumps(sorted(said_tokens.items())).encode()).hexdigest()[:16]


def connect_groups(names: Iterable[str], timeout: float) -> tuple[RankGroup, dict[str, list[list[int]]]]:
    """The ranks that programs with these groups connect, and the cells of each group, by its number among the names in the order
    in which the groups were made."""
    ranks, cells = connect_ranks(names, timeout)
    place = {rank: number for number, rank in enumerate(ranks.members)}
    groups = {}
    for number, column in enumerate(_cells_of_groups(cells)):
        groups[str(number)] = [[place[rank] for rank in cell] for cell in column]
    return ranks, groups


def _cells_of_groups(cells: Cells) -> list[list[tuple[int, ...]]]:
    """The cells of each group: the groups at one index of the ranks' lists. Each rank is in one of them.

    Raises ``GraphsDiffer`` on all ranks if the groups do not partition the ranks in the same way.
    """
    columns = []
    for number in range(max(map(len, cells.values()), default=0)):
        column = list(dict.fromkeys(cells[rank][number][0] for rank in sorted(cells) if number < len(cells[rank])))
        is_division = sorted(rank for cell in column for rank in cell) == sorted(cells)
        if not is_division or len({len(cell) for cell in column}) > 1:
            raise GraphsDiffer(InputError(f"the process groups do not partition the ranks in the same way: {_listed(cells)}"))
        columns.append(column)
    return columns


def _listed(cells: Cells) -> str:
    """The groups of the first ranks, for messages."""
    own = [", ".join(f"{name} {list(members)}" for members, name in cells[rank]) for rank in sorted(cells)]
    listed = [f"rank {rank} uses {text}" for rank, text in zip(sorted(cells), own)]
    return "; ".join(listed[:8]) + ("; …" if len(listed) > 8 else "")


@contextmanager
def refusing_on_all_ranks(names: list[str], timeout: float) -> Iterator[None]:
    """Errors in this context are raised on all ranks, as errors of the import of a program with these groups."""
    try:
        yield
    except Exception as error:
        try:
            ranks, _ = connect_groups(names, timeout)
        except Error:
            raise error from None
        if len(ranks.members) > 1:
            with ranks.reporting_errors():
                if isinstance(error, (InputError, UnsupportedError)):
                    ranks.programs_agree(None, error, b"", {})
                raise
        raise


def group_of(process_group=None, timeout: float = PATIENCE) -> Group:
    """The group for sessions of a process group of PyTorch, by default of the default group. All its ranks call this together.

    They wait for each other for ``timeout`` seconds at most.
    """
    _expect_initialized()
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InputError(f"rank {dist.get_rank()} is not in the process group")
    if not (process_group is None or isinstance(process_group, dist.ProcessGroup)):
        raise InputError(f"expected a symmc.Group or a process group of torch.distributed, found {process_group!r}")
    try:
        members = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    except KeyError as error:
        raise InputError("the process group was destroyed (destroy_process_group)") from error
    me = dist.get_rank()
    if me not in members:
        raise InputError(f"rank {me} is not in the process group, whose ranks are {list(members)}")
    return RankGroup(members, members.index(me), timeout).group()
