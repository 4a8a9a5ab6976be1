"""Reads rows out of one layer's paged cache."""

from __future__ import annotations

import torch

from .forms import LayerLayout, LayoutError, Placement
from .slots import Slots


class RowReader:
    """Rows of one layer as (tokens, heads, dimension), whatever way the backend keeps them."""

    def __init__(self, cache: torch.Tensor, layout: LayerLayout) -> None:
        """:raises LayoutError: the layout reaches outside the cache's memory"""
        self._layout = layout
        self._blocks = max(cache.shape[0], cache.shape[1]) if cache.dim() == 5 else cache.shape[0]
        self.views = (self._view(cache, layout.k), self._view(cache, layout.v))
        """K and V as (block, slot levels..., head, dimension levels...) over the cache's memory."""
        self.device = cache.device
        self.row_shape = (layout.heads, layout.dimension)

    @property
    def slots(self) -> int:
        """Number of slots that exist."""
        return self._blocks * self._layout.block_slots

    def _view(self, cache: torch.Tensor, placement: Placement) -> torch.Tensor:
        """(block, slot levels..., head, dimension levels...) over the cache's memory."""
        axes = (
            (self._blocks, placement.block_stride),
            *placement.slot,
            (self._layout.heads, placement.head_stride),
            *placement.dimension,
        )
        first = cache.storage_offset() + placement.offset
        last = first + sum((size - 1) * stride for size, stride in axes)
        if first < 0 or last * cache.element_size() >= cache.untyped_storage().nbytes():
            raise LayoutError(f"rows reach to element {last} of a cache that ends before")
        return cache.as_strided([size for size, _ in axes], [stride for _, stride in axes], first)

    def read(self, which: int, slots: Slots) -> torch.Tensor:
        """:param which: 0 for K, 1 for V"""
        target = torch.empty((len(slots), *self.row_shape), dtype=torch.bfloat16, device=self.device)
        self.read_into(which, slots, target)
        return target

    def read_into(self, which: int, slots: Slots, target: torch.Tensor) -> None:
        """Fills `target` (tokens, heads, dimension). On a GPU it is queued on the current stream.

        :raises LayoutError: a slot is not in the cache
        """
        if len(slots) and not 0 <= slots.lowest <= slots.highest < self.slots:
            raise LayoutError("a row outside the cache was asked for")
        if self.device.type == "cpu":
            self._copy_runs(which, slots, target)
        else:
            self._index(which, slots, target)

    def _index(self, which: int, slots: Slots, target: torch.Tensor) -> None:
        block, inside = slots.split(self._layout.block_slots, self.device)
        index = [block]
        for size, _ in self._slot_levels(which)[1:]:
            index.append(inside // size)
            inside = inside % size
        index.append(inside)
        target.copy_(self.views[which][tuple(index)].reshape(target.shape))

    def _slot_levels(self, which: int) -> tuple[tuple[int, int], ...]:
        return self._layout.v.slot if which else self._layout.k.slot

    def _copy_runs(self, which: int, slots: Slots, target: torch.Tensor) -> None:
        """Block by block. Each copy is small enough that PyTorch starts no threads for it, which would fight vLLM's."""
        view = self.views[which]
        packed = len(self._slot_levels(which)) > 1
        length = self._layout.block_slots
        at = 0
        for block, inside, count in slots.runs(length):
            rows = view[block].reshape(length, *self.row_shape) if packed else view[block]
            target[at : at + count].copy_(rows[inside : inside + count].reshape(count, *self.row_shape))
            at += count
