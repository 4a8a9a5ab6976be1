"""The layers of a rank, as far as reading their rows is concerned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..layout import RowReader

ELEMENT_BYTES = 2


@dataclass(frozen=True)
class LayerSource:
    """:ivar layer: its number in the whole model; :ivar group: its KV cache group; :ivar place: its number among the
    rank's layers of its kind"""

    name: str
    layer: int
    group: int
    window: bool
    place: int
    reader: RowReader


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
    def window_groups(self) -> list[int]:
        return sorted({source.group for source in self.window_layers})

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
