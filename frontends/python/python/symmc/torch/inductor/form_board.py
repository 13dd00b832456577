"""Agreement of ranks on calls of planned forms.

Ranks agree only on calls that need another plan or session. They count all calls: a rank whose call has failed, and another one that has
finished this call or fails in a later one, would otherwise take different calls for the same.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from symmc.torch.ranks.board import Board, find_board
from symmc.torch.ranks.exchange import JointCall, RankGroup, WorldCache, peer_error, raised_by_all


class Form(Protocol):
    """A form with a session."""

    def abort(self, error: BaseException) -> None:
        """Ends its session on all ranks, because of an error of this rank."""

    def abandon(self) -> None:
        """Drops its session, which a rank has ended. All ranks call this together."""


class FormBoard(Board):
    """The calls that ranks make of their forms, in the same order on all ranks."""

    # The next call opens another board.
    remedy = ""

    def __init__(self, ranks: RankGroup):
        super().__init__(ranks)
        self.forms: weakref.WeakSet[Form] = weakref.WeakSet()
        self.calls = 0
        """The number of calls that this rank has begun."""
        self.failures = 0
        """The number of times that all sessions were ended. It is smaller on ranks that have not noticed the last time."""

    def count_call(self) -> int:
        self.calls += 1
        return self.calls

    def abort(self, error: BaseException) -> None:
        """Ends the sessions of all forms on all ranks, because of an error of this rank: a peer may be in a run of any of them."""
        self.failures += 1
        for form in list(self.forms):
            form.abort(error)

    def abandon_ended(self, failures: int) -> None:
        """Drops the sessions of all forms. All ranks call this together, if some of them have ended the sessions."""
        self.failures = failures
        for form in list(self.forms):
            form.abandon()


_boards = WorldCache({})
"""The boards of forms."""


def open_form_board(ranks: RankGroup) -> FormBoard:
    return find_board(_boards, ranks, FormBoard)


class FormCall:
    """A call on which ranks agree, by its number among the calls of a board."""

    def __init__(self, board: FormBoard, number: int):
        self.board, self.number = board, number
        self.exchange: JointCall | None = None
        """The exchanges of the last round that this rank has begun."""

    def agree(self) -> JointCall:
        """Waits until all ranks make the call. Returns its exchanges.

        Raises a ``PeerError`` if a rank makes a later call already: an error has ended this call there.
        """
        board = self.board
        while True:
            round = board.next_round((self.number, board.failures, 0, 0))
            self.exchange = board.joint_call(round)
            published = board.gather(round)
            numbers = [number for number, *_ in published]
            if self.number < max(numbers):
                rank = board.ranks.members[numbers.index(max(numbers))]
                text = f"an error ended this call on rank {rank}, which makes call {max(numbers)} now; this is call {self.number}"
                raise raised_by_all(peer_error(rank, text))
            # Ranks that make an earlier call raise, and come to the next round with their next call.
            if self.number == min(numbers):
                break
        failures = [failures for _, failures, *_ in published]
        if min(failures) < max(failures):
            board.abandon_ended(max(failures))
        # A rank that was interrupted in the round has published its numbers, and takes no part.
        self.exchange.raise_failure()
        return self.exchange

    def report(self, error: BaseException) -> None:
        """Notifies the other ranks of an error of this rank."""
        if self.exchange is not None:
            self.exchange.report(error)
