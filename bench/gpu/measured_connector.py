"""The connector as it is, but the most host memory that it ever stages is written to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from muser_vllm.connector import MuserConnector

_STAGING_FILE = "MUSER_CHECK_STAGING_FILE"
_PINNED_PEAKS = ("active_bytes.peak", "allocated_bytes.peak")


class MeasuredConnector(MuserConnector):
    """Staging only grows before a step, so that is when it is looked at."""

    _peak = -1

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        super().handle_preemptions(kv_connector_metadata)
        staged = self._own_rank.half.staged_bytes
        if staged > self._peak:
            self._peak = staged
            figures = {"stagedBytesPeak": staged, **_pinned_memory()}
            Path(os.environ[_STAGING_FILE]).write_text(json.dumps(figures), "utf-8")


def _pinned_memory() -> dict[str, int]:
    """Of PyTorch's pinned allocator, which rounds up and keeps what was freed; empty without a GPU."""
    if not torch.cuda.is_available():
        return {}
    found = torch.cuda.host_memory_stats()
    return {f"pinned.{name}": int(found[name]) for name in _PINNED_PEAKS if name in found}
