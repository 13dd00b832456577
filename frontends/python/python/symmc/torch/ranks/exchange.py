"""Exchange of values between ranks while they compile, through the store of ``torch.distributed``."""

from __future__ import annotations

import hashlib
import json
import queue
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch.distributed as dist

from symmc import DisagreementError, Error, Group, InputError, PeerError, _symmc
from symmc.torch.ranks.store import is_store_stuck, leave_time_to_read, post_to_store, try_store, use_store

E = TypeVar("E", bound=Error)
T = TypeVar("T")

PATIENCE = 300.0
"""The default timeout of waits for other ranks, in seconds."""


_GRACE = 1.0
"""The least time that the last look into the store gets, in seconds: a slow answer is no fault of its host."""


_LOOK = 0.02
"""The longest wait for the store while a rank that waits for others looks for a notice there, in seconds."""


_VALUE, _FAILURE = b"+", b"-"
"""The first byte of a message in the store: a value follows, or the reason of a failure."""


_IS_REPORTED = "symmc_told"
"""The attribute of errors that are not reported to the other ranks, because these have them."""


_IS_NUMBERED = "symmc_numbered"
"""The attribute of errors that name ranks by their numbers in the job."""


_IS_SHARED = "symmc_shared"
"""The attribute of errors that all ranks raise in the same way, because they decided together."""


class GraphsDiffer(InputError):
    """The graphs of the ranks are not one program. All of these ranks raise it."""

    def __init__(self, error: Error):
        super().__init__(str(error))
        self.node, self.op, self.path = error.node, error.op, error.path
        self.culprit = self.rank = error.culprit
        self.reporter = error.reporter
        setattr(self, _IS_NUMBERED, True)
        raised_by_all(self)


@dataclass(frozen=True)
class RankGroup:
    """The ranks of a program, by their numbers in the job, and the rank of this process among them."""

    members: tuple[int, ...]
    """Their numbers in the job, ascending."""
    rank: int
    """The index of this rank in ``members``."""
    timeout: float = PATIENCE
    """The longest wait for another rank, in seconds."""
    name: str = ""
    """A name that other process groups do not have, also if they are created again. All of these ranks have it once they are connected."""

    def open(self, opened: Callable[[Group], T], exchanged: list[bytes] | None = None) -> T:
        """What a function opens for a group of sessions of these ranks; all of them call this together. ``exchanged`` receives bytes that
        are the same on all of them, and in no other group."""
        group = self.group(exchanged)
        try:
            return opened(group)
        except BaseException as error:
            # The others wait in the session. In a joint call they read a notice there.
            if _call.get() is None:
                group.decline(_described(error))
            raise

    def group(self, exchanged: list[bytes] | None = None) -> Group:
        """A group of sessions of these ranks."""
        if len(self.members) == 1:
            return Group.threads(1)[0]

        def all_gather(mine: bytes) -> list[bytes]:
            values = self.all_gather(mine, "a session")
            if exchanged is not None:
                exchanged.extend(values)
            return values

        try:
            return Group.bootstrap(self.rank, len(self.members), all_gather, reports_failures=_call.get() is not None)
        except InputError as error:
            # An error of the exchange itself.
            raise error.__cause__ or error

    def numbered_in_job(self, error: Error) -> Error:
        """An error of a session or a board of these ranks, which numbers them from 0, for the numbers of the job."""
        if self.members == tuple(range(len(self.members))) or getattr(error, _IS_NUMBERED, False):
            return error
        for name in ("culprit", "rank", "reporter"):
            number = getattr(error, name)
            if number is not None and number < len(self.members):
                setattr(error, name, self.members[number])
        if error.culprit is not None or error.reporter is not None:
            places = ", ".join(f"rank {at} is rank {rank} of the job" for at, rank in enumerate(self.members))
            error.args = (f"{error} ({places})",)
        setattr(error, _IS_NUMBERED, True)
        return error

    def all_gather(self, mine: bytes, what: str = "a program") -> list[bytes]:
        """The values of all ranks, in order. All ranks call this together, with the same ``what``.

        A rank that gives up removes its message, so the next exchange starts cleanly.
        """
        exchange = self._next_round()
        try:
            exchange.publish(_VALUE + what.encode() + b":" + mine)
            said = [await_value(exchange.key_of(rank), rank, self.timeout, exchange.lost_key) for rank in self.members]
        except BaseException as error:
            exchange.withdraw(error)
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
            raised_by_all(refusal)
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
            is_reported = getattr(error, _IS_REPORTED, False)
            if len(self.members) > 1 and dist.is_initialized() and not is_reported:
                # An outer context of this kind does not report it again, in an exchange that the others do not join.
                setattr(error, _IS_REPORTED, True)
                try:
                    if not is_store_stuck():
                        self._next_round().publish_failure(error)
                except Exception:
                    # The store is gone. The error itself says more.
                    pass
            raise

    def _next_round(self) -> Round:
        call = _call.get()
        if call is not None:
            return call.next_round(self.members)
        return StoreRound(f"symmc/{members_text(self.members)}", self.members, self.timeout)


class Round:
    """One exchange of all ranks on a topic, by its number."""

    def __init__(self, topic: str, number: int, timeout: float):
        self.topic, self.number, self.timeout = topic, number, timeout

    def key_of(self, rank: int) -> str:
        """The key in the store of the message of a rank."""
        return f"{self.topic}/{self.number}/{rank}"

    @property
    def lost_key(self) -> str | None:
        """The key of a notice of a rank that gave up because it misses another one."""
        return None

    def publish(self, what: bytes | str) -> None:
        key = self.key_of(dist.get_rank())
        use_store(lambda store: store.set(key, what), self.timeout, _check_wait)

    def publish_failure(self, error: BaseException) -> None:
        """Publishes a failure of this rank. Does not wait for the store: if the failure ends the call, a notice says so at once."""
        key, failure = self.key_of(dist.get_rank()), _encoded_failure(error)
        post_to_store(lambda store: store.set(key, failure))

    def finish(self) -> None:
        """All messages have been read."""

    def withdraw(self, error: BaseException) -> None:
        """This rank gives up, because of an error."""


class StoreRound(Round):
    """A round whose number follows the last one that any rank finished.

    A rank that finished a round has read all values, so all ranks were in it, and their next round is the same. A rank that gave up
    repeats its round, or joins the next one if others finished it. A rank that failed leaves its failure in the round for the others.
    The store holds the counts, and ends with the process groups.
    """

    def __init__(self, topic: str, members: Iterable[int], timeout: float):
        self.ended_key, failed_key = f"{topic}/ended/{dist.get_rank()}", f"{topic}/failed/{dist.get_rank()}"
        keys = [self.ended_key, failed_key, *(f"{topic}/ended/{rank}" for rank in members)]
        self.failed_key = failed_key
        counts = use_store(lambda store: [store.add(key, 0) for key in keys], timeout)
        self.before, self.failed, *_ = counts
        super().__init__(topic, 1 + max(counts), timeout)

    @property
    def lost_key(self) -> str:
        return f"{self.topic}/{self.number}/lost"

    def finish(self) -> None:
        use_store(lambda store: store.add(self.ended_key, self.number - self.before), self.timeout)

    def publish_failure(self, error: BaseException) -> None:
        self.publish(_encoded_failure(error))
        use_store(lambda store: store.add(self.failed_key, self.number - self.failed), self.timeout)

    def withdraw(self, error: BaseException) -> None:
        if isinstance(error, PeerError):
            notice = _Notice.of(error).encoded()
            try_store(lambda store: store.set(self.lost_key, notice), _GRACE)
            leave_time_to_read()
        # Not all stores can delete a key.
        key = self.key_of(dist.get_rank())
        try_store(lambda store: store.delete_key(key), _GRACE)


@dataclass(frozen=True)
class _Notice:
    """The failure of a rank, for ranks that wait for it in a round of the store."""

    at: float
    """When it was noticed, by the clock that the processes of a host share."""
    rank: int
    """The rank at fault."""
    text: str

    @staticmethod
    def of(error: BaseException) -> _Notice:
        return _Notice(time.monotonic(), *_failure_of(error, dist.get_rank()))

    def encoded(self) -> bytes:
        return json.dumps([self.at, self.rank, self.text]).encode()

    @staticmethod
    def decoded(notice: bytes) -> _Notice:
        return _Notice(*json.loads(notice.decode()))

    def error(self) -> PeerError:
        return _reported_by_other(self.rank, self.text)


class Notices(Protocol):
    """How ranks that fail in a call end the waits of the others, through shared memory."""

    def leave_notice(self, call: int, culprit: int, text: str) -> None: ...

    def find_notice(self, first: int, last: int) -> tuple[int, str] | None: ...


class StoreNotices:
    """Notices in the store, for ranks that have no board yet. All of them have the same topic."""

    def __init__(self, ranks: RankGroup, topic: str):
        self.ranks, self.topic = ranks, topic
        self._answers: queue.SimpleQueue | None = None
        """The result of a look into the store that has not been used."""

    def leave_notice(self, call: int, culprit: int, text: str) -> None:
        key, notice = self._key(call, dist.get_rank()), json.dumps([culprit, text]).encode()
        post_to_store(lambda store: store.set(key, notice))

    def find_notice(self, first: int, last: int) -> tuple[int, str] | None:
        """The notice of another rank in the call ``first``. Does not wait for a store that does not answer."""
        keys = [self._key(first, rank) for rank in self.ranks.members if rank != dist.get_rank()]
        if self._answers is None:
            self._answers = post_to_store(lambda store: _first_value(store, keys)[1])
        try:
            notice, error = self._answers.get(timeout=_LOOK)
        except queue.Empty:
            return None
        self._answers = None
        return tuple(json.loads(notice)) if error is None and notice else None

    def _key(self, call: int, rank: int) -> str:
        return f"symmc/failed/{self.topic}/{call}/{rank}"


class JointCall:
    """One call that ranks make together. A rank that fails in it leaves a notice, which the others read wherever they wait: in an
    exchange, while a session opens, and in a run. The keys of exchanges in the store belong to this call alone, so ranks need not agree
    on numbers, and nobody reads the failure of an earlier call.

    ``notices_from`` and ``notices_to`` are the numbers of the notices that end it: by default that of its round."""

    def __init__(
        self, board: str, round: int, ranks: RankGroup, notices: Notices, notices_from: int | None = None, notices_to: int | None = None
    ):  # fmt: skip
        self.topic, self.ranks, self.notices = f"symmc/call/{board}/{round}", ranks, notices
        self.notices_from = round if notices_from is None else notices_from
        self.notices_to = self.notices_from if notices_to is None else notices_to
        self.rounds: dict[tuple[int, ...], int] = {}
        self.is_reported = False
        self._token: Token | None = None

    def next_round(self, members: tuple[int, ...]) -> Round:
        number = self.rounds[members] = self.rounds.get(members, 0) + 1
        return Round(f"{self.topic}/{members_text(members)}", number, self.ranks.timeout)

    def __enter__(self) -> None:
        """In this context ranks exchange values in rounds of the call, and waits end with the notice of another rank."""
        self._token = _call.set(self)

    def __exit__(self, _kind, error: BaseException | None, _traceback) -> None:
        if self._token is not None:
            _call.reset(self._token)
        if isinstance(error, PeerError) and not getattr(error, _IS_REPORTED, False):
            # A session that another rank has ended does not know the text of its error.
            self.raise_failure()

    def report(self, error: BaseException) -> None:
        """Notifies the other ranks of an error of this rank."""
        if self.is_reported:
            return
        self.is_reported = True
        members, own = self.ranks.members, self.ranks.members[self.ranks.rank]
        culprit, text = _failure_of(error, own)
        self.notices.leave_notice(self.notices_from, members.index(culprit if culprit in members else own), text)

    def raise_failure(self) -> None:
        """Raises if another rank has failed in the call."""
        notice = self.notices.find_notice(self.notices_from, self.notices_to)
        if notice is not None:
            culprit, text = notice
            raise _reported_by_other(self.ranks.members[culprit], text)


_call: ContextVar[JointCall | None] = ContextVar("the call of several ranks that runs", default=None)


def _check_wait() -> None:
    """Raises if a wait of this thread is of no use, because another rank has failed in the call."""
    call = _call.get()
    if call is not None:
        call.raise_failure()


_symmc.set_wait_check(_check_wait)


def _failure_of(error: BaseException, own: int) -> tuple[int, str]:
    """The rank at fault for an error of this rank, and the reason as the other ranks get it."""
    if isinstance(error, PeerError):
        return (own if error.culprit is None else error.culprit), _as_utf8(str(error))
    return own, f"rank {own} failed: {_described(error)}"


def _reported_by_other(rank: int, text: str) -> PeerError:
    """The error of a failure that the other ranks know."""
    error = peer_error(rank, text)
    setattr(error, _IS_REPORTED, True)
    return error


def _described(error: BaseException) -> str:
    return _as_utf8(f"{type(error).__name__}: {str(error) or 'interrupted'}")


def _as_utf8(text: str) -> str:
    """A text that can be encoded: names of files that are not UTF-8 have surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def peer_error(rank: int, text: str) -> PeerError:
    error = PeerError(text)
    error.culprit = error.rank = rank
    setattr(error, _IS_NUMBERED, True)
    return error


def _encoded_failure(error: BaseException) -> bytes:
    return _FAILURE + _described(error).encode()


def failure_in(message: bytes, rank: int) -> PeerError | None:
    """The failure of another rank, if its message has one."""
    return _reported_by_other(rank, f"rank {rank} failed: {message[1:].decode()}") if message[:1] == _FAILURE else None


def _unwrap(said: bytes, rank: int, what: str) -> bytes:
    """The value in a message, if it is of this kind."""
    failure = failure_in(said, rank)
    if failure is not None:
        raise failure
    found, _, given = said[1:].partition(b":")
    if found != what.encode():
        text = f"rank {rank} exchanges {found.decode()}, this rank {what}: all ranks must do the same in the same order"
        raise DisagreementError(text)
    return given


def await_value(key: str, rank: int, timeout: float, lost_key: str | None = None) -> bytes:
    """The message of a rank, once it is in the store. Raises if the rank failed or does not come, or if another rank gave up."""
    started, pause = time.monotonic(), 0.0002
    keys = [key, *([lost_key] if lost_key else ())]
    while True:
        # A wait of the store blocks other threads.
        left = started + timeout - time.monotonic()
        at, value = use_store(lambda store: _first_value(store, keys), max(left, min(timeout, _GRACE)), _check_wait)
        if at == key:
            return value
        if at is not None:
            notice = _Notice.decoded(value)
            # A rank that gives up and comes again leaves the notice of its first attempt.
            if notice.at >= started:
                raise notice.error()
        _check_wait()
        if left < 0:
            text = f"rank {rank} did not join within {timeout:g} s: all ranks of a graph must call it together, with matching sizes"
            raise peer_error(rank, text)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


def _first_value(store, keys: list[str]) -> tuple[str | None, bytes]:
    """The first of these keys that the store has, and its value."""
    for key in keys:
        if store.check([key]):
            # A rank may have published a value and failed since.
            first = keys[0] if store.check(keys[:1]) else key
            value = bytes(store.get(first))
            # It is empty if its rank has deleted the key meanwhile.
            return (first, value) if value else (None, b"")
    return None, b""


def is_raised_by_all(error: BaseException) -> bool:
    return getattr(error, _IS_SHARED, False)


def raised_by_all(error: E) -> E:
    """An error that all ranks of a call raise in the same way, because they decided together. Nothing is reported to them."""
    for attribute in (_IS_SHARED, _IS_REPORTED):
        setattr(error, attribute, True)
    return error


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
