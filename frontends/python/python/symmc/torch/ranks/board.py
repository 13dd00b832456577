"""Exchange of a few numbers between ranks in every call, through shared memory."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref

import torch

import symmc
from symmc.torch.ranks.exchange import RankGroup, WorldCache

_WORDS = 4
"""The number of words that a rank publishes: the number of the round, and three others."""

_PROGRAM = """program "agreement of ranks" ranks {ranks}
group @all world
arg %mine: i64[1, {words}]
%all: i64[{ranks}, {words}] = all_gather %mine group=@all
return %all
"""


@functools.cache
def _plan(ranks: int) -> symmc.Plan:
    return symmc.compile(symmc.from_text(_PROGRAM.format(ranks=ranks, words=_WORDS)))


class Board:
    """Rounds in which every rank publishes some numbers to all others. All ranks call the same rounds in the same order.

    The board is a session on the host whose plan is one all-gather: errors name a rank that died or does not join, as in any run.
    """

    def __init__(self, ranks: RankGroup):
        self.ranks = ranks
        self.session = symmc.Session(_plan(len(ranks.members)), ranks.group(), timeout=ranks.timeout)
        self.mine = torch.zeros(1, _WORDS, dtype=torch.int64)
        self.all = torch.zeros(len(ranks.members), _WORDS, dtype=torch.int64)
        # Reading and writing single elements of a tensor takes longer than the round.
        self.words = (ctypes.c_int64 * _WORDS).from_address(self.mine.data_ptr())
        self.found = (ctypes.c_int64 * (_WORDS * len(ranks.members))).from_address(self.all.data_ptr())
        self.round = 0
        """The number of the last round that this rank has begun."""
        self.functions = 0
        """The number of functions of this rank that use it."""
        self.lock = threading.Lock()
        self.matching_collectives: set[tuple[int, ...]] = set()
        """The collectives of all ranks, by their digests, that match each other. The set is equal on all ranks."""
        self.is_open = False
        """Whether a round has begun and not ended."""

    def register_function(self) -> int:
        self.functions += 1
        return self.functions

    def gather(self, words: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        """The numbers of all ranks, in their order. An interrupt leaves the round to :meth:`resume`."""
        if self.is_open:
            self.resume()
        self.round += 1
        self.words[:] = [self.round, *words]
        self.is_open = True
        return self._run()

    def resume(self) -> list[tuple[int, int, int]]:
        """Ends a round that was interrupted."""
        self.session.wait()
        own = self.found[self.ranks.rank * _WORDS]
        # The interrupt may have come before the round had begun.
        return self._read() if own == self.round else self._run()

    def _run(self) -> list[tuple[int, int, int]]:
        self.session.launch((self.mine,), [self.all], None)
        return self._read()

    def _read(self) -> list[tuple[int, int, int]]:
        self.is_open = False
        found = tuple(self.found)
        if any(number != self.round for number in found[::_WORDS]):
            raise symmc.DefectError(f"expected all ranks in one round, found the rounds {list(found[::_WORDS])}")
        return [found[at + 1 : at + _WORDS] for at in range(0, len(found), _WORDS)]


_boards = WorldCache(weakref.WeakValueDictionary())
"""The boards that compiled functions hold, by their ranks and the timeout of their waits."""


def open_board(ranks: RankGroup) -> Board:
    """The board of these ranks. If there is no board yet, all of them open one together."""
    boards, key = _boards(), (ranks.members, ranks.timeout)
    board = boards.get(key)
    if board is None:
        board = boards[key] = Board(ranks)
    return board
