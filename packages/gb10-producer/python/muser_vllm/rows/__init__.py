"""Rows on their way out of the paged cache: which blocks hold them, where window rows wait, how they are read."""

from .blocks import BlockTables
from .model import LayerSource, RankLayers
from .staging import HostCopier, StagingBudget
from .transfer import Chunk, ReadError, RowsWanted, Transfer, read_rows
from .window import first_window_row

__all__ = [
    "BlockTables",
    "Chunk",
    "HostCopier",
    "LayerSource",
    "RankLayers",
    "ReadError",
    "RowsWanted",
    "StagingBudget",
    "Transfer",
    "first_window_row",
    "read_rows",
]
