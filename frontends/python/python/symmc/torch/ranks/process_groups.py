"""Ranks of PyTorch: who takes part in a program, and how they tell each other something."""

from __future__ import annotations

import hashlib
import json
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from symmc import DisagreementError, Error, Group, InputError, PeerError, UnsupportedError

_PATIENCE = 300.0
"""How long ranks wait for each other where nobody says, in seconds."""


_GIVEN, _FAILED = b"+", b"-"
"""What stands before what a rank says: something that it gives, or why it gives nothing."""

_TOLD = "symmc_told"
"""The attribute of errors that the other ranks need not be told."""


class Apart(InputError):
    """The graphs of ranks are not one program. All of the ranks find that."""

    def __init__(self, error: Error):
        super().__init__(str(error))
        self.node, self.op, self.path = error.node, error.op, error.path
        self.culprit = self.rank = error.culprit
        self.reporter = error.reporter
        setattr(self, _TOLD, True)


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
        return Group.bootstrap(self.rank, len(self.members), lambda mine: self.all_gather(mine, "a session"))

    def all_gather(self, mine: bytes, what: str = "a program") -> list[bytes]:
        """What every one of them gives, in their order; all of them call this together, for the same thing.

        Whoever gives up has said nothing: the next time that the ranks come together they understand each other again.
        """
        turn = self._turn()
        turn.say(_GIVEN + what.encode() + b":" + mine)
        try:
            said = [_said(turn.key(rank), rank, self.timeout) for rank in self.members]
        except BaseException as error:
            turn.withdraw()
            setattr(error, _TOLD, True)
            raise
        turn.end()
        return [_given(one, rank, what) for one, rank in zip(said, self.members)]

    def are_alike(self, program: str | None, refusal: Error | None, archive: bytes, sizes: dict[str, int]) -> bool:
        """Whether all have the same program, or the same archive for which they are refused one; all of them call this together.

        Where only some are refused, or for several nodes, or where sizes differ, the graphs are no one program.
        """
        text = str(refusal)
        own = [_digest((program or "").encode())] if refusal is None else [refusal.node or text, refusal.op]
        mine = _digest(archive)
        told = [json.loads(one) for one in self.all_gather(json.dumps([own, text, mine, sizes]).encode())]
        said = [(one, text) for one, text, *_ in told]
        if refusal is None:
            self._expect_sizes(sizes, [of for *_, of in told])
        else:
            setattr(refusal, _TOLD, True)
        is_one = all(one == own for one, _ in said)
        refused = [(rank, one, text) for rank, (one, text) in zip(self.members, said) if len(one) > 1]
        if refused and not is_one:
            if refusal is None:
                rank, (node, op), text = refused[0]
                refusal = InputError(f"the graph of rank {rank}: {text.removeprefix('the graph: ')}")
                refusal.node, refusal.op = node, op
                refusal.culprit = refusal.rank = rank
            raise Apart(refusal) from refusal
        return is_one and (refusal is None or all(one == mine for _, _, one, _ in told))

    def _expect_sizes(self, own: dict[str, int], told: list[dict[str, int]]) -> None:
        """Refuses sizes that are not those of other ranks, which are no one run."""
        for rank, sizes in zip(self.members, told):
            for name in own.keys() & sizes.keys():
                if own[name] != sizes[name]:
                    found = f"{own[name]} on rank {self.members[self.rank]} and {sizes[name]} on rank {rank}"
                    raise Apart(InputError(f"the size {name} is {found}: expected one size on all ranks"))

    @contextmanager
    def telling(self) -> Iterator[None]:
        """While this lasts, an error of this rank is told to the others, where they wait for what it would give next."""
        try:
            yield
        except BaseException as error:
            is_told = getattr(error, _TOLD, False)
            if len(self.members) > 1 and dist.is_initialized() and not is_told:
                text = str(error) or "interrupted"
                try:
                    self._turn().fail(_FAILED + f"{type(error).__name__}: {text}".encode())
                except Exception:
                    # Nobody is there to be told; the error itself says more.
                    pass
            raise

    def _turn(self) -> _Turn:
        return _Turn(f"symmc/{_text(self.members)}", self.members)


class _Turn:
    """One time that ranks come together over a topic: the one behind the last that any of them has ended.

    Who ends it has heard all, so all were there, and come to the next one. Who gives up stays behind, and comes to the same
    one again or, where others ended it, to theirs. Who fails leaves the others this one to hear of it. The store counts,
    which is gone with the process groups that it is for.
    """

    def __init__(self, topic: str, members: Iterable[int]):
        ended = {rank: _store().add(f"{topic}/ended/{rank}", 0) for rank in members}
        self.topic, self.before = topic, ended[dist.get_rank()]
        self.failed = _store().add(f"{topic}/failed/{dist.get_rank()}", 0)
        self.number = 1 + max(self.failed, *ended.values())

    def key(self, rank: int) -> str:
        """Where the store has what a rank says."""
        return f"{self.topic}/{self.number}/{rank}"

    def say(self, what: bytes | str) -> None:
        """Tells the others something."""
        _store().set(self.key(dist.get_rank()), what)

    def end(self) -> None:
        """All have been heard."""
        _store().add(f"{self.topic}/ended/{dist.get_rank()}", self.number - self.before)

    def fail(self, what: bytes) -> None:
        """Tells the others why this rank comes no more this time."""
        self.say(what)
        _store().add(f"{self.topic}/failed/{dist.get_rank()}", self.number - self.failed)

    def withdraw(self) -> None:
        """Takes back what was said."""
        try:
            _store().delete_key(self.key(dist.get_rank()))
        except Exception:
            # Not all stores take something back, and the rank that has the store may be gone.
            pass


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _peer_error(rank: int, text: str) -> PeerError:
    error = PeerError(text)
    error.culprit = error.rank = rank
    return error


def _given(said: bytes, rank: int, what: str) -> bytes:
    """What a rank gives, if it gives something of this sort."""
    if said[:1] == _FAILED:
        error = _peer_error(rank, f"rank {rank} failed: {said[1:].decode()}")
        setattr(error, _TOLD, True)
        raise error
    found, _, given = said[1:].partition(b":")
    if found != what.encode():
        text = f"rank {rank} wants {found.decode()} where this rank wants {what}: all ranks do the same in the same order"
        raise DisagreementError(text)
    return given


def _store():
    return dist.distributed_c10d._get_default_store()


def _said(key: str, rank: int, timeout: float) -> bytes:
    """What a rank put into the store."""
    store, until, pause = _store(), time.monotonic() + timeout, 0.0002
    # A wait of the store would hear neither of Ctrl-C nor of other threads.
    while not store.check([key]):
        if time.monotonic() > until:
            text = f"rank {rank} did not come within {timeout:g} s: all ranks of a graph call it together, with sizes that fit"
            raise _peer_error(rank, text)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return bytes(store.get(key))


def _text(members: Iterable[int]) -> str:
    return ".".join(map(str, members))


def know(groups) -> None:
    """Has names of graphs mean process groups: a mapping, or a function that gives a name's group, or none."""
    if isinstance(groups, Mapping):
        _known.insert(0, groups.get)
    elif callable(groups):
        _known.insert(0, groups)
    else:
        raise InputError(f"option groups: expected a mapping from names to process groups or a function, found {groups!r}")


def process_group(name: str):
    """The process group of a name in graphs."""
    for find in _known:
        group = find(name)
        if group is not None:
            return group
    raise InputError(f"process group {name}: it is not there, or no more (destroy_process_group)")


def _of_torch(name: str):
    try:
        return dist.distributed_c10d._resolve_process_group(name)
    except (KeyError, RuntimeError):
        return None


def _of_engines(name: str):
    """The group of a coordinator of vLLM or SGLang, which have names of their own."""
    for module in ("vllm.distributed.parallel_state", "sglang.srt.distributed.parallel_state"):
        coordinator = getattr(sys.modules.get(module), "_groups", {}).get(name)
        if coordinator is not None and coordinator() is not None:
            return coordinator().device_group
    return None


_known: list[Callable] = [_of_torch, _of_engines]
"""What finds process groups, in this order."""


def members_of(name: str) -> tuple[int, ...]:
    """The ranks of a process group, by its name in graphs, as numbers in the job and in the order of the group."""
    _expect_initialized()
    try:
        return tuple(dist.get_process_group_ranks(process_group(name)))
    except (KeyError, RuntimeError) as error:
        raise InputError(f"process group {name}: it is not there, or no more (destroy_process_group)") from error


def known_members(names: Iterable[str]) -> str:
    """What PyTorch knows here of groups by these names, for messages: the ranks of a group that this rank is in."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    found = {name: group for name in names if (group := _of_torch(name)) is not None}
    ranks = [f"group `{name}` has the ranks {dist.get_process_group_ranks(group)}" for name, group in found.items()]
    return f"; on rank {dist.get_rank()} of this job {', '.join(ranks)}" if ranks else ""


def _expect_initialized() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise InputError("torch.distributed has no process group: call init_process_group before")


def group_sizes() -> dict[str, int]:
    """The number of ranks of each process group of PyTorch that there is, by name."""
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    names = dist.distributed_c10d._world.pg_names
    return {str(name): dist.get_world_size(group) for group, name in names.items()}


def alone() -> Ranks:
    """This rank by itself."""
    return Ranks((dist.get_rank() if dist.is_available() and dist.is_initialized() else 0,), 0)


def are_several(names: Iterable[str]) -> bool:
    """Whether process groups with these names connect this rank with others."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    try:
        return any(len(members_of(name)) > 1 for name in names)
    except InputError:
        return False


class PerWorld:
    """A cache for the present process groups. It is cleared when they are created again."""

    def __init__(self, kept):
        self._kept, self._world = kept, None

    def __call__(self):
        """The cached values."""
        world = dist.distributed_c10d._world.default_pg
        if self._world is None or self._world() is not world:
            self._kept.clear()
            self._world = weakref.ref(world)
        return self._kept


def in_order(names: Iterable[str]) -> list[str]:
    """Names of process groups in the order in which the groups were made, which is the same on all ranks."""
    names = list(names)
    if not (dist.is_available() and dist.is_initialized()):
        return names
    made = {group: at for at, group in enumerate(dist.distributed_c10d._world.pg_map)}

    def place(name: str) -> int:
        try:
            return made.get(process_group(name), len(made))
        except InputError:
            return len(made)

    return sorted(names, key=place)


_known_cells = PerWorld({})
"""The groups of all ranks, as these published them once, by the groups of this rank."""


def connected(names: Iterable[str], timeout: float) -> tuple[Ranks, dict[int, list[tuple[tuple[int, ...], str]]]]:
    """The ranks that programs with these groups connect, and for each rank the members and the name of each of its groups, in the
    order in which they were made.

    A rank in a group with a rank that takes part takes part too. The ranks tell each other their groups when these are used together
    for the first time.
    """
    names = in_order(names)
    own = [members_of(name) for name in names]
    if not own:
        return alone(), {}
    known, key = _known_cells(), tuple(own)
    if key not in known:
        known[key] = _told_cells([(members, _name_of(name)) for name, members in zip(names, own)], timeout)
    cells = known[key]
    members = tuple(sorted(cells))
    return Ranks(members, members.index(dist.get_rank()), timeout), cells


def _name_of(name: str) -> str:
    """What people call a process group."""
    described = getattr(process_group(name), "group_desc", None)
    return name if not described or described == "undefined" else described


def _told_cells(own: list[tuple[tuple[int, ...], str]], timeout: float) -> dict[int, list[tuple[tuple[int, ...], str]]]:
    """The groups of all ranks that these groups connect. The members of a group count the times, so that each may be in others
    besides."""
    me = dist.get_rank()
    turns = {members: _Turn(f"symmc/cells/{_text(members)}", members) for members in dict.fromkeys(members for members, _ in own)}
    text = json.dumps([[_text(members), turns[members].number, name] for members, name in own])
    for turn in turns.values():
        turn.say(text)
    cells: dict[int, list[tuple[tuple[int, ...], str]]] = {}
    members, _ = own[0]
    asked = [(me, f"{_text(members)}/{turns[members].number}")]
    try:
        while asked:
            rank, program = asked.pop()
            if rank in cells:
                continue
            said = json.loads(_said(f"symmc/cells/{program}/{rank}", rank, timeout).decode())
            cells[rank] = [(tuple(map(int, part.split("."))), name) for part, _, name in said]
            asked.extend((r, f"{part}/{number}") for (members, _), (part, number, _) in zip(cells[rank], said) for r in members)
    except BaseException:
        for turn in turns.values():
            turn.withdraw()
        raise
    for turn in turns.values():
        turn.end()
    return cells


def taking_part(names: Iterable[str], timeout: float) -> tuple[Ranks, dict[str, list[list[int]]]]:
    """The ranks that programs with these groups connect, and the cells of each group, by its number among the names in the order
    in which the groups were made."""
    ranks, cells = connected(names, timeout)
    place = {rank: number for number, rank in enumerate(ranks.members)}
    groups = {}
    for number, column in enumerate(_columns(cells)):
        groups[str(number)] = [[place[rank] for rank in cell] for cell in column]
    return ranks, groups


def _columns(cells: dict[int, list[tuple[tuple[int, ...], str]]]) -> list[list[tuple[int, ...]]]:
    """The cells of each group: those that ranks have at one place of their lists, each rank in one of them.

    Raises ``Apart`` on all ranks if the groups do not partition the ranks in the same way.
    """
    columns = []
    for number in range(max(map(len, cells.values()), default=0)):
        column = list(dict.fromkeys(cells[rank][number][0] for rank in sorted(cells) if number < len(cells[rank])))
        is_division = sorted(rank for cell in column for rank in cell) == sorted(cells)
        if not is_division or len({len(cell) for cell in column}) > 1:
            raise Apart(InputError(f"the process groups do not partition the ranks in the same way: {_listed(cells)}"))
        columns.append(column)
    return columns


def _listed(cells: dict[int, list[tuple[tuple[int, ...], str]]]) -> str:
    """The groups of the first ranks, for people."""
    own = [", ".join(f"{name} {list(members)}" for members, name in cells[rank]) for rank in sorted(cells)]
    listed = [f"rank {rank} uses {text}" for rank, text in zip(sorted(cells), own)]
    return "; ".join(listed[:8]) + ("; …" if len(listed) > 8 else "")


@contextmanager
def refusing_together(names: list[str], timeout: float) -> Iterator[None]:
    """What is refused while this lasts, before there is a program with these groups, is so as if its import had been."""
    try:
        yield
    except Exception as error:
        try:
            ranks, _ = taking_part(names, timeout)
        except Error:
            raise error from None
        if len(ranks.members) > 1:
            with ranks.telling():
                if isinstance(error, (InputError, UnsupportedError)):
                    ranks.are_alike(None, error, b"", {})
                raise
        raise


def group_of(process_group=None, timeout: float = _PATIENCE) -> Group:
    """The group of sessions of a process group of PyTorch, the default one without; all its ranks call this together.

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
        raise InputError("the process group is not there any more (destroy_process_group)") from error
    me = dist.get_rank()
    if me not in members:
        raise InputError(f"rank {me} is not in the process group, whose ranks are {list(members)}")
    return Ranks(members, members.index(me), timeout).group()
