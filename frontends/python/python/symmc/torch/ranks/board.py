"""Exchange of a few numbers between ranks in every call, through shared memory."""

from __future__ import annotations

import threading
import weakref

from symmc import _symmc
from symmc.torch.ranks.exchange import RankGroup, WorldCache

_WORDS = 3
"""The number of integers that a rank publishes in a round."""


Round = tuple[int, tuple[int, int, int]]
"""The number of a round, and the numbers that this rank publishes in it."""


class Board:
    """Rounds in which every rank publishes some numbers to all others. All ranks call the same rounds in the same order.

    Errors name a rank that died or does not join, as in any run.
    """

    def __init__(self, ranks: RankGroup):
        self.ranks = ranks
        self.rounds = _symmc.Board(ranks.group(), _WORDS, ranks.timeout)
        self.functions = 0
        """The number of functions of this rank that use it."""
        self.lock = threading.Lock()
        self.matching_collectives: set[tuple[int, ...]] = set()
        """The collectives of all ranks, by their digests, that match each other. The set is equal on all ranks."""
        self.open_round: Round | None = None
        """The round that this rank has begun, until it has the numbers of all ranks."""

    def register_function(self) -> int:
        self.functions += 1
        return self.functions

    def next_round(self, words: tuple[int, int, int]) -> Round:
        """The next round, in which this rank will publish these numbers. Ends the last round first, if it was interrupted."""
        if self.open_round is not None:
            self.gather(self.open_round)
        return self.rounds.round + 1, words

    def gather(self, of: Round) -> list[tuple[int, int, int]]:
        """The numbers of all ranks in a round, in their order. After an interrupt the same call continues the round, or returns its
        numbers again."""
        self.open_round = of
        found = self.rounds.exchange(*of)
        self.open_round = None
        return found


_boards = WorldCache(weakref.WeakValueDictionary())
"""The boards that compiled functions hold, by their ranks and the timeout of their waits."""


def open_board(ranks: RankGroup) -> Board:
    """The board of these ranks. If there is no board yet, all of them open one together."""
    boards, key = _boards(), (ranks.members, ranks.timeout)
    board = boards.get(key)
    if board is None:
        board = boards[key] = Board(ranks)
    return board
