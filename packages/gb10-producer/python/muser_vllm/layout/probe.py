"""Finds a layer's layout with the attention implementation's own cache update.

Every element of a block is written with a number of its own into a scratch cache, so that its place is known exactly.
Nothing is assumed from the shape but which axis counts blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .forms import LayerLayout, LayoutError, Placement, Table, name_form, placement_of
from .reader import RowReader
from .slots import Slots

CacheUpdate = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""(key, value, cache, slot_mapping): rows are (tokens, heads, dimension)."""

_BLOCKS = 5
_FIRST, _SECOND = 1, 3
# Codes are bit patterns of positive finite bf16 numbers; no update does arithmetic on them.
_CODE_BASE = 8192
_LOWEST_CODE = 0x3000


def probe_layer(update: CacheUpdate, cache: torch.Tensor, heads: int, dimension: int) -> LayerLayout:
    """:param cache: the layer's cache as vLLM registered it; it is not touched
    :raises LayoutError: it is none of the known forms
    """
    if cache.dtype != torch.bfloat16:
        raise LayoutError(f"elements are {cache.dtype}, only bfloat16 is known")
    block_axis, slots = _axes_of(tuple(cache.shape), heads, dimension)
    scratch = _scratch_for(cache, block_axis)
    rows = (slots, heads, dimension)
    found = [[_locate(update, scratch, which, block, rows) for block in (_FIRST, _SECOND)] for which in _KV]

    def layout_for(target: torch.Tensor) -> LayerLayout:
        k, v = (_placement(blocks, rows, target.stride()) for blocks in found)
        name = name_form(tuple(cache.shape), block_axis, k, v)
        return LayerLayout(name, k, v, slots, heads, dimension)

    _verify(update, scratch, layout_for(scratch))
    return layout_for(cache)


_Which = Literal["k", "v"]
_KV: tuple[_Which, _Which] = ("k", "v")


def _axes_of(shape: tuple[int, ...], heads: int, dimension: int) -> tuple[int, int]:
    """The axis of blocks and the slots of a block. An update handed a cache of another shape may write anywhere."""
    if len(shape) == 4 and (shape[1], shape[3]) == (heads, 2 * dimension):
        return 0, shape[2]
    if len(shape) == 5 and (shape[0] == 2) != (shape[1] == 2) and shape[3:] == (heads, dimension):
        return (1 if shape[0] == 2 else 0), shape[2]
    raise LayoutError(f"its axes cannot be told ({heads} heads of {dimension})")


def _scratch_for(cache: torch.Tensor, block_axis: int) -> torch.Tensor:
    """A cache of a few blocks whose axes are nested in memory as in the real one."""
    shape = list(cache.shape)
    shape[block_axis] = _BLOCKS
    strides = list(cache.stride())
    outermost = max(range(len(strides)), key=lambda axis: strides[axis])
    if outermost != block_axis:
        order = sorted(range(len(strides)), key=lambda axis: strides[axis])
        step = 1
        for axis in order:
            strides[axis] = step
            step *= shape[axis]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = torch.zeros(extent, dtype=cache.dtype, device=cache.device)
    return memory.as_strided(shape, strides)


_Indices = tuple[NDArray[np.intp], ...]


def _locate(
    update: CacheUpdate, scratch: torch.Tensor, which: _Which, block: int, rows: tuple[int, int, int]
) -> _Indices:
    """Indices into the scratch cache, axis by axis, of every element of a block in the order slot, head, dimension."""
    slots = rows[0]
    count = int(np.prod(rows))
    number = np.arange(count, dtype=np.int64)
    found = np.zeros(scratch.numel(), dtype=np.int64)
    written = np.zeros(scratch.numel(), dtype=bool)
    # Rows come in another order than slots, so that a form which follows the rows' order is not mistaken for one.
    order = np.random.default_rng(block).permutation(slots)
    factor = 1
    while factor < count or factor == 1:
        digit = number // factor % _CODE_BASE
        scratch.zero_()
        codes = (digit + _LOWEST_CODE).astype(np.int16).reshape(rows)[order]
        coded = torch.from_numpy(codes).view(torch.bfloat16).to(scratch.device)
        empty = torch.zeros_like(coded)
        mapping = torch.from_numpy(block * slots + order).to(scratch.device)
        update(coded if which == "k" else empty, coded if which == "v" else empty, scratch, mapping)
        memory = scratch.reshape(-1).view(torch.int16).cpu().numpy().astype(np.int64)
        written = memory != 0
        if int(written.sum()) != count:
            raise LayoutError(f"writing {count} elements of {which} changed {int(written.sum())}")
        found += np.where(written, memory - _LOWEST_CODE, 0) * factor
        factor *= _CODE_BASE
    places = np.flatnonzero(written)
    numbers = found[places]
    if not np.array_equal(np.sort(numbers), number):
        raise LayoutError(f"elements of {which} are not kept as they are")
    sequence = places[np.argsort(numbers)]
    return np.unravel_index(sequence, tuple(scratch.shape))


def _placement(blocks: Sequence[_Indices], rows: tuple[int, int, int], strides: Sequence[int]) -> Placement:
    first, second = (_positions(indices, strides).reshape(rows) for indices in blocks)
    return placement_of(first, second, _FIRST, _SECOND)


def _positions(indices: _Indices, strides: Sequence[int]) -> Table:
    flat = np.zeros(len(indices[0]), dtype=np.int64)
    for index, stride in zip(indices, strides, strict=True):
        flat += index.astype(np.int64) * stride
    return flat


def _verify(update: CacheUpdate, scratch: torch.Tensor, layout: LayerLayout) -> None:
    """Random rows at random slots must come back, every head of them."""
    generator = torch.Generator().manual_seed(1)
    total = _BLOCKS * layout.block_slots
    count = min(total, 3 * layout.block_slots // 2 + 1)
    mapping = torch.randperm(total, generator=generator)[:count]
    shape = (count, layout.heads, layout.dimension)
    key, value = (torch.randn(shape, generator=generator).to(torch.bfloat16).to(scratch.device) for _ in range(2))
    scratch.zero_()
    update(key, value, scratch, mapping.to(scratch.device))
    reader = RowReader(scratch, layout)
    for which, rows in enumerate((key, value)):
        if not torch.equal(reader.read(which, Slots(mapping.numpy())), rows):
            raise LayoutError(f"rows of {_KV[which]} do not come back as they were written")
