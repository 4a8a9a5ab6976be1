"""Host memory in which window rows wait until they are sent, and the way there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..layout import Slots
from .model import GroupRows


class Ready(Protocol):
    """A point in what was queued for the GPU: a `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether everything before has been done. Never blocks."""

    def synchronize(self) -> None:
        """Blocks until then, without holding the interpreter."""


@dataclass(frozen=True)
class Piece:
    """Rows that lie in the same slots: those of a group's layers at the places [first, end)."""

    rows: GroupRows
    slots: Slots
    first: int
    end: int


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
    def short(self) -> bool:
        """More than half is taken: the rest is kept for rows that the decode needs."""
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
    """Copies rows from the caches into host memory.

    For the rows of a step the gather is queued on the current (compute) stream, because vLLM reuses the blocks in the
    next step; only the copy to pinned memory goes on a stream of its own. vLLM's thread waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_gpu = device.type == "cuda"
        self._copies = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        # Reads must not queue behind copies that wait for the step under way, nor for room among its kernels.
        self._reads = torch.cuda.Stream(device, priority=-1) if on_gpu else None  # type: ignore[no-untyped-call]

    def allocate(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, pin_memory=self._copies is not None)

    def stage(self, pieces: Sequence[Piece], target: torch.Tensor) -> None:
        """Fills `target` (layers, 2, tokens, heads, dimension) with the pieces, one behind the other; complete when
        `mark` taken afterwards says so."""
        if self._copies is None:
            _gather(pieces, target)
            return
        scratch = torch.empty(target.shape, dtype=target.dtype, device=self._device)
        _gather(pieces, scratch)
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            target.copy_(scratch, non_blocking=True)
        scratch.record_stream(self._copies)

    def mark(self) -> Ready | None:
        """What the compute stream and `stage` were given so far; None: it is done already."""
        if self._copies is None:
            return None
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        event: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._copies)
        return event

    def fetch(self, pieces: Sequence[Piece], shape: tuple[int, ...]) -> torch.Tensor:
        """As `stage`, but complete on return, and without waiting for the compute stream: the rows are long written."""
        if self._reads is None:
            target = self.allocate(shape)
            _gather(pieces, target)
            return target
        with torch.cuda.stream(self._reads):
            target = self.allocate(shape)
            scratch = torch.empty(shape, dtype=target.dtype, device=self._device)
            _gather(pieces, scratch)
            target.copy_(scratch, non_blocking=True)
            done: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._reads)
        done.synchronize()
        return target


def _gather(pieces: Sequence[Piece], target: torch.Tensor) -> None:
    at = 0
    for piece in pieces:
        count = piece.end - piece.first
        piece.rows.read_into(piece.slots, target[at : at + count], piece.first, piece.end)
        at += count
