"""One prefill's rows in a rank: what was announced, what can be read, and until when."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ..layout import Slots
from ..metadata import EndReason, PrefillSpec
from .blocks import BlockTables
from .model import LayerSource, RankLayers
from .staging import HostCopier, StagingBudget


class ReadError(Exception):
    """:ivar code: one of `failed.code` in the schema"""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Chunk:
    """Rows [start, end).

    :ivar window_rows: (window layers, 2, end - window_start, heads, dimension) in host memory
    :ivar saved: the global layers' rows in the same form, taken out because their blocks were about to be lost
    :ivar staged: bytes of the budget that both occupy
    :ivar filled: window layers, by their place, whose rows have been taken out
    :ivar slots: by KV cache group, where the window rows lie, in the step that computes them
    """

    index: int
    start: int
    end: int
    window_start: int
    window_rows: torch.Tensor | None = None
    saved: torch.Tensor | None = None
    staged: int = 0
    filled: set[int] = field(default_factory=set)
    slots: dict[int, Slots] = field(default_factory=dict)


class Transfer:
    """Everything but `spec` is guarded by `lock`: the engine's thread and the link's thread both come here.

    States: open (rows can be read) -> closed (for one reason, for good).
    """

    def __init__(self, spec: PrefillSpec, layers: RankLayers, tables: BlockTables) -> None:
        self.spec = spec
        self.lock = threading.Lock()
        self.tables = tables
        self.announced_end = spec.held
        self.closed: EndReason | None = None
        self._layers = layers
        self._chunks: dict[int, Chunk] = {}
        self._next_index = 0

    def add_chunk(self, start: int, end: int, window_start: int) -> Chunk:
        chunk = Chunk(self._next_index, start, end, window_start)
        self._next_index += 1
        self._chunks[chunk.index] = chunk
        self.announced_end = end
        return chunk

    def release(self, index: int, budget: StagingBudget) -> None:
        chunk = self._chunks.pop(index, None)
        if chunk is not None:
            budget.give_back(chunk.staged)

    def close(self, reason: EndReason, budget: StagingBudget) -> None:
        """Waits for a read under way, because the caller holds `lock`; no later one succeeds."""
        if self.closed is None:
            self.closed = reason
        for index in list(self._chunks):
            self.release(index, budget)

    def save_before_loss(self, copier: HostCopier, budget: StagingBudget) -> bool:
        """Takes out the global rows of every chunk that was not released. False when they do not fit."""
        for chunk in self._chunks.values():
            size = (chunk.end - chunk.start) * self._layers.global_row_bytes
            if chunk.saved is not None or size == 0:
                continue
            if not budget.take(size):
                return False
            chunk.staged += size
            chunk.saved = copier.allocate(self._shape(len(self._layers.global_layers), chunk.end - chunk.start))
            for source in self._layers.global_layers:
                slots = self.tables.slots(source.group, chunk.start, chunk.end)
                for which in (0, 1):
                    copier.copy(source.reader, which, slots, chunk.saved[source.place, which])
        copier.wait()
        self.tables.clear()
        return True

    def allocate_window(self, chunk: Chunk, copier: HostCopier, budget: StagingBudget) -> None:
        count = chunk.end - chunk.window_start
        size = count * self._layers.window_row_bytes
        if size == 0:
            return
        budget.take(size)
        chunk.staged += size
        chunk.window_rows = copier.allocate(self._shape(len(self._layers.window_layers), count))

    def fill_window(self, chunk: Chunk, source: LayerSource, copier: HostCopier) -> None:
        """Takes out one layer's rows, once."""
        if chunk.window_rows is None or source.place in chunk.filled:
            return
        chunk.filled.add(source.place)
        if source.group not in chunk.slots:
            chunk.slots[source.group] = self.tables.slots(source.group, chunk.window_start, chunk.end)
        for which in (0, 1):
            copier.copy(source.reader, which, chunk.slots[source.group], chunk.window_rows[source.place, which])
        if len(chunk.filled) == len(self._layers.window_layers):
            chunk.slots.clear()

    def _shape(self, layers: int, tokens: int) -> tuple[int, ...]:
        return (layers, 2, tokens, self._layers.heads, self._layers.dimension)

    def read(
        self,
        index: int,
        start: int,
        count: int,
        parts: Sequence[Sequence[int]],
        copier: HostCopier,
        bounce: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The parts' rows, contiguous, in order. What is not in host memory yet is put into `bounce` (bf16, flat).

        :raises ReadError: UNKNOWN, RANGE, or why the transfer was closed
        """
        if self.closed is not None:
            raise ReadError("UNKNOWN" if self.closed == "DONE" else self.closed)
        chunk = self._chunks.get(index)
        if chunk is None:
            raise ReadError("UNKNOWN")
        sources = [(self._source(layer, chunk, start, count), which) for layer, which in parts]
        elements = count * self._layers.heads * self._layers.dimension
        if not parts or elements * len(parts) > bounce.numel():
            raise ReadError("RANGE")
        rows: list[torch.Tensor] = []
        for place, (source, which) in enumerate(sources):
            space = bounce[place * elements : (place + 1) * elements]
            rows.append(self._part(chunk, source, which, start, count, copier, space))
        return rows

    def _source(self, layer: int, chunk: Chunk, start: int, count: int) -> LayerSource:
        source = self._layers.by_number.get(layer)
        if source is None:
            raise ReadError("RANGE")
        first = chunk.window_start if source.window else chunk.start
        if not first <= start < start + count <= chunk.end:
            raise ReadError("RANGE")
        return source

    def _part(
        self,
        chunk: Chunk,
        source: LayerSource,
        which: int,
        start: int,
        count: int,
        copier: HostCopier,
        space: torch.Tensor,
    ) -> torch.Tensor:
        first, kept = (chunk.window_start, chunk.window_rows) if source.window else (chunk.start, chunk.saved)
        if kept is not None:
            return kept[source.place, which, start - first : start - first + count]
        target = space.view(count, self._layers.heads, self._layers.dimension)
        copier.read_now(source.reader, which, self.tables.slots(source.group, start, start + count), target)
        return target
