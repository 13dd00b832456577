"""Arenas that the programs of one function share.

The forward and the backward graph of a function, and the stages of a graph that is cut, never run at the same time. Their programs take
turns in one session, whose arenas are as large as the largest of them needs. Ranks open programs together and in the same order, so the
session that a program joins depends only on what all ranks know: the ranks, the device, and the programs that were opened before.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Protocol

import symmc
from symmc.torch.ranks.exchange import RankGroup

_all: weakref.WeakSet[Arenas] = weakref.WeakSet()


class SessionOwner(Protocol):
    """Runs a program of a session."""

    def forget_session(self) -> None:
        """Its session has ended."""


@dataclass
class _OpenProgram:
    """A program of a session, and its owner while that exists."""

    session: symmc.Session
    gpu: int | None
    owner: weakref.ref[SessionOwner]


class Arenas:
    """The sessions of one function. They are kept until they are closed or abandoned, on all ranks in the same way."""

    def __init__(self, are_shared: bool = True) -> None:
        self.are_shared = are_shared
        self._sessions: dict[tuple, list[_OpenProgram]] = {}
        """For each set of ranks and each device the open programs of one session, and programs with a separate session."""
        self.aborted: set[tuple[int, ...]] = set()
        """The ranks whose sessions an error of this rank has ended. Other ranks may not have noticed it yet."""
        self._apart = 0
        """The number of programs that did not fit into the session of others."""
        _all.add(self)

    def open(self, owner: SessionOwner, plan: symmc.Plan, ranks: RankGroup, gpu: int | None, timeout: float) -> symmc.Session:
        """A session of a plan: the session of other programs, if all ranks accept the plan there."""
        programs = self._sessions.setdefault((ranks.members, gpu), [])
        session: symmc.Session | None = None
        if programs and self.are_shared:
            try:
                session = programs[0].session.open_program(plan)
            except (symmc.IndexRangeError, symmc.DataError):
                # An earlier run was given bad data, which ended the session.
                self.abandon(programs[0].session)
                raise
            except (symmc.InputError, symmc.UnsupportedError):
                # All ranks reject it, for example because a graph of the caller holds addresses of the arenas.
                self._apart += 1
                programs = self._sessions.setdefault((ranks.members, gpu, self._apart), [])
        if session is None:
            extendable = self.are_shared
            session = ranks.open(lambda group: symmc.Session(plan, group, gpu=gpu, timeout=timeout, extendable=extendable))
        programs.append(_OpenProgram(session, gpu, weakref.ref(owner)))
        return session

    def abort(self, members: tuple[int, ...], error: BaseException) -> None:
        """Ends the sessions among these ranks on all of them, because of an error of this rank. Peers that are in a run raise at once."""
        for programs in self._programs_among(members):
            session = programs[0].session
            # Runs of earlier calls on a GPU may be in progress: their results have been returned.
            if programs[0].gpu is not None:
                _wait_for_runs(session)
            session.__exit__(type(error), error, error.__traceback__)
            self.abandon(session)
        self.aborted.add(members)

    def abandon_aborted(self, members: tuple[int, ...]) -> None:
        """Drops the sessions among these ranks, one of which has ended them. All of them call this together."""
        for programs in self._programs_among(members):
            self.abandon(programs[0].session)
        self.aborted.discard(members)

    def _programs_among(self, members: tuple[int, ...]) -> list[list[_OpenProgram]]:
        return [programs for key, programs in self._sessions.items() if programs and set(key[0]) <= set(members)]

    def close(self, session: symmc.Session) -> None:
        """Ends a program, and its session with the last one."""
        self._forget(session)
        session.close()

    def abandon(self, session: symmc.Session) -> None:
        """Drops a session that an error has ended, for all its programs."""
        for program in self._forget(session, all_programs=True):
            owner = program.owner()
            if owner is not None:
                owner.forget_session()

    def memory(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for programs in self._sessions.values():
            for part, nbytes in programs[0].session.memory().items() if programs else ():
                total[part] = total.get(part, 0) + nbytes
        return total

    def _forget(self, session: symmc.Session, all_programs: bool = False) -> list[_OpenProgram]:
        """Takes a program out, or all programs of its session."""
        for key, programs in list(self._sessions.items()):
            if any(program.session is session for program in programs):
                kept = [] if all_programs else [program for program in programs if program.session is not session]
                self._sessions[key] = kept
                return programs
        return []


def _wait_for_runs(session: symmc.Session) -> None:
    try:
        session.wait()
    except symmc.Error:
        # The session has ended.
        pass


def memory() -> dict[str, int]:
    """The bytes that sessions of compiled functions use on their devices now, by purpose: arenas, flags, scratch, and ``held`` for
    inputs and outputs that are not tensors of PyTorch."""
    total: dict[str, int] = {}
    for arenas in list(_all):
        for part, nbytes in arenas.memory().items():
            total[part] = total.get(part, 0) + nbytes
    return total
