"""The forms of a paged cache that are known, and how a table of element positions is recognised as one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Levels = tuple[tuple[int, int], ...]
"""(size, stride in elements) of an axis, outermost first; two levels where elements are packed in groups."""

Table = NDArray[np.int64]
"""Positions in elements from the cache's first one, [slot, head, dimension]."""


class LayoutError(Exception):
    """The cache has a form that is not known. The message names backend, version, shape and strides."""


@dataclass(frozen=True)
class Placement:
    """Where K (or V) lies: offset + block * block_stride + head * head_stride + the levels of slot and dimension."""

    offset: int
    block_stride: int
    head_stride: int
    slot: Levels
    dimension: Levels

    def order(self) -> str:
        if len(self.slot) > 1 or len(self.dimension) > 1:
            return "packed"
        if self.dimension[0][1] == 1:
            return "plain"
        return "transposed"


@dataclass(frozen=True)
class LayerLayout:
    """:ivar name: the known form, for people; :ivar block_slots: slots of one block of the tensor"""

    name: str
    k: Placement
    v: Placement
    block_slots: int
    heads: int
    dimension: int


def placement_of(first: Table, second: Table, first_block: int, second_block: int) -> Placement:
    """Finds the strides that explain the positions in two blocks.

    :raises LayoutError: no strides do
    """
    distance = second - first
    blocks = second_block - first_block
    if not bool(np.all(distance == distance.flat[0])) or int(distance.flat[0]) % blocks != 0:
        raise LayoutError("blocks are not alike")
    block_stride = int(distance.flat[0]) // blocks
    by_head = first - first[:, :1, :]
    head_stride = int(by_head[0, 1, 0]) if first.shape[1] > 1 else 0
    if not bool(np.all(by_head == np.arange(first.shape[1])[None, :, None] * head_stride)):
        raise LayoutError("heads are not alike")
    start = int(first[0, 0, 0])
    by_slot = first[:, 0, 0] - start
    by_dimension = first[0, 0, :] - start
    if not np.array_equal(first[:, 0, :] - start, by_slot[:, None] + by_dimension[None, :]):
        raise LayoutError("slot and dimension are not independent")
    return Placement(
        offset=start - first_block * block_stride,
        block_stride=block_stride,
        head_stride=head_stride,
        slot=_levels(by_slot, "slots"),
        dimension=_levels(by_dimension, "dimensions"),
    )


def _levels(distances: NDArray[np.int64], what: str) -> Levels:
    """One level, or two where every `inner` elements form a group."""
    count = len(distances)
    if count == 1:
        return ((1, 0),)
    stride = int(distances[1])
    index = np.arange(count, dtype=np.int64)
    straight = distances == index * stride
    if bool(straight.all()):
        return ((count, stride),)
    inner = int(np.argmin(straight))
    outer_stride = int(distances[inner])
    if count % inner != 0 or not np.array_equal(distances, index // inner * outer_stride + index % inner * stride):
        raise LayoutError(f"the order of {what} is not known")
    return ((count // inner, outer_stride), (inner, stride))


def name_form(shape: tuple[int, ...], block_axis: int, k: Placement, v: Placement) -> str:
    """:raises LayoutError: the placements are possible, but no backend that was looked at has them"""
    slots = _size(k.slot)
    dimension = _size(k.dimension)
    gap = v.offset - k.offset
    orders = (k.order(), v.order())
    if k.block_stride != v.block_stride:
        raise LayoutError("K and V have different block strides")
    if len(shape) == 4 and orders == ("plain", "plain") and gap == dimension:
        return f"(N,H,B,2D), {_head_order(k)}"
    if len(shape) == 4 and gap == slots * dimension:
        return f"(N,H,B,2D) in halves, K {orders[0]}, V {orders[1]}"
    if len(shape) == 5 and orders == ("plain", "plain"):
        return f"{'(2,N,B,H,D)' if block_axis == 1 else '(N,2,B,H,D)'}, {_head_order(k)}"
    raise LayoutError(f"K is {orders[0]}, V is {orders[1]} and {gap} elements after it")


def _head_order(placement: Placement) -> str:
    return "NHD" if placement.head_stride < placement.slot[0][1] else "HND"


def _size(levels: Levels) -> int:
    return int(np.prod([size for size, _ in levels]))
