"""Reads rows of several layers at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from .forms import LayoutError
from .reader import RowReader
from .slots import Slots


class JoinedReader:
    """K and V of layers whose caches lie at equal distances in one memory, as layers of a KV cache group do on a GPU.

    One gather instead of two for every layer: what it costs is mostly starting it.
    """

    def __init__(self, view: torch.Tensor, first: RowReader) -> None:
        """:param view: (layers, 2, blocks, slots, heads, dimension) over the caches' memory"""
        self._view = view
        self._first = first

    @staticmethod
    def of(readers: Sequence[RowReader]) -> JoinedReader | None:
        """None when the caches cannot be seen as one tensor."""
        views = [reader.views for reader in readers]
        (first, first_v), *_ = views
        plain = first.dim() == 4
        form = (first.shape, first.stride(), first.untyped_storage().data_ptr())
        alike = all((v.shape, v.stride(), v.untyped_storage().data_ptr()) == form for pair in views for v in pair)
        starts = [pair[0].storage_offset() for pair in views]
        gaps = {v.storage_offset() - k.storage_offset() for k, v in views}
        steps = {b - a for a, b in pairwise(starts)} or {0}
        if not plain or not alike or len(gaps) != 1 or len(steps) != 1 or min(gaps | steps) < 0:
            return None
        shape = (len(views), 2, *first.shape)
        stride = (steps.pop(), first_v.storage_offset() - first.storage_offset(), *first.stride())
        return JoinedReader(first.as_strided(shape, stride, first.storage_offset()), readers[0])

    def read_into(self, slots: Slots, target: torch.Tensor, first: int, end: int) -> None:
        """Fills `target` (layers, 2, tokens, heads, dimension) of the layers [first, end) of those joined. On a GPU it
        is queued on the current stream.

        :raises LayoutError: a slot is not in the cache
        """
        if len(slots) and not 0 <= slots.lowest <= slots.highest < self._first.slots:
            raise LayoutError("a row outside the cache was asked for")
        block, inside = slots.split(self._view.shape[3], self._view.device)
        # Indexing alone would choose the result's layout, and copy it into `target` once more.
        torch.ops.aten.index.Tensor_out(self._view[first:end], [None, None, block, inside], out=target)
