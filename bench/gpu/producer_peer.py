"""The producer's part of the bridge, for the checks: starts workers, reads their rows as they come, and takes times."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from engine_without_connector import write_batch

_PYTHON = Path(__file__).resolve().parents[2] / "packages" / "gb10-producer" / "python"
sys.path[:0] = [str(_PYTHON), str(_PYTHON / "tests")]

from peer import Peer  # noqa: E402 - found by the line above

_HERE = Path(__file__).resolve().parent
_LOG_BYTES = 6000
_SHARD_BYTES = 1 << 20


class CheckFailed(Exception):  # noqa: N818 - it reads as what happened
    pass


def first_window_row(ready: dict[str, Any], start: int, end: int) -> int:
    return max(start, end - int(ready["geometry"]["windowTokens"]))


def _environment(log: Path) -> dict[str, str]:
    """Engines that start at once must not write into each other's cache of compiled code."""
    return {**os.environ, "VLLM_CACHE_ROOT": str(log.with_suffix(".cache"))}


def _note_process(log: Path, pid: int) -> None:
    """For check_gpu.py: an engine that is starting would outlive checks that crash."""
    log.with_suffix(".pid").write_text(str(pid), "ascii")


class Transfer:
    """One prefill's chunks and rows.

    :ivar chunk_delays: (bytes, seconds from the `chunk` frame to its last row) of every chunk
    :ivar computed_at: when `finished` came; :ivar read_at: when the last row had been read (`time.perf_counter()`)
    """

    def __init__(self, id_: str, held: int, end: int) -> None:
        self.id = id_
        self.held = held
        self.end = end
        self.chunks: list[dict[str, int]] = []
        self.chunk_delays: list[tuple[int, float]] = []
        self.finished: dict[str, Any] = {}
        self.ended: str | None = None
        self.computed_at = 0.0
        self.read_at = 0.0
        self._pieces: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}

    @property
    def complete(self) -> bool:
        return bool(self.chunks) and self.chunks[-1]["end"] == self.end

    def add(self, layer: int, which: int, start: int, rows: torch.Tensor) -> None:
        self._pieces.setdefault((layer, which), []).append((start, rows))

    def rows(self, layer: int, which: int, start: int, end: int) -> torch.Tensor:
        """(tokens, heads, dimension). :raises CheckFailed: not every row came"""
        pieces = []
        at = start
        for first, rows in sorted(self._pieces.get((layer, which), []), key=lambda piece: piece[0]):
            if first <= at < first + len(rows):
                pieces.append(rows[at - first : end - first])
                at = min(end, first + len(rows))
        if at != end:
            raise CheckFailed(f"layer {layer} {'KV'[which]}: rows [{start}, {end}) end at {at}")
        return torch.cat(pieces)


class ProducerPeer(Peer):
    """:param script: what is started instead of `-m muser_vllm.worker`; :param patience: seconds without any frame"""

    def __init__(self, logs: Path, name: str, patience: float, script: Path | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.patience = patience
        self._script = script
        self._kept_log = logs / f"{name}.log"
        self._finished: queue.Queue[tuple[float, dict[str, Any]] | None] = queue.Queue()
        self._finished_early: dict[str, tuple[float, dict[str, Any]]] = {}

    def spawn(self) -> None:
        program = ["-m", "muser_vllm.worker"] if self._script is None else [str(self._script)]
        with self._kept_log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(self._kept_log),
                start_new_session=True,
            )
        _note_process(self._kept_log, self.process.pid)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self.settings).encode() + b"\n")
        self.process.stdin.flush()

    def start(self) -> dict[str, Any]:
        started_at = time.monotonic()
        super().start()
        self.start_seconds = round(time.monotonic() - started_at, 1)
        threading.Thread(target=self._watch_control, daemon=True).start()
        return self.ready

    def _watch_control(self) -> None:
        """Takes the time at which `finished` comes, whatever the reader of rows is doing."""
        while (frame := self.control.frames.get()) is not None:
            if frame.kind == "finished":
                self._finished.put((time.perf_counter(), frame.header))
        self._finished.put(None)

    def log_text(self) -> str:
        return self._kept_log.read_text("utf-8", "replace")[-_LOG_BYTES:]

    def shards(self, chunk: dict[str, int]) -> list[tuple[int, int, list[list[int]]]]:
        """As the base's, divided as the producer divides them: each is at most a shard of the hand-off protocol."""
        divided = []
        for start, count, parts in super().shards(chunk):
            row_bytes = 2 * self._row_elements()
            pieces = -(-count * row_bytes // _SHARD_BYTES)
            cuts = [start + count * piece // pieces for piece in range(pieces + 1)]
            for first, end in pairwise(cuts):
                most = max(1, _SHARD_BYTES // (row_bytes * (end - first)))
                divided += [(first, end - first, parts[at : at + most]) for at in range(0, len(parts), most)]
        return divided

    def prefill(self, tokens: list[int], scope: str, held: int = 0) -> Transfer:
        transfer = Transfer(self.new_id(), held, len(tokens) - 1)
        self.send_prefill(tokens, held, scope, transfer.id)
        return transfer

    def run(self, tokens: list[int], scope: str, held: int = 0) -> Transfer:
        return self.read_all([self.prefill(tokens, scope, held)])[0]

    def read_all(self, transfers: list[Transfer], *, keep: bool = True) -> list[Transfer]:
        """Reads every chunk as it comes; says `done` for each transfer when its last row was read.

        :param keep: false: rows are read and dropped, for timing
        :raises CheckFailed: a transfer ended otherwise, or nothing came for too long
        """
        reader = _Reader(self, transfers, keep)
        while any(transfer.ended is None for transfer in transfers):
            reader.take(self._next_frame())
        for transfer in transfers:
            self.wait_finished(transfer)
            if transfer.ended != "DONE" or not transfer.finished["ok"]:
                raise CheckFailed(f"a transfer ended with {transfer.ended}, {transfer.finished}")
        return transfers

    def _next_frame(self) -> Any:
        try:
            frame = self.data.next(self.patience)
        except queue.Empty:
            raise CheckFailed(f"no frame for {self.patience} s\n{self.log_text()}") from None
        if frame is None:
            raise CheckFailed(f"the data link has ended\n{self.log_text()}")
        return frame

    def next_chunk(self) -> None:
        """Waits until some chunk, which is dropped, can be read."""
        while self._next_frame().kind != "chunk":
            pass

    def wait_ended(self, transfer: Transfer) -> None:
        while transfer.ended is None:
            frame = self._next_frame()
            if frame.kind == "ended" and frame.header["id"] == transfer.id:
                transfer.ended = frame.header["reason"]

    def wait_finished(self, transfer: Transfer) -> None:
        while transfer.id not in self._finished_early:
            try:
                found = self._finished.get(timeout=self.patience)
            except queue.Empty:
                raise CheckFailed(f"not finished after {self.patience} s\n{self.log_text()}") from None
            if found is None:
                raise CheckFailed(f"the control link has ended\n{self.log_text()}")
            self._finished_early[found[1]["id"]] = found
        transfer.computed_at, transfer.finished = self._finished_early.pop(transfer.id)


class _Reader:
    """Asks for the rows of every chunk of some transfers and keeps account of what is on its way."""

    def __init__(self, peer: ProducerPeer, transfers: list[Transfer], keep: bool) -> None:
        self._peer = peer
        self._by_id = {transfer.id: transfer for transfer in transfers}
        self._keep = keep
        self._reads: dict[int, tuple[str, int, int, int, list[list[int]]]] = {}
        self._left: dict[tuple[str, int], tuple[int, int, float]] = {}

    def take(self, frame: Any) -> None:
        header = frame.header
        if frame.kind == "chunk":
            self._on_chunk(header)
        elif frame.kind == "rows":
            self._on_rows(header["read"], frame.payload)
        elif frame.kind == "ended" and header["id"] in self._by_id:
            self._by_id[header["id"]].ended = header["reason"]
        elif frame.kind == "failed":
            raise CheckFailed(f"a read failed with {header['code']}")

    def _on_chunk(self, chunk: dict[str, Any]) -> None:
        now = time.perf_counter()
        id_, index = chunk["id"], chunk["index"]
        if id_ not in self._by_id:
            return
        self._by_id[id_].chunks.append(chunk)
        shards = self._peer.shards(chunk)
        self._left[id_, index] = (len(shards), 0, now)
        for start, count, parts in shards:
            self._reads[self._peer.read(id_, index, start, count, parts)] = (id_, index, start, count, parts)

    def _on_rows(self, read: int, payload: memoryview) -> None:
        now = time.perf_counter()
        id_, index, start, count, parts = self._reads.pop(read)
        transfer = self._by_id[id_]
        if self._keep:
            for part, rows in zip(parts, self._peer.rows_of(payload, len(parts), count), strict=True):
                transfer.add(part[0], part[1], start, rows)
        left, size, since = self._left[id_, index]
        self._left[id_, index] = (left - 1, size + len(payload), since)
        if left > 1:
            return
        transfer.chunk_delays.append((size + len(payload), now - since))
        self._peer.data.send("release", {"id": id_, "index": index})
        if transfer.complete and not any(read[0] == id_ for read in self._reads.values()):
            transfer.read_at = now
            self._peer.data.send("done", {"id": id_})


class PlainEngine:
    """`engine_without_connector.py` in a process of its own."""

    def __init__(self, logs: Path, name: str, settings: dict[str, Any], *options: str) -> None:
        self._log = logs / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(_HERE / "engine_without_connector.py"), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(self._log),
                start_new_session=True,
            )
        _note_process(self._log, self.process.pid)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self._stdin.write(json.dumps(settings).encode() + b"\n")
        self._stdin.flush()

    def wait_ready(self) -> None:
        self.start_seconds = self._answer()["seconds"]

    def prefill_seconds(self, prompts: list[list[int]]) -> float:
        started = time.perf_counter()
        write_batch(self._stdin, prompts)
        self._answer()
        return time.perf_counter() - started

    def _answer(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line:
            raise CheckFailed(f"vLLM without connector ended\n{self._log.read_text('utf-8', 'replace')[-_LOG_BYTES:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        self._stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
