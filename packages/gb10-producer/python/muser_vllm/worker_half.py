"""The half of the connector in every rank's process: takes rows out of the paged cache and serves the producer's reads.

Window rows are copied at the end of the step that computes them, before the next one is queued, because vLLM gives
their blocks away within the same request. Rows of global layers stay in the cache and are read by block id when the
producer asks: those blocks live until this half lets go of the request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .data_link import Answer, DataLink
from .frames import schema
from .metadata import EndReason, FinishedRequest, StepMetadata, StepRange
from .rows import (
    BlockTables,
    Chunk,
    HostCopier,
    RankLayers,
    ReadError,
    RowsWanted,
    StagingBudget,
    Transfer,
    first_window_row,
    read_rows,
)
from .rows.staging import Ready
from .self_test import SelfTest

_IDLE_WAIT_SECONDS = 0.004
"""While only sending is left, vLLM steps in a loop; waiting here leaves the processor to the sending."""


@dataclass(frozen=True)
class WorkerOptions:
    staging_bytes: int
    lease_seconds: float


class WorkerHalf:
    """vLLM's thread calls `begin_step`, `end_step` and `finished`; the link's threads call the rest. vLLM's thread
    waits neither for the GPU nor for a lock that is held while rows are copied or sent.

    Order of locks: a transfer's, then `_lock`.
    """

    def __init__(
        self,
        layers: RankLayers,
        block_sizes: list[int],
        device: torch.device,
        options: WorkerOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layers = layers
        self._block_sizes = block_sizes
        self._options = options
        self._clock = clock
        self._copier = HostCopier(device)
        self._budget = StagingBudget(options.staging_bytes)
        self._most_bytes = schema().limits["payloadBytes"]
        self._lock = threading.Lock()
        self._transfers: dict[str, Transfer] = {}
        self._by_id: dict[str, Transfer] = {}
        self._lease_ends: dict[str, float] = {}
        self._planned: list[tuple[Transfer, Chunk]] = []
        self._idle = False
        self._last_step: Ready | None = None
        self._changed = threading.Event()
        self._self_test = SelfTest(layers)
        self._link: DataLink | None = None

    def attach(self, link: DataLink) -> None:
        self._link = link

    @property
    def self_tests(self) -> int:
        return self._self_test.passed

    @property
    def staged_bytes(self) -> int:
        """Host memory that holds rows: window and saved rows, and global ones taken out ahead of reads."""
        with self._lock:
            transfers = list(self._transfers.values())
        return self._budget.used + sum(transfer.ahead_bytes for transfer in transfers)

    # -- vLLM's thread -------------------------------------------------------------------------------------------

    def begin_step(self, metadata: StepMetadata) -> None:
        """Before the step overwrites any block that was freed for it."""
        self._idle = metadata.idle
        for finished in metadata.finished:
            self._on_finished(finished)
        for request in metadata.preempted:
            self._on_preempted(request)
        self._planned = []
        for step_range in metadata.ranges:
            self._plan(step_range)

    def end_step(self) -> None:
        """Everything of this step is queued, nothing of the next one: now its window rows are taken out, and its chunks
        become readable when the GPU has got so far."""
        planned, self._planned = self._planned, []
        for transfer, chunk in planned:
            self._take_window(transfer, chunk)
        if planned:
            self._last_step = self._copier.mark()
            for transfer, chunk in planned:
                self._announce(transfer, chunk, self._last_step)
        elif self._idle and self._lease_ends and (self._last_step is None or self._last_step.query()):
            self._changed.wait(_IDLE_WAIT_SECONDS)
            self._changed.clear()

    def finished(self) -> set[str]:
        """vLLM's ids of requests whose blocks may be freed now, each once."""
        free = set()
        for request, lease_end in list(self._lease_ends.items()):
            transfer = self._transfers[request]
            if self._clock() >= lease_end:
                self._close(transfer, "LEASE_EXPIRED")
            if transfer.closed is not None:
                free.add(request)
                del self._lease_ends[request]
                self._forget(request)
        return free

    def shutdown(self) -> None:
        for transfer in list(self._transfers.values()):
            self._close(transfer, "ENGINE_FAILED")
        if self._link is not None:
            self._link.close()

    def _plan(self, step_range: StepRange) -> None:
        transfer = self._transfers.get(step_range.request)
        if transfer is None:
            transfer = self._open(step_range)
        with transfer.lock:
            transfer.tables.add(step_range.blocks, replaced=step_range.replaced)
        if transfer.closed is None and step_range.start > transfer.announced_end:
            self._take_cached(transfer, min(step_range.start, transfer.spec.end))
        start = max(step_range.start, transfer.announced_end)
        end = min(step_range.end, transfer.spec.end)
        if transfer.closed is None and start < end:
            chunk = self._add_chunk(transfer, start, end, window_from=start)
            if chunk is not None:
                self._planned.append((transfer, chunk))

    def _open(self, step_range: StepRange) -> Transfer:
        transfer = Transfer(step_range.spec, self._layers, BlockTables(self._block_sizes))
        with self._lock:
            self._transfers[step_range.request] = transfer
            self._by_id[step_range.spec.id] = transfer
        return transfer

    def _take_cached(self, transfer: Transfer, end: int) -> None:
        """Rows up to `end` come from vLLM's prefix cache: they are in their blocks before this step computes."""
        lowest = max(transfer.announced_end, end - self._layers.window_tokens)
        groups = self._layers.window_groups
        present = max((transfer.tables.first_present(rows.group, lowest, end) for rows in groups), default=end)
        chunk = self._add_chunk(transfer, transfer.announced_end, end, window_from=present)
        if chunk is None:
            return
        self._take_window(transfer, chunk)
        self._announce(transfer, chunk, self._copier.mark())

    def _take_window(self, transfer: Transfer, chunk: Chunk) -> None:
        with transfer.lock:
            if transfer.closed is None:
                transfer.take_window(chunk, self._copier)

    def _add_chunk(self, transfer: Transfer, start: int, end: int, window_from: int) -> Chunk | None:
        """None when the transfer had to be closed."""
        if not all(transfer.tables.holds(rows.group, start, end) for rows in self._layers.global_groups):
            self._close(transfer, "ENGINE_FAILED")
            return None
        window_start = first_window_row(
            start=window_from,
            end=end,
            window=self._layers.window_tokens,
            export_end=transfer.spec.end,
            row_bytes=self._layers.window_row_bytes,
            free=self._budget.free,
            short=self._budget.short,
        )
        if window_start is None:
            self._close(transfer, "STAGING_FULL")
            return None
        with transfer.lock:
            if transfer.closed is not None:
                return None
            chunk = transfer.add_chunk(start, end, window_start)
            transfer.allocate_window(chunk, self._copier, self._budget)
        return chunk

    def _announce(self, transfer: Transfer, chunk: Chunk, ready: Ready | None) -> None:
        spec = transfer.spec
        if spec.self_test:
            self._self_test.check(transfer, chunk, self._copier)
            return
        header = {
            "id": spec.id,
            "index": chunk.index,
            "start": chunk.start,
            "end": chunk.end,
            # A rank without window layers has all that are asked of it; another rank's may be missing.
            "windowStart": chunk.window_start if self._layers.window_layers else chunk.start,
        }
        with transfer.lock:
            if transfer.closed is None:
                self._post("chunk", header, ready)

    def _on_finished(self, finished: FinishedRequest) -> None:
        transfer = self._transfers[finished.request]
        if finished.failure is not None:
            self._close(transfer, finished.failure)
        elif transfer.spec.self_test:
            self._close(transfer, "DONE")
        elif transfer.announced_end < transfer.spec.end:
            self._close(transfer, "ENGINE_FAILED")
        self._lease_ends[finished.request] = self._clock() + self._options.lease_seconds

    def _on_preempted(self, request: str) -> None:
        """Its blocks are free already and may be overwritten by this step."""
        transfer = self._transfers.get(request)
        if transfer is None:
            return
        with transfer.lock:
            saved = transfer.closed is not None or transfer.save_before_loss(self._copier, self._budget)
        if not saved:
            self._close(transfer, "PREEMPTED")

    def _forget(self, request: str) -> None:
        with self._lock:
            transfer = self._transfers.pop(request)
            if self._by_id.get(transfer.spec.id) is transfer:
                del self._by_id[transfer.spec.id]

    # -- both ----------------------------------------------------------------------------------------------------

    def _close(self, transfer: Transfer, reason: EndReason) -> None:
        with transfer.lock:
            if transfer.closed is not None:
                return
            transfer.close(reason, self._budget)
            if not transfer.spec.self_test:
                self._post("ended", {"id": transfer.spec.id, "reason": reason})
        self._changed.set()

    def _post(self, kind: str, header: dict[str, Any], ready: Ready | None = None) -> None:
        if self._link is not None:
            self._link.post(kind, header, ready)

    def _find(self, id_: str) -> Transfer | None:
        with self._lock:
            return self._by_id.get(id_)

    # -- the link's threads --------------------------------------------------------------------------------------

    def read(self, header: dict[str, Any]) -> Answer:
        number = header["read"]
        transfer = self._find(header["id"])
        try:
            if transfer is None:
                raise ReadError("UNKNOWN")
            wanted = RowsWanted(header["index"], header["tokenStart"], header["tokenCount"], header["parts"])
            rows = read_rows(transfer, wanted, self._copier, self._most_bytes)
        except ReadError as error:
            return "failed", {"read": number, "code": error.code}, []
        return "rows", {"read": number}, [part.view(torch.uint8).reshape(-1).numpy().data for part in rows]

    def release(self, id_: str, index: int) -> None:
        transfer = self._find(id_)
        if transfer is not None:
            with transfer.lock:
                transfer.release(index, self._budget)

    def done(self, id_: str) -> None:
        transfer = self._find(id_)
        if transfer is not None:
            self._close(transfer, "DONE")

    def close_all(self) -> None:
        """The producer is gone: nobody will read."""
        with self._lock:
            transfers = list(self._transfers.values())
        for transfer in transfers:
            self._close(transfer, "ENGINE_FAILED")
