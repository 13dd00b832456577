"""Exchange of values between ranks while they compile, through the store of ``torch.distributed``."""

from __future__ import annotations

import hashlib
import json
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist

from symmc import DisagreementError, Error, Group, InputError, PeerError

PATIENCE = 300.0
"""The default timeout of waits for other ranks, in seconds."""


_VALUE, _FAILURE = b"+", b"-"
"""The first byte of a message in the store: a value follows, or the reason of a failure."""


_IS_REPORTED = "symmc_told"
"""The attribute of errors that are not reported to the other ranks, because these have them."""


class GraphsDiffer(InputError):
    """The graphs of the ranks are not one program. All of these ranks raise it."""

    def __init__(self, error: Error):
        super().__init__(str(error))
        self.node, self.op, self.path = error.node, error.op, error.path
        self.culprit = self.rank = error.culprit
        self.reporter = error.reporter
        setattr(self, _IS_REPORTED, True)


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a program, by their numbers in the job, and the rank of this process among them."""

    members: tuple[int, ...]
    """Their numbers in the job, ascending."""
    rank: int
    """The index of this rank in ``members``."""
    timeout: float = PATIENCE
    """The longest wait for another rank, in seconds."""

    def group(self) -> Group:
        """A group of sessions of these ranks; all of them call this together."""
        if len(self.members) == 1:
            return Group.threads(1)[0]
        return Group.bootstrap(self.rank, len(self.members), lambda mine: self.all_gather(mine, "a session"))

    def all_gather(self, mine: bytes, what: str = "a program") -> list[bytes]:
        """The values of all ranks, in order. All ranks call this together, with the same ``what``.

        A rank that gives up removes its message, so the next exchange starts cleanly.
        """
        exchange = self._next_round()
        exchange.publish(_VALUE + what.encode() + b":" + mine)
        try:
            said = [await_value(exchange.key_of(rank), rank, self.timeout) for rank in self.members]
        except BaseException as error:
            exchange.withdraw()
            setattr(error, _IS_REPORTED, True)
            raise
        exchange.finish()
        return [_unwrap(one, rank, what) for one, rank in zip(said, self.members)]

    def programs_agree(self, program: str | None, refusal: Error | None, archive: bytes, sizes: dict[str, int]) -> bool:
        """Whether all have the same program, or the same archive for which they are refused one; all of them call this together.

        Where only some are refused, or for several nodes, or where sizes differ, the graphs are no one program.
        """
        text = str(refusal)
        own = [_digest((program or "").encode())] if refusal is None else [refusal.node or text, refusal.op]
        mine = _digest(archive)
        told = [json.loads(one) for one in self.all_gather(json.dumps([own, text, mine, sizes]).encode())]
        said = [(one, text) for one, text, *_ in told]
        if refusal is None:
            self._expect_same_sizes(sizes, [of for *_, of in told])
        else:
            setattr(refusal, _IS_REPORTED, True)
        is_one = all(one == own for one, _ in said)
        refused = [(rank, one, text) for rank, (one, text) in zip(self.members, said) if len(one) > 1]
        if refused and not is_one:
            if refusal is None:
                rank, (node, op), text = refused[0]
                refusal = InputError(f"the graph of rank {rank}: {text.removeprefix('the graph: ')}")
                refusal.node, refusal.op = node, op
                refusal.culprit = refusal.rank = rank
            raise GraphsDiffer(refusal) from refusal
        return is_one and (refusal is None or all(one == mine for _, _, one, _ in told))

    def _expect_same_sizes(self, own: dict[str, int], told: list[dict[str, int]]) -> None:
        """Raises if the sizes of this rank differ from those of another rank."""
        for rank, sizes in zip(self.members, told):
            for name in own.keys() & sizes.keys():
                if own[name] != sizes[name]:
                    found = f"{own[name]} on rank {self.members[self.rank]} and {sizes[name]} on rank {rank}"
                    raise GraphsDiffer(InputError(f"the size {name} is {found}: expected one size on all ranks"))

    @contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """In this context an error of this rank is reported to the others, in the exchange in which they wait for it."""
        try:
            yield
        except BaseException as error:
            is_told = getattr(error, _IS_REPORTED, False)
            if len(self.members) > 1 and dist.is_initialized() and not is_told:
                text = str(error) or "interrupted"
                # An outer context of this kind does not report it again, in an exchange that the others do not join.
                setattr(error, _IS_REPORTED, True)
                try:
                    self._next_round().publish_failure(_FAILURE + f"{type(error).__name__}: {text}".encode())
                except Exception:
                    # The store is gone. The error itself says more.
                    pass
            raise

    def _next_round(self) -> StoreRound:
        return StoreRound(f"symmc/{members_text(self.members)}", self.members)


class StoreRound:
    """One exchange of all ranks on a topic. Its number follows the last one that any rank finished.

    A rank that finished a round has read all values, so all ranks were in it, and their next round is the same. A rank that gave up
    repeats its round, or joins the next one if others finished it. A rank that failed leaves its failure in the round for the others.
    The store holds the counts, and ends with the process groups.
    """

    def __init__(self, topic: str, members: Iterable[int]):
        ended = {rank: _store().add(f"{topic}/ended/{rank}", 0) for rank in members}
        self.topic, self.before = topic, ended[dist.get_rank()]
        self.failed = _store().add(f"{topic}/failed/{dist.get_rank()}", 0)
        self.number = 1 + max(self.failed, *ended.values())

    def key_of(self, rank: int) -> str:
        """The key in the store of the message of a rank."""
        return f"{self.topic}/{self.number}/{rank}"

    def publish(self, what: bytes | str) -> None:
        _store().set(self.key_of(dist.get_rank()), what)

    def finish(self) -> None:
        """All messages have been read."""
        _store().add(f"{self.topic}/ended/{dist.get_rank()}", self.number - self.before)

    def publish_failure(self, what: bytes) -> None:
        self.publish(what)
        _store().add(f"{self.topic}/failed/{dist.get_rank()}", self.number - self.failed)

    def withdraw(self) -> None:
        try:
            _store().delete_key(self.key_of(dist.get_rank()))
        except Exception:
            # Not all stores can delete a key, and the rank that hosts the store may have ended.
            pass


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _peer_error(rank: int, text: str) -> PeerError:
    error = PeerError(text)
    error.culprit = error.rank = rank
    return error


def _unwrap(said: bytes, rank: int, what: str) -> bytes:
    """The value in a message, if it is of this kind."""
    if said[:1] == _FAILURE:
        error = _peer_error(rank, f"rank {rank} failed: {said[1:].decode()}")
        setattr(error, _IS_REPORTED, True)
        raise error
    found, _, given = said[1:].partition(b":")
    if found != what.encode():
        text = f"rank {rank} exchanges {found.decode()}, this rank {what}: all ranks must do the same in the same order"
        raise DisagreementError(text)
    return given


def _store():
    return dist.distributed_c10d._get_default_store()


def await_value(key: str, rank: int, timeout: float) -> bytes:
    """The message of a rank, once it is in the store."""
    store, until, pause = _store(), time.monotonic() + timeout, 0.0002
    # A wait of the store blocks Ctrl-C and other threads.
    while not store.check([key]):
        if time.monotonic() > until:
            text = f"rank {rank} did not join within {timeout:g} s: all ranks of a graph must call it together, with matching sizes"
            raise _peer_error(rank, text)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return bytes(store.get(key))


def members_text(members: Iterable[int]) -> str:
    return ".".join(map(str, members))


class WorldCache:
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
