"""One prefill's rows in a rank: what was announced, what can be read, and until when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..metadata import EndReason, PrefillSpec
from .blocks import BlockTables
from .model import GroupRows, LayerSource, RankLayers
from .staging import HostCopier, Piece, Ready, StagingBudget

_AHEAD_BYTES = 16 << 20
"""Rows of global layers that are taken out of the cache at once, because the next reads will want them."""


class ReadError(Exception):
    """:ivar code: one of `failed.code` in the schema"""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class RowsWanted:
    """:ivar parts: (layer, 0 for K or 1 for V), in the order of the answer; rows [start, start + count) of each"""

    index: int
    start: int
    count: int
    parts: Sequence[Sequence[int]]


@dataclass
class Chunk:
    """Rows [start, end).

    :ivar window_rows: (window layers, 2, end - window_start, heads, dimension) in host memory
    :ivar saved: the global layers' rows in the same form, taken out because their blocks were about to be lost
    :ivar saved_ready: when `saved` is complete, None for at once
    :ivar staged: bytes of the budget that both occupy
    """

    index: int
    start: int
    end: int
    window_start: int
    window_rows: torch.Tensor | None = None
    saved: torch.Tensor | None = None
    saved_ready: Ready | None = None
    staged: int = 0


@dataclass
class Ahead:
    """Rows [start, end) of the global layers at the places [first, end_place) of a chunk, in host memory.

    :ivar pieces: where they lie, when they were planned
    """

    chunk: Chunk
    start: int
    end: int
    first: int
    end_place: int
    pieces: list[Piece]
    rows: torch.Tensor | None = None

    def of(self, chunk: Chunk, place: int, which: int, start: int, count: int) -> torch.Tensor | None:
        if self.rows is None or self.chunk is not chunk or not self.first <= place < self.end_place:
            return None
        if not self.start <= start <= start + count <= self.end:
            return None
        return self.rows[place - self.first, which, start - self.start : start - self.start + count]


class Transfer:
    """Everything but `spec` and `layers` is guarded by `lock`: vLLM's thread and the link's threads both come here.
    The latter do not hold it while they copy rows: vLLM's thread must not wait for that.

    States: open (rows can be read) -> closed (for one reason, for good).
    """

    def __init__(self, spec: PrefillSpec, layers: RankLayers, tables: BlockTables) -> None:
        self.spec = spec
        self.lock = threading.Lock()
        self.tables = tables
        self.announced_end = spec.held
        self.closed: EndReason | None = None
        self.layers = layers
        self._chunks: dict[int, Chunk] = {}
        self._next_index = 0
        self._ahead: Ahead | None = None

    @property
    def ahead_bytes(self) -> int:
        """Host memory beyond the budget's."""
        ahead = self._ahead
        return 0 if ahead is None or ahead.rows is None else ahead.rows.nbytes

    def add_chunk(self, start: int, end: int, window_start: int) -> Chunk:
        chunk = Chunk(self._next_index, start, end, window_start)
        self._next_index += 1
        self._chunks[chunk.index] = chunk
        self.announced_end = end
        return chunk

    def release(self, index: int, budget: StagingBudget) -> None:
        chunk = self._chunks.pop(index, None)
        if chunk is None:
            return
        budget.give_back(chunk.staged)
        if self._ahead is not None and self._ahead.chunk is chunk:
            self._ahead = None

    def close(self, reason: EndReason, budget: StagingBudget) -> None:
        """No read succeeds from now on: one under way is found out by `keep`."""
        if self.closed is None:
            self.closed = reason
        for index in list(self._chunks):
            self.release(index, budget)

    # -- vLLM's thread -------------------------------------------------------------------------------------------

    def allocate_window(self, chunk: Chunk, copier: HostCopier, budget: StagingBudget) -> None:
        count = chunk.end - chunk.window_start
        size = count * self.layers.window_row_bytes
        if size == 0:
            return
        budget.take(size)
        chunk.staged += size
        chunk.window_rows = copier.allocate(self.layers.shape(len(self.layers.window_layers), count))

    def take_window(self, chunk: Chunk, copier: HostCopier) -> None:
        """Takes out the window rows, which are in their blocks or will be when what is queued has been done."""
        if chunk.window_rows is not None:
            pieces = self._pieces(self.layers.window_groups, chunk.window_start, chunk.end)
            copier.stage(pieces, chunk.window_rows)

    def save_before_loss(self, copier: HostCopier, budget: StagingBudget) -> bool:
        """Takes out the global rows of every chunk that was not released. False when they do not fit."""
        for chunk in self._chunks.values():
            size = (chunk.end - chunk.start) * self.layers.global_row_bytes
            if chunk.saved is not None or size == 0:
                continue
            if not budget.take(size):
                return False
            chunk.staged += size
            chunk.saved = copier.allocate(self.layers.shape(len(self.layers.global_layers), chunk.end - chunk.start))
            copier.stage(self._pieces(self.layers.global_groups, chunk.start, chunk.end), chunk.saved)
            chunk.saved_ready = copier.mark()
        self.tables.clear()
        return True

    def _pieces(self, groups: Sequence[GroupRows], start: int, end: int) -> list[Piece]:
        return [Piece(rows, self.tables.slots(rows.group, start, end), rows.first, rows.end) for rows in groups]

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, wanted: RowsWanted) -> tuple[list[torch.Tensor | None], Ready | None]:
        """Each part's rows, None for what is only in the cache; they may be used when the second says so.

        :raises ReadError: UNKNOWN, RANGE, or why the transfer was closed
        """
        chunk = self._chunk(wanted.index)
        rows: list[torch.Tensor | None] = []
        ready = None
        for layer, which in wanted.parts:
            source = self._source(layer, chunk, wanted)
            kept, first = (chunk.window_rows, chunk.window_start) if source.window else (chunk.saved, chunk.start)
            if kept is not None:
                at = wanted.start - first
                rows.append(kept[source.place, which, at : at + wanted.count])
                ready = ready if source.window else chunk.saved_ready
            elif self._ahead is not None:
                rows.append(self._ahead.of(chunk, source.place, which, wanted.start, wanted.count))
            else:
                rows.append(None)
        return rows, ready

    def plan_ahead(self, wanted: RowsWanted) -> Ahead:
        """What is to be taken out of the cache for this read and those that will follow it. Call it after `find`."""
        chunk = self._chunk(wanted.index)
        sources = [self.layers.by_number[layer] for layer, _ in wanted.parts]
        places = sorted(source.place for source in sources if not source.window)
        start, end = wanted.start, wanted.start + wanted.count
        fitting = _AHEAD_BYTES // (2 * wanted.count * self.layers.row_bytes)
        first = places[0]
        end_place = max(places[-1] + 1, min(first + fitting, len(self.layers.global_layers)))
        pieces = [
            Piece(piece.rows, piece.slots, max(first, piece.first), min(end_place, piece.end))
            for piece in self._pieces(self.layers.global_groups, start, end)
            if piece.first < end_place and piece.end > first
        ]
        return Ahead(chunk, start, end, first, end_place, pieces)

    def keep(self, ahead: Ahead, rows: torch.Tensor) -> None:
        """Keeps rows that were copied meanwhile, unless their blocks may have got another's rows by then.

        :raises ReadError: why the transfer was closed
        """
        chunk = self._chunk(ahead.chunk.index)
        if chunk is ahead.chunk and chunk.saved is None:
            ahead.rows = rows
            self._ahead = ahead

    def _chunk(self, index: int) -> Chunk:
        if self.closed is not None:
            raise ReadError("UNKNOWN" if self.closed == "DONE" else self.closed)
        chunk = self._chunks.get(index)
        if chunk is None:
            raise ReadError("UNKNOWN")
        return chunk

    def _source(self, layer: int, chunk: Chunk, wanted: RowsWanted) -> LayerSource:
        source = self.layers.by_number.get(layer)
        if source is None:
            raise ReadError("RANGE")
        first = chunk.window_start if source.window else chunk.start
        if not first <= wanted.start < wanted.start + wanted.count <= chunk.end:
            raise ReadError("RANGE")
        return source


def read_rows(transfer: Transfer, wanted: RowsWanted, copier: HostCopier, most_bytes: int) -> list[torch.Tensor]:
    """The parts' rows in host memory, contiguous, in order.

    :param most_bytes: of an answer
    :raises ReadError: UNKNOWN, RANGE, or why the transfer was closed
    """
    while True:
        with transfer.lock:
            found, ready = transfer.find(wanted)
            if not found or wanted.count * len(found) * transfer.layers.row_bytes > most_bytes:
                raise ReadError("RANGE")
            rows = [part for part in found if part is not None]
            ahead = None if len(rows) == len(found) else transfer.plan_ahead(wanted)
        if ready is not None:
            ready.synchronize()
        if ahead is None:
            return rows
        shape = transfer.layers.shape(ahead.end_place - ahead.first, ahead.end - ahead.start)
        copied = copier.fetch(ahead.pieces, shape)
        with transfer.lock:
            transfer.keep(ahead, copied)
