"""Host memory in which window rows wait until they are sent, and the way there."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ..layout import RowReader, Slots

Ready = Callable[[], bool]
"""Whether everything that was queued before has been done. Never blocks."""


class StagingBudget:
    """Counts bytes, so that a slow reader cannot fill the host's memory. Only the engine's thread takes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return self.limit - self.used

    @property
    def behind(self) -> bool:
        """More than half waits: the reader does not keep up."""
        return 2 * self.used > self.limit

    def take(self, count: int) -> bool:
        with self._lock:
            if count > self.free:
                return False
            self.used += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self.used -= count


class HostCopier:
    """Copies rows from a cache into host memory.

    On a GPU the gather is queued on the current (compute) stream, because vLLM reuses the blocks in the next step; only
    the copy to pinned memory goes on a stream of its own.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _stream_on(device)
        # Reads must not queue behind copies that wait for the step under way.
        self._reads = _stream_on(device)

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=self._stream is not None)

    def copy(self, reader: RowReader, which: int, slots: Slots, target: torch.Tensor) -> None:
        """Fills `target` (tokens, heads, dimension); complete when `mark` taken afterwards says so."""
        if self._stream is None:
            reader.read_into(which, slots, target)
            return
        rows = reader.read(which, slots)
        self._stream.wait_stream(torch.cuda.current_stream(reader.device))
        with torch.cuda.stream(self._stream):
            target.copy_(rows, non_blocking=True)
        rows.record_stream(self._stream)

    def mark(self) -> Ready:
        """Ready when what the compute stream and the copies were given so far is done."""
        if self._stream is None:
            return _always
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event.query

    def wait(self) -> None:
        """Blocks until every `copy` so far is complete."""
        if self._stream is not None:
            self._stream.synchronize()

    def read_now(self, reader: RowReader, which: int, slots: Slots, target: torch.Tensor) -> None:
        """As `copy`, complete on return, and without waiting for the compute stream: the rows are long written."""
        if self._reads is None:
            reader.read_into(which, slots, target)
            return
        with torch.cuda.stream(self._reads):
            target.copy_(reader.read(which, slots), non_blocking=True)
            self._reads.synchronize()


def _stream_on(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _always() -> bool:
    return True
