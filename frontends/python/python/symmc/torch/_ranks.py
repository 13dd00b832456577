"""Ranks of PyTorch: who takes part in a program, and how they tell each other something."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch.distributed as dist

from symmc import Group

_numbers = itertools.count()


@dataclass(frozen=True)
class Ranks:
    """The ranks of a program among those of the job, and this one's number among them."""

    members: tuple[int, ...]
    """Their numbers in the job, ascending."""
    rank: int
    """The place of this one in ``members``."""

    def group(self) -> Group:
        """A group of sessions of these ranks; all of them call this together."""
        if len(self.members) == 1:
            return Group.threads(1)[0]
        return Group.bootstrap(self.rank, len(self.members), self.all_gather)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every one of them gives, in their order; all of them call this together."""
        return _gather(self.members, f"symmc/{'.'.join(map(str, self.members))}", mine)


def _store():
    return dist.distributed_c10d._get_default_store()


_turns: dict[str, int] = {}


def _gather(members: Iterable[int], topic: str, mine: bytes) -> list[bytes]:
    """All members of a topic give something in the same turns."""
    turn = _turns[topic] = _turns.get(topic, -1) + 1
    store = _store()
    store.set(f"{topic}/{turn}/{dist.get_rank()}", mine)
    return [bytes(store.get(f"{topic}/{turn}/{rank}")) for rank in members]


def members_of(name: str) -> tuple[int, ...]:
    """The ranks of a process group, by its name in graphs, as numbers in the job and in the order of the group."""
    group = dist.distributed_c10d._resolve_process_group(name)
    return tuple(dist.get_process_group_ranks(group))


def alone() -> Ranks:
    """This rank by itself."""
    return Ranks((dist.get_rank() if dist.is_available() and dist.is_initialized() else 0,), 0)


def taking_part(names: Iterable[str]) -> tuple[Ranks, dict[str, list[list[int]]]]:
    """The ranks that programs with these groups connect, and the cells of each group, by its name on this rank.

    Ranks say which groups of theirs stand at which place of the program; whoever is in a group with one that takes part
    takes part too.
    """
    own = [members_of(name) for name in names]
    if not own:
        return alone(), {}
    me = dist.get_rank()
    number = _turns["symmc/cells"] = _turns.get("symmc/cells", -1) + 1
    store = _store()
    text = ";".join(",".join(map(str, members)) for members in own)
    store.set(f"symmc/cells/{number}/{me}", text)
    cells: dict[int, list[tuple[int, ...]]] = {}
    asked = [me]
    while asked:
        rank = asked.pop()
        if rank in cells:
            continue
        said = store.get(f"symmc/cells/{number}/{rank}").decode()
        cells[rank] = [tuple(int(r) for r in part.split(",")) for part in said.split(";")]
        asked.extend(r for members in cells[rank] for r in members)
    members = tuple(sorted(cells))
    place = {rank: number for number, rank in enumerate(members)}
    groups = {}
    for number, name in enumerate(names):
        distinct = dict.fromkeys(cells[rank][number] for rank in members)
        groups[name] = [[place[rank] for rank in cell] for cell in distinct]
    return Ranks(members, place[me]), groups


def group_of(process_group=None) -> Group:
    """The group of sessions of a process group of PyTorch, the default one without; all its ranks call this together."""
    if not (dist.is_available() and dist.is_initialized()):
        from symmc import InputError

        raise InputError("torch.distributed has no process group: call init_process_group before")
    members = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    me = dist.get_rank()
    if me not in members:
        from symmc import InputError

        raise InputError(f"rank {me} is not in the process group, whose ranks are {list(members)}")
    return Ranks(members, members.index(me)).group()
