"""Exchange of a few numbers between ranks in every call, through shared memory."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable
from typing import get_args

from symmc import PeerError, _symmc
from symmc.torch.ranks.exchange import JointCall, RankGroup, WorldCache

REMEDY = "; calls of these ranks do not run any more: compile their functions again on all ranks (torch.compiler.reset())"

Words = tuple[int, int, int, int]
"""The integers that a rank publishes in a round."""


BoardRound = tuple[int, Words]
"""The number of a round, and the integers that this rank publishes in it."""


class Board:
    """Rounds in which every rank publishes some numbers to all others. All ranks call the same rounds in the same order.

    Errors name a rank that died or does not join, as in any run. They end the board, and say what users can do then: ``remedy``.
    """

    def __init__(self, ranks: RankGroup, remedy: str = REMEDY):
        self.ranks, self.remedy = ranks, remedy
        exchanged: list[bytes] = []
        self.rounds = ranks.open(lambda group: _symmc.Board(group, len(get_args(Words)), ranks.timeout), exchanged)
        self.name = hashlib.sha256(b"".join(exchanged)).hexdigest()[:16]
        """The same name on all ranks, which no other board has."""
        self.functions = 0
        """The number of functions of this rank that use it."""
        self.lock = threading.Lock()
        """Held in calls. A call that continues in the background does not hold it."""
        self.background: threading.Thread | None = None
        self.matching_collectives: set[tuple[int, ...]] = set()
        """The collectives of all ranks, by their digests, that match each other. The set is equal on all ranks."""
        self.open_round: BoardRound | None = None
        """The round that this rank has begun, until it has the numbers of all ranks."""

    def register_function(self) -> int:
        self.functions += 1
        return self.functions

    def continue_in_background(self, work: Callable[[], None]) -> None:
        """Continues a call of this rank in another thread."""
        self.background = threading.Thread(target=work, name="symmc call", daemon=True)
        self.background.start()

    def await_background(self) -> None:
        """Waits until a call in the background has ended. Callers hold the lock."""
        if self.background is not None:
            # A thread that could not be started has no number.
            if self.background.ident is not None:
                self.background.join()
            self.background = None

    def next_round(self, words: Words) -> BoardRound:
        """The next round, in which this rank will publish these numbers. Ends the last round first, if it was interrupted."""
        if self.open_round is not None:
            self.gather(self.open_round)
        return self.rounds.round + 1, words

    def gather(self, of: BoardRound) -> list[Words]:
        """The numbers of all ranks in a round, in their order. After an interrupt the same call continues the round, or returns its
        numbers again."""
        self.open_round = of
        try:
            found = self.rounds.exchange(*of)
        except PeerError as error:
            if self.rounds.has_ended:
                error.args = (f"{error}{self.remedy}",)
            raise self.ranks.numbered_in_job(error)
        self.open_round = None
        return found

    def joint_call(self, of: BoardRound) -> JointCall:
        """The exchanges of the call that all ranks agreed on in a round."""
        return JointCall(self.name, of[0], self.ranks, self.rounds)


_boards = WorldCache(weakref.WeakValueDictionary())
"""The boards that compiled functions hold, by their ranks and the timeout of their waits."""


def open_board(ranks: RankGroup) -> Board:
    """The board of these ranks. If there is no board yet, all of them open one together."""
    boards, key = _boards(), (ranks.members, ranks.timeout)
    board = boards.get(key)
    if board is None:
        board = boards[key] = Board(ranks)
    return board
