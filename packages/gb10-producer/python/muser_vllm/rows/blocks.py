"""Which blocks hold a request's rows, group by group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..layout import Slots

NULL_BLOCK = 0
"""vLLM's id for "no block": rows that no window reaches any more."""


class BlockTables:
    """Ids as vLLM handed them out. Those of window groups are only right in the step that brought them: vLLM gives
    blocks that the window has left to others without saying so."""

    def __init__(self, block_sizes: Sequence[int]) -> None:
        self._sizes = tuple(block_sizes)
        self._ids: list[list[int]] = [[] for _ in self._sizes]

    def add(self, blocks: Sequence[Sequence[int]], *, replaced: bool) -> None:
        """:param blocks: new ids of every group, or nothing at all"""
        if replaced:
            self.clear()
        for ids, new in zip(self._ids, blocks, strict=False):
            ids.extend(new)

    def clear(self) -> None:
        for ids in self._ids:
            ids.clear()

    def holds(self, group: int, start: int, end: int) -> bool:
        """Whether every row of [start, end) has a block."""
        size, ids = self._sizes[group], self._ids[group]
        wanted = ids[start // size : (end + size - 1) // size]
        return end <= start or (len(ids) * size >= end and NULL_BLOCK not in wanted)

    def first_present(self, group: int, start: int, end: int) -> int:
        """First row from which on all up to `end` have a block; `end` when the last one has none."""
        size, ids = self._sizes[group], self._ids[group]
        if len(ids) * size < end:
            return end
        row = end
        while row > start and ids[(row - 1) // size] != NULL_BLOCK:
            row = (row - 1) // size * size
        return max(row, start)

    def slots(self, group: int, start: int, end: int) -> Slots:
        """Where every row of [start, end) lies. :raises IndexError: one has no block"""
        size = self._sizes[group]
        first = start // size
        ids = np.array(self._ids[group][first : (end + size - 1) // size], dtype=np.int64)
        block, inside = np.divmod(np.arange(start - first * size, end - first * size), size)
        return Slots(ids[block] * size + inside)
