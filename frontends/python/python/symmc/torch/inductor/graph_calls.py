"""Calls of Inductor's graphs, and what ranks do when one of them fails in such a call.

Ranks run the forms of a graph without an agreement. If one of them fails in a graph, the others must not take its next call for the
present one. Two cases are distinguished for each set of ranks that a graph connects:

- The rank has taken part in all forms of these ranks in the graph. The others need nothing more of it, and their sessions continue.
- It has not. Then no other rank can have finished the graph, since each form needs all of its ranks. The rank ends the sessions of all
  forms of these ranks, and leaves a notice, so each of the others raises in the same call.

All ranks count the calls that were ended: their number is the *epoch* of these ranks. In the first call of an epoch they agree. A rank
with a smaller number has not noticed a failure yet. It raises, and joins the next round with its next call.

The assumption fails where a rank cannot know how far the others came: a run on a GPU has not ended when its call returns, and a rank may
be killed or stopped between two messages. So ranks also compare how many forms they have run. If the numbers differ, all of them raise.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Protocol

import torch.distributed as dist

import symmc
from symmc.torch.ranks import process_groups
from symmc.torch.ranks.board import Board
from symmc.torch.ranks.exchange import JointCall, Notices, RankGroup, StoreNotices, WorldCache, peer_error, raised_by_all

_world = dist.distributed_c10d._world if dist.is_available() else None

_LAST_EPOCH = (1 << 63) - 1

_WATCH_INTERVAL = 0.2
"""The interval in seconds at which calls that an error has ended between two forms are looked for."""

Groups = tuple[str, ...]
"""The names of the process groups of a form."""


class Form(Protocol):
    """A form, which has a session for its ranks."""

    ranks: RankGroup
    is_left: bool
    """Whether PyTorch runs it."""

    def state(self, sizes: tuple[int, ...]) -> int:
        """A digest of its plan, equal on ranks that would do the same in a call with these sizes."""

    def forget_plan(self) -> None:
        """Drops its plan. All ranks call this together."""

    def abort(self, error: BaseException) -> None:
        """Ends its session on all ranks, because of an error of this rank."""


class CompiledGraph:
    """A graph of Inductor."""

    def __init__(self, forms: dict[Groups, int]):
        self.forms = forms
        """The number of its forms for each combination of process groups."""
        self.total = sum(forms.values())
        self.sites: dict[int, FormSite] = {}
        """The places of forms, by number, as far as this process has called them."""
        self.world = None
        """The default process group in the last call."""
        self.finished = 0
        """The number of calls with these process groups that have called all forms."""

    def parts(self) -> dict[CallHistory, int]:
        """The number of its forms for each history."""
        return _count_by_history(self.forms.items())


class FormSite:
    """The place of a form in a graph."""

    def __init__(self, graph: CompiledGraph, number: int, groups: Groups):
        self.graph, self.number, self.groups = graph, number, groups
        self.form: Form | None = None
        """The form that ran there last."""


def describe_sites(graph: str, forms: list[Groups]) -> list[str]:
    """The places of the forms of a graph as text. ``graph`` identifies it."""
    counts: dict[Groups, int] = {}
    for groups in forms:
        counts[groups] = counts.get(groups, 0) + 1
    listed = [[list(groups), count] for groups, count in counts.items()]
    return [json.dumps([graph, number, groups, listed], separators=(",", ":")) for number, groups in enumerate(forms)]


_graphs: dict[str, CompiledGraph] = {}
"""The graphs that have been called."""


@functools.cache
def site_of(text: str) -> FormSite:
    name, number, groups, counts = json.loads(text)
    graph = _graphs.get(name)
    if graph is None:
        graph = _graphs[name] = CompiledGraph({tuple(of): count for of, count in counts})
    site = graph.sites[number] = FormSite(graph, number, tuple(groups))
    return site


def forget_forms() -> None:
    """Forgets the forms of earlier process groups."""
    for graph in list(_graphs.values()):
        for site in graph.sites.values():
            site.form = None


class GraphCall:
    """A call of a graph on one thread, from its first to its last form."""

    def __init__(self, graph: CompiledGraph, code: CodeType | None):
        self.graph, self.world = graph, _world.default_pg
        if graph.world is not self.world:
            graph.world, graph.finished = self.world, 0
        self.finished = graph.finished + 1
        """The number of finished calls of the graph once this one has finished."""
        self.code = code
        """The code that Inductor has generated for the graph. None if something else runs it."""
        self.sites: dict[int, FormSite] = {}
        """The places of the forms in which this rank has taken part."""
        self.has_failed = False
        """Whether an error has ended it. Other ranks may not have been notified yet."""
        self.ended_epochs: dict[CallHistory, int] = {}
        """The epochs that ended with it. An error may interrupt that, which is then done again."""

    def taken_parts(self) -> dict[CallHistory, int]:
        return _count_by_history((site.groups, 1) for site in self.sites.values())

    def may_leave_others_in_pytorch(self, history: CallHistory) -> bool:
        """Whether other ranks may have begun a collective by PyTorch in which this rank will not take part."""
        # The sites are in the order of the calls. Other ranks cannot come further than to the first one that misses this rank.
        for number, site in self.graph.sites.items():
            if number not in self.sites and history_of(site.groups) is history:
                return site.form is not None and site.form in history.forms and site.form.is_left
        # The others may call a form for the first time in this graph that they know from another one.
        return any(form.is_left for form in history.forms)


def _end_calls(calls: list[GraphCall], error: BaseException, shared_by: CallHistory | None = None) -> None:
    """Ends calls of a thread, one within the other, on all ranks, as far as these need this one. The ranks of the history ``shared_by``
    raise the error as well."""
    # If the process groups have been destroyed, so have the sessions.
    calls = [call for call in calls if call.world is _world.default_pg]
    missed: dict[CallHistory, GraphCall] = {}
    for call in calls:
        call.has_failed = True
        taken = call.taken_parts()
        for history, count in call.graph.parts().items():
            if taken.get(history, 0) < count:
                missed.setdefault(history, call)
    for call in calls:
        for history, count in call.taken_parts().items():
            if history not in missed:
                history.parts_of_failed_calls += count
    for history, call in missed.items():
        epoch = call.ended_epochs.setdefault(history, history.epoch)
        if history is shared_by:
            history.epoch = epoch + 1
        elif history.epoch == epoch:
            history.notify(error, call.may_leave_others_in_pytorch(history))
    for history in missed:
        if history is not shared_by:
            history.end_sessions(error)


def _count_by_history(counts: Iterable[tuple[Groups, int]]) -> dict[CallHistory, int]:
    """The numbers of forms, by their process groups, for each history."""
    found: dict[CallHistory, int] = {}
    for groups, count in counts:
        with contextlib.suppress(symmc.InputError):
            # A group that was destroyed has no calls.
            history = history_of(groups)
            found[history] = found.get(history, 0) + count
    return found


_APART = "; the ranks were in different calls: continue with the same call on all of them"
"""The end of errors of ranks that were in different calls when one of them failed."""

_NO_PARTS = -1
"""In a notice: the ranks were in different calls."""


class _PartNotices:
    """Notices on a board, with the number of forms that their rank had run before the call that failed."""

    def __init__(self, board: Board, parts: int):
        self.board, self.parts = board, parts

    def leave_notice(self, call: int, culprit: int, text: str) -> None:
        self.board.rounds.leave_notice(call, culprit, f"{self.parts}|{text}")

    def find_notice(self, first: int, last: int) -> tuple[int, str] | None:
        notice = self.board.rounds.find_notice(first, last)
        return None if notice is None else (notice[0], notice[1].partition("|")[2])

    def find_parts(self, epoch: int) -> set[int]:
        """The number of a rank that failed in this epoch, if there is one."""
        notice = self.board.rounds.find_notice(epoch, epoch)
        return set() if notice is None else {int(notice[1].partition("|")[0])}


class CallHistory:
    """The calls of graphs that connect this rank with others by the same process group, since the process groups exist. Combinations of
    groups with the same ranks have one history."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name of the process group. Empty for combinations, in which ranks are in different groups."""
        self.epoch = 1
        """One more than the number of calls that an error has ended."""
        self.agreed_epoch = 1
        """The last epoch in which all ranks have agreed on a call."""
        self.parts_of_failed_calls = 0
        """The number of forms in calls that failed after this rank had taken part in all forms of these ranks."""
        self.parts_before = 0
        """The number of forms until ranks found that they were in different calls."""
        self.culprit: int | None = None
        """The rank whose failure leaves a collective of PyTorch unfinished. No call works any more."""
        self.forms: weakref.WeakSet[Form] = weakref.WeakSet()
        self.boards: dict[float, Board] = {}
        """Where ranks agree, by the timeout of their waits; opened when it is needed, and again after an error has ended it."""
        self.lock = threading.Lock()
        """Held in calls on which ranks agree."""

    @property
    def needs_agreement(self) -> bool:
        return self.epoch != self.agreed_epoch

    def agree(self, form: Form, ranks: RankGroup, sizes: tuple[int, ...]) -> JointCall:
        """Waits until all ranks call a form. Returns the exchanges of this call. Callers hold the lock.

        Raises if another rank has failed in this call, or in an earlier one that this rank has not noticed.
        """
        board = self._open_board(ranks)
        while True:
            words = (self.epoch, self._parts(), form.state(sizes), 0 if self.culprit is None else 1 + self.culprit)
            round = board.next_round(words)
            call = self._joint_call(board, _PartNotices(board, words[1]), round[0])
            with call:
                published = board.gather(round)
            epochs = [epoch for epoch, *_ in published]
            if self.epoch < max(epochs):
                rank = ranks.members[epochs.index(max(epochs))]
                raise peer_error(rank, f"rank {rank} failed in this call, which ends it on all ranks")
            if len(set(epochs)) == 1:
                break
        self._expect_finished([culprit - 1 for *_, culprit in published if culprit])
        if self.needs_agreement:
            self._expect_same_parts(ranks, [parts for _, parts, *_ in published])
            self.agreed_epoch = self.epoch
        if len({state for _, _, state, _ in published}) > 1:
            form.forget_plan()
        return call

    def notify(self, error: BaseException, is_left_in_pytorch: bool) -> None:
        """Ends the call of the other ranks because of an error of this rank, and with it the epoch."""
        parts, others = self._finished_parts(), set()
        opening = {form.ranks for form in self.forms if form.ranks.timeout not in self.boards}
        for board in list(self.boards.values()):
            with contextlib.suppress(Exception):
                others |= _PartNotices(board, parts).find_parts(self.epoch)
        for timeout, board in list(self.boards.items()):
            with contextlib.suppress(Exception):
                self._joint_call(board, _PartNotices(board, _NO_PARTS if _NO_PARTS in others else parts)).report(error)
                if board.rounds.has_ended:
                    del self.boards[timeout]
        for ranks in opening:
            with contextlib.suppress(Exception):
                self._opening(ranks).report(error)
        self.epoch += 1
        if is_left_in_pytorch and self.culprit is None:
            self.culprit = dist.get_rank()
        if others - {parts} and self.culprit is None:
            self._restart_parts(error, _NO_PARTS in others)

    def _restart_parts(self, error: BaseException, is_known: bool) -> None:
        """This rank was in another call than a rank that failed. Unless the others know it, the calls that they make now raise as well."""
        self.parts_before += self._finished_parts()
        error.args = (f"{str(error).removesuffix(_APART)}{_APART}",)
        if not is_known:
            with contextlib.suppress(Exception):
                for board in self.boards.values():
                    self._joint_call(board, _PartNotices(board, _NO_PARTS)).report(error)
            self.epoch += 1

    def end_sessions(self, error: BaseException) -> None:
        """Ends all sessions that the other ranks may use."""
        for form in list(self.forms):
            with contextlib.suppress(Exception):
                form.abort(error)

    def _open_board(self, ranks: RankGroup) -> Board:
        if ranks.timeout not in self.boards:
            with self._opening(ranks):
                self.boards[ranks.timeout] = Board(ranks, remedy="")
        return self.boards[ranks.timeout]

    def _opening(self, ranks: RankGroup) -> JointCall:
        """The exchanges in which these ranks open a board in this epoch."""
        topic = f"{ranks.name}/{self.name}"
        return JointCall(f"{topic}/{ranks.timeout:g}", self.epoch, ranks, StoreNotices(ranks, topic))

    def _joint_call(self, board: Board, notices: Notices, round: int = 0) -> JointCall:
        # A rank that failed in a later epoch failed in this one as well.
        return JointCall(board.name, round, board.ranks, notices, self.epoch, _LAST_EPOCH)

    def _finished_parts(self) -> int:
        """The number of forms of these ranks in which this rank has taken part, without its present call."""
        graphs = [graph for graph in list(_graphs.values()) if graph.finished and graph.world is _world.default_pg]
        finished = sum(graph.finished * graph.parts().get(self, 0) for graph in graphs)
        return finished + self.parts_of_failed_calls - self.parts_before

    def _parts(self) -> int:
        """The number of forms of these ranks in which this rank has taken part."""
        present = sum(call.taken_parts().get(self, 0) for call in _running.get(threading.get_ident(), ()))
        return self._finished_parts() + present

    def _expect_finished(self, culprits: list[int]) -> None:
        """Raises on all ranks if one of them will not take part in a collective that PyTorch runs on others."""
        if culprits:
            self.culprit = culprits[0]
            text = "failed in a call in which PyTorch runs a collective of these ranks, which does not end"
            remedy = "destroy the process groups on all ranks, and initialise them again"
            raise raised_by_all(peer_error(self.culprit, f"rank {self.culprit} {text}: {remedy}"))

    def _expect_same_parts(self, ranks: RankGroup, parts: list[int]) -> None:
        """Raises on all ranks if they were in different calls when one of them failed."""
        if len(set(parts)) == 1:
            return
        self.agreed_epoch = self.epoch
        self.parts_before += self._finished_parts()
        (least, first), (most, last) = min(zip(parts, ranks.members)), max(zip(parts, ranks.members))
        text = f"when a call failed, rank {first} had run {least} collectives and rank {last} had run {most}"
        error = symmc.DisagreementError(f"{text}: expected the same number, continue with the same call on all ranks")
        # Their sessions have counted different numbers of runs.
        self.end_sessions(error)
        raise raised_by_all(error)


_histories = WorldCache({})
"""The histories by the names of process groups, and those of combinations by the ranks of each of the groups."""


def history_of(groups: Groups) -> CallHistory:
    """The history of calls with these process groups."""
    histories = _histories()
    history = histories.get(groups)
    if history is None:
        members = tuple(sorted({process_groups.members_of(name) for name in groups}))
        # Threads may call graphs of several groups with the same ranks.
        key, name = (members, "") if len(groups) > 1 else (groups, groups[0])
        history = histories[groups] = histories.setdefault(key, CallHistory(name))
    return history


_running: dict[int, list[GraphCall]] = {}
"""The calls in progress by the numbers of their threads, the innermost last."""

_lock = threading.Lock()
"""Held while calls begin and while they are ended because of an error."""


def enter(site: FormSite) -> GraphCall:
    """The call in which this thread calls a form."""
    calls = _running.get(threading.get_ident())
    if calls:
        call = calls[-1]
        if call.graph is site.graph and site.number not in call.sites and not call.has_failed:
            return call
    return _begin(site.graph)


def take_part(call: GraphCall, site: FormSite) -> None:
    """The other ranks need nothing more of this one for a form. An error may interrupt this function, which is then called again."""
    call.sites[site.number] = site
    if len(call.sites) == call.graph.total:
        call.graph.finished = call.finished
        _forget(call)


def fail(error: BaseException, graph: CompiledGraph | None = None, shared_by: CallHistory | None = None) -> None:
    """Ends the calls of this thread because of an error, which the ranks of ``shared_by`` raise as well. ``graph`` is the graph of the
    form that raises, whose call may not have begun."""
    with _lock:
        calls = _running.setdefault(threading.get_ident(), [])
        if graph is not None and all(call.graph is not graph for call in calls):
            calls.append(GraphCall(graph, None))
        # The error itself says more than one of its report.
        with contextlib.suppress(Exception):
            _end_calls(calls, error, shared_by)
        # After an interrupt they are found as lost calls.
        del _running[threading.get_ident()]


def _begin(graph: CompiledGraph) -> GraphCall:
    frame = _generated_frame()
    with _lock:
        if _running:
            _end_lost_calls(graph, frame)
        call = GraphCall(graph, None if frame is None else frame.f_code)
        _running.setdefault(threading.get_ident(), []).append(call)
    if frame is not None and graph.total > 1:
        _start_watching()
    return call


def _forget(call: GraphCall) -> None:
    for thread, calls in list(_running.items()):
        if call in calls:
            # Its thread may read the old list.
            kept = [other for other in calls if other is not call]
            if kept:
                _running[thread] = kept
            else:
                del _running[thread]


_GENERATED_MODULES = "torch._inductor.runtime.compile_tasks."
"""The prefix of the modules that Inductor generates."""


_GENERATED_FUNCTION = "call"
"""The function that runs a whole graph. It may call others that run parts of it."""


def _generated_frame() -> FrameType | None:
    """The frame of Inductor's code that runs the graph; None if something else runs it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_GENERATED_MODULES):
        frame = frame.f_back
    whole = frame
    while frame is not None and whole is not None and whole.f_code.co_name != _GENERATED_FUNCTION:
        whole = whole.f_back
        if whole is not None and whole.f_globals is not frame.f_globals:
            return frame
    return whole or frame


def _end_lost_calls(graph: CompiledGraph | None = None, frame: FrameType | None = None) -> None:
    """Ends calls that an error has ended between two forms, where no form notices. Callers hold the lock.

    The code of such a call runs no more on its thread. If this thread begins a call of ``graph``, whose code runs in ``frame``, this is
    not the code of an earlier call of the same graph.
    """
    frames = sys._current_frames()
    for thread, calls in list(_running.items()):
        is_own = graph is not None and thread == threading.get_ident()
        for call in list(calls):
            is_again = is_own and call.graph is graph
            if call.code is None:
                is_lost = is_again
            else:
                is_lost = not _runs(call.code, frame.f_back if is_again and frame is not None else frames.get(thread))
            # The call may have ended since the frames were listed.
            if is_lost and call in calls:
                with contextlib.suppress(Exception):
                    _end_calls([call], RuntimeError("an error ended a graph between two of its collectives"))
                _forget(call)


def _runs(code: CodeType, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


_watcher: threading.Thread | None = None


def _start_watching() -> None:
    global _watcher
    # A process that was forked has no other thread.
    if _watcher is None or not _watcher.is_alive():
        _watcher = threading.Thread(target=_watch, name="symmc calls", daemon=True)
        _watcher.start()


def _watch() -> None:
    while True:
        time.sleep(_WATCH_INTERVAL)
        if _running:
            with _lock:
                _end_lost_calls()
