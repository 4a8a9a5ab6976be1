"""Where an attention backend keeps each element of K and V, found by writing known rows, and how to read it back."""

from .forms import LayerLayout, LayoutError, Placement
from .joined import JoinedReader
from .probe import probe_layer
from .reader import RowReader
from .slots import Slots

__all__ = ["JoinedReader", "LayerLayout", "LayoutError", "Placement", "RowReader", "Slots", "probe_layer"]
