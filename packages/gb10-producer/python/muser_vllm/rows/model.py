"""The layers of a rank, as far as reading their rows is concerned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch

from ..layout import JoinedReader, RowReader, Slots

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class LayerSource:
    """:ivar layer: its number in the whole model; :ivar group: its KV cache group; :ivar place: its number among the
    rank's layers of its kind, where those of a group follow one another"""

    name: str
    layer: int
    group: int
    window: bool
    place: int
    reader: RowReader


class GroupRows:
    """The layers of one KV cache group: their rows lie in the same slots, so they are read together.

    :ivar first: place of its first layer; :ivar end: behind its last one
    """

    def __init__(self, sources: Sequence[LayerSource]) -> None:
        """:param sources: in the order of their places, without gaps"""
        self.group = sources[0].group
        self.first = sources[0].place
        self.end = self.first + len(sources)
        self._readers = [source.reader for source in sources]
        on_cpu = self._readers[0].device.type == "cpu"
        # On a CPU, PyTorch would start threads for a copy of this size, and they would fight vLLM's.
        self._joined = None if on_cpu else JoinedReader.of(self._readers)

    @property
    def joined(self) -> bool:
        """Whether one gather takes the rows of all layers."""
        return self._joined is not None

    def read_into(self, slots: Slots, target: torch.Tensor, first: int, end: int) -> None:
        """Fills `target` (layers, 2, tokens, heads, dimension) with the rows of the layers at the places [first, end).
        On a GPU it is queued on the current stream."""
        if self._joined is not None:
            self._joined.read_into(slots, target, first - self.first, end - self.first)
            return
        for rows, reader in zip(target, self._readers[first - self.first : end - self.first], strict=True):
            for which in (0, 1):
                reader.read_into(which, slots, rows[which])


@dataclass(frozen=True)
class RankLayers:
    """:ivar window_tokens: 0 when the model has no window layer"""

    by_number: dict[int, LayerSource]
    heads: int
    dimension: int
    window_tokens: int

    @cached_property
    def window_layers(self) -> list[LayerSource]:
        return [source for source in self.by_number.values() if source.window]

    @cached_property
    def global_layers(self) -> list[LayerSource]:
        return [source for source in self.by_number.values() if not source.window]

    @cached_property
    def window_groups(self) -> list[GroupRows]:
        return _grouped(self.window_layers)

    @cached_property
    def global_groups(self) -> list[GroupRows]:
        return _grouped(self.global_layers)

    @property
    def row_bytes(self) -> int:
        """Of one layer's K or V."""
        return self.heads * self.dimension * ELEMENT_BYTES

    @property
    def window_row_bytes(self) -> int:
        """Of all window layers, K and V."""
        return 2 * len(self.window_layers) * self.row_bytes

    @property
    def global_row_bytes(self) -> int:
        return 2 * len(self.global_layers) * self.row_bytes

    def shape(self, layers: int, tokens: int) -> tuple[int, ...]:
        return (layers, 2, tokens, self.heads, self.dimension)


def _grouped(sources: Sequence[LayerSource]) -> list[GroupRows]:
    """:raises ValueError: the layers of a group do not have places that follow one another"""
    ordered = sorted(sources, key=lambda source: source.place)
    groups = [GroupRows(list(found)) for _, found in groupby(ordered, key=lambda source: source.group)]
    if len({rows.group for rows in groups}) != len(groups):
        raise ValueError("the places of a group's layers are apart")
    return groups
