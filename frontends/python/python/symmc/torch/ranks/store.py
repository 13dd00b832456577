"""The store of ``torch.distributed``, with a limit on the time of each operation.

An operation of PyTorch's TCPStore has no timeout: it blocks as long as the process that hosts the store is stopped, and raises an error of
the network if that process has ended. A thread of this process therefore performs the operations, one after another. Its callers wait for a
result up to a limit, which Ctrl-C can interrupt.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from symmc import Error, PeerError, RunError

T = TypeVar("T")

_READING = 0.3
"""The time in which ranks that poll read a notice, in seconds."""

SLICE = 0.25
"""The longest part of a wait, in seconds. Waits count their parts: time in which this process was stopped is not a fault of another."""


class _StoreThread:
    """Performs operations in their order."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.requests: queue.SimpleQueue = queue.SimpleQueue()
        self.is_stuck = False
        """Whether the wait for an operation was given up. Operations after it wait for it."""
        # At the end of the process nothing waits for an operation that has not ended.
        threading.Thread(target=self._serve, name="symmc store", daemon=True).start()

    def _serve(self) -> None:
        while True:
            work, store, answers = self.requests.get()
            try:
                answers.put((work(store), None))
            except BaseException as error:
                answers.put((None, error))
            self.is_stuck = False
            # The store ends with the process groups.
            work = store = answers = None

    def post(self, work: Callable[[Any], Any], store) -> queue.SimpleQueue:
        """Queues operations. Returns the queue of their result."""
        answers: queue.SimpleQueue = queue.SimpleQueue()
        self.requests.put((work, store, answers))
        return answers

    def perform(self, work: Callable[[Any], T], limit: float, check_wait: Callable[[], None]) -> T:
        store = dist.distributed_c10d._get_default_store()
        answers, left = self.post(work, store), limit
        while True:
            try:
                result, error = answers.get(timeout=min(left, SLICE))
                break
            except queue.Empty:
                left -= SLICE
                try:
                    check_wait()
                    if left <= 0:
                        raise _store_error(store, f"did not answer within {limit:g} s") from None
                except BaseException:
                    self.is_stuck = True
                    raise
        if error is None:
            return result
        if isinstance(error, RuntimeError):
            reason = (str(error).splitlines() or [""])[0]
            raise _store_error(store, f"failed: {type(error).__name__}: {reason}") from error
        raise error


_thread: _StoreThread | None = None


def use_store(work: Callable[[Any], T], limit: float, check_wait: Callable[[], None] = lambda: None) -> T:
    """The result of operations on the store. If they do not end within ``limit`` seconds, or the store is gone, this raises a
    ``PeerError`` that names the rank that hosts the store. ``check_wait`` is called every 250 ms; an exception that it raises ends the
    wait."""
    return _running_thread().perform(work, limit, check_wait)


def post_to_store(work: Callable[[Any], Any]) -> queue.SimpleQueue:
    """Performs operations after those that were begun before, without waiting for them. Returns the queue of their result and error."""
    return _running_thread().post(work, dist.distributed_c10d._get_default_store())


def _running_thread() -> _StoreThread:
    global _thread
    # A forked process has no copy of the thread.
    if _thread is None or _thread.process != os.getpid():
        _thread = _StoreThread()
    return _thread


def is_store_stuck() -> bool:
    """Whether the store did not answer, and still does not."""
    return _thread is not None and _thread.process == os.getpid() and _thread.is_stuck


def try_store(work: Callable[[Any], Any], limit: float) -> None:
    """Performs operations that may fail, because the store may be gone. Hardly waits for a store that did not answer before."""
    try:
        use_store(work, SLICE if is_store_stuck() else limit)
    except Exception:
        pass


def leave_time_to_read() -> None:
    """Waits a moment before an error of this rank, if its process hosts the store: the others read there who is at fault."""
    try:
        if _host(dist.distributed_c10d._get_default_store()) == dist.get_rank():
            time.sleep(_READING)
    except ValueError:
        # The process groups have been destroyed.
        pass


def _host(store) -> int | None:
    """The rank whose process hosts a store, if there is one."""
    # torchrun hosts the store in the process of its agent. Otherwise init_process_group has rank 0 host it.
    is_hosted_by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    return None if is_hosted_by_agent or not isinstance(_base(store), dist.TCPStore) else 0


def _base(store):
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _store_error(store, how: str) -> Error:
    """The error of a store that failed in this way. Its culprit is the rank whose process hosts the store, if there is one."""
    base, host = _base(store), _host(store)
    if not isinstance(base, dist.TCPStore):
        return RunError(f"the store of torch.distributed {how}")
    place = f"the store of torch.distributed at {base.host}:{base.port}"
    if host is None or host == dist.get_rank():
        return PeerError(f"{place} {how}")
    error = PeerError(f"rank {host} stopped or ended: {place}, which it hosts, {how}")
    error.culprit = error.rank = host
    return error
