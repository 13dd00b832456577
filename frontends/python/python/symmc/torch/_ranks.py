"""Ranks of PyTorch: who takes part in a program, and how they tell each other something."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from symmc import DisagreementError, Group, InputError, PeerError

_PATIENCE = 300.0
"""How long ranks wait for each other where nobody says, in seconds."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of a program among those of the job, and this one's number among them."""

    members: tuple[int, ...]
    """Their numbers in the job, ascending."""
    rank: int
    """The place of this one in ``members``."""
    timeout: float = _PATIENCE
    """The longest wait for what another one gives, in seconds."""

    def group(self) -> Group:
        """A group of sessions of these ranks; all of them call this together."""
        if len(self.members) == 1:
            return Group.threads(1)[0]
        return Group.bootstrap(self.rank, len(self.members), self.all_gather)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every one of them gives, in their order; all of them call this together."""
        topic = f"symmc/{_text(self.members)}"
        turn = _turn(topic)
        _store().set(f"{topic}/{turn}/{dist.get_rank()}", mine)
        return [_said(f"{topic}/{turn}/{rank}", rank, self.timeout) for rank in self.members]


def _store():
    return dist.distributed_c10d._get_default_store()


def _turn(topic: str) -> int:
    """How often this rank has spoken of a topic. The store counts, which is gone with the process groups that it is for."""
    return _store().add(f"{topic}/turns/{dist.get_rank()}", 1)


def _said(key: str, rank: int, timeout: float) -> bytes:
    """What a rank put into the store."""
    store = _store()
    try:
        store.wait([key], timedelta(seconds=timeout))
    except dist.DistStoreError as error:
        text = f"rank {rank} did not come within {timeout} s: all ranks of a graph call it together, with sizes that fit"
        raise PeerError(text) from error
    return bytes(store.get(key))


def _text(members: Iterable[int]) -> str:
    return ".".join(map(str, members))


def members_of(name: str) -> tuple[int, ...]:
    """The ranks of a process group, by its name in graphs, as numbers in the job and in the order of the group."""
    group = dist.distributed_c10d._resolve_process_group(name)
    return tuple(dist.get_process_group_ranks(group))


def alone() -> Ranks:
    """This rank by itself."""
    return Ranks((dist.get_rank() if dist.is_available() and dist.is_initialized() else 0,), 0)


def taking_part(names: Iterable[str], timeout: float) -> tuple[Ranks, dict[str, list[list[int]]]]:
    """The ranks that programs with these groups connect, and the cells of each group, by its number among the names.

    Ranks say which groups of theirs stand at which place of the program; whoever is in a group with one that takes part
    takes part too. The members of a group count the programs that it is in, so that each may be in others besides.
    """
    own = [members_of(name) for name in names]
    if not own:
        return alone(), {}
    me, store = dist.get_rank(), _store()
    turns = {members: _turn(f"symmc/cells/{_text(members)}") for members in dict.fromkeys(own)}
    text = ";".join(f"{_text(members)}/{turns[members]}" for members in own)
    for members, turn in turns.items():
        store.set(f"symmc/cells/{_text(members)}/{turn}/{me}", text)
    cells: dict[int, list[tuple[int, ...]]] = {}
    asked = [(me, f"{_text(own[0])}/{turns[own[0]]}")]
    while asked:
        rank, program = asked.pop()
        if rank in cells:
            continue
        said = _said(f"symmc/cells/{program}/{rank}", rank, timeout).decode().split(";")
        cells[rank] = [tuple(int(r) for r in part.split("/")[0].split(".")) for part in said]
        asked.extend((r, part) for members, part in zip(cells[rank], said) for r in members)
    _same_number(cells)
    members = tuple(sorted(cells))
    place = {rank: number for number, rank in enumerate(members)}
    groups = {}
    for number in range(len(own)):
        distinct = dict.fromkeys(cells[rank][number] for rank in members)
        groups[str(number)] = [[place[rank] for rank in cell] for cell in distinct]
    return Ranks(members, place[me], timeout), groups


def _same_number(cells: dict[int, list]) -> None:
    """Refuses programs of ranks that have not as many groups."""
    (first, expected), *others = cells.items()
    for rank, found in others:
        if len(found) != len(expected):
            text = f"the graphs differ: that of rank {first} has {len(expected)} process groups, that of rank {rank} {len(found)}"
            raise DisagreementError(text)


def group_of(process_group=None) -> Group:
    """The group of sessions of a process group of PyTorch, the default one without; all its ranks call this together."""
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("torch.distributed has no process group: call init_process_group before")
    if not (process_group is None or isinstance(process_group, dist.ProcessGroup)):
        raise InputError(f"expected a symmc.Group or a process group of torch.distributed, found {process_group!r}")
    members = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    me = dist.get_rank()
    if me not in members:
        raise InputError(f"rank {me} is not in the process group, whose ranks are {list(members)}")
    return Ranks(members, members.index(me)).group()
