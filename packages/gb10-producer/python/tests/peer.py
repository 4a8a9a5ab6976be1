"""The producer's part of the bridge, for tests: listens, starts the worker, reads rows as the producer would."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from muser_vllm.frames import Frame, body_length, decode_body, encode

MODEL = Path(__file__).parents[4] / "models" / "muse-nano" / "hf"
DEADLINE = 240.0


class Link:
    """One connection. Frames go to a queue, a None at its end."""

    def __init__(self, connection: socket.socket, name: Any) -> None:
        self.socket = connection
        self.name = name
        self.frames: queue.Queue[Frame | None] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                length = body_length(self._exactly(4))
                self.frames.put(decode_body(memoryview(self._exactly(length)), self.name, "worker"))
        except (OSError, EOFError):
            self.frames.put(None)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def send(self, kind: str, header: dict[str, Any], payload: bytes = b"") -> None:
        self.socket.sendall(encode(kind, header, payload))

    def next(self, timeout: float = DEADLINE) -> Frame | None:
        return self.frames.get(timeout=timeout)

    def close(self) -> None:
        self.socket.close()


class Received:
    """One transfer's rows: [layer][which] -> {first row: (tokens, heads, dimension)}."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, int]] = []
        self.rows: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}
        self.finished: dict[str, Any] | None = None
        self.ended: str | None = None

    def of(self, layer: int, which: int) -> tuple[int, torch.Tensor]:
        pieces = sorted(self.rows[layer, which], key=lambda piece: piece[0])
        return pieces[0][0], torch.cat([rows for _, rows in pieces])


class Peer:
    def __init__(self, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="muser-"))
        self.secret = secrets.token_hex(32)
        self._listeners = {name: self._listen(name) for name in ("control", "data")}
        self.settings = {
            "controlSocket": str(self.folder / "control.sock"),
            "dataSocket": str(self.folder / "data.sock"),
            "secret": self.secret,
            "modelPath": str(MODEL),
            "maxPromptTokens": 4096,
            "chunkTokens": 512,
            "maxConcurrent": 4,
            "kvCacheBytes": 256 * 2**20,
            "stagingBytes": None,
            "leaseMs": 30_000,
            "tensorParallel": 1,
            "pipelineParallel": 1,
            "attentionBackend": None,
            "enforceEager": True,
            "gpuMemoryUtilization": None,
            "threads": 1,
            **settings,
        }
        self.command = [sys.executable, "-m", "muser_vllm.worker"]
        self.log = self.folder / "log"
        self.milestones: dict[str, int] = {}
        self.heartbeats: list[dict[str, int]] = []
        self.ends: dict[str, int] = {}
        self.control: Any = None
        self.data: Any = None
        self.spawned = False
        self._reads = 0
        self._ids = 0

    def _listen(self, name: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.folder / f"{name}.sock"))
        listener.listen(8)
        listener.settimeout(1)
        return listener

    def spawn(self) -> None:
        self.spawned = True
        package = str(Path(__file__).parents[1])
        environment = {"VLLM_LOGGING_LEVEL": "WARNING", **os.environ, "PYTHONPATH": package}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["/usr/bin/env", "nice", "-n", "5", *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self.settings).encode() + b"\n")
        self.process.stdin.flush()

    def accept(self, name: str) -> tuple[Link, dict[str, Any]]:
        connection = self._connection(name)
        connection.settimeout(None)
        link = Link(connection, name)
        hello = link.next()
        assert hello is not None, self.log_text()
        assert hello.kind == "hello"
        assert hello.header["secret"] == self.secret
        return link, hello.header

    def _connection(self, name: str) -> socket.socket:
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                return self._listeners[name].accept()[0]
        raise AssertionError(f"nobody dialled {name}.sock\n{self.log_text()}")

    def start(self) -> dict[str, Any]:
        if not self.spawned:
            self.spawn()
        self.control, _ = self.accept("control")
        self.data, self.hello = self.accept("data")
        self.ready = self.next_control("ready").header
        # The engine's own stages come by the other socket, so perhaps a moment later.
        while "kv_cache" not in self.milestones:
            frame = self.data.next()
            assert frame is not None, self.log_text()
            self.milestones[frame.header["name"]] = frame.header["ms"]
        return self.ready

    def next_control(self, *kinds: str) -> Frame:
        """Keeps milestones and heartbeats, answers the first frame of another kind."""
        while True:
            frame = self.control.next()
            assert frame is not None, self.log_text()
            if frame.kind == "milestone":
                self.milestones[frame.header["name"]] = frame.header["ms"]
            elif frame.kind == "heartbeat":
                self.heartbeats.append(frame.header)
            else:
                assert frame.kind in kinds, (frame.kind, frame.header)
                return frame

    def next_data(self) -> Frame:
        frame = self.data.next()
        assert frame is not None, self.log_text()
        return frame

    def new_id(self) -> str:
        self._ids += 1
        return f"t{self._ids}"

    def send_prefill(self, tokens: list[int], held: int = 0, scope: str = "a", id_: str | None = None) -> str:
        id_ = id_ or self.new_id()
        header = {"id": id_, "heldTokens": held, "cacheScope": scope}
        self.control.send("prefill", header, struct.pack(f"<{len(tokens)}I", *tokens))
        return id_

    def read(self, id_: str, index: int, start: int, count: int, parts: list[list[int]]) -> int:
        self._reads += 1
        header = {"read": self._reads, "id": id_, "index": index, "tokenStart": start, "tokenCount": count}
        self.data.send("read", {**header, "parts": parts})
        return self._reads

    def rows_of(self, payload: memoryview, parts: int, count: int) -> torch.Tensor:
        geometry = self.ready["geometry"]
        first, end = self.hello["heads"]
        rows = torch.frombuffer(bytearray(payload), dtype=torch.bfloat16)
        return rows.view(parts, count, end - first, geometry["headDimension"])

    def shards(self, chunk: dict[str, int]) -> list[tuple[int, int, list[list[int]]]]:
        """(first token, tokens, parts) as the producer divides a chunk."""
        kinds = self.ready["geometry"]["layers"]
        first, end = self.hello["layers"]
        result = []
        for kind, start in (("global", chunk["start"]), ("window", chunk["windowStart"])):
            parts = [[layer, which] for layer in range(first, end) if kinds[layer] == kind for which in (0, 1)]
            if start < chunk["end"]:
                result.append((start, chunk["end"] - start, parts))
        return result

    def collect(  # noqa: C901 - one loop over what can come
        self, ids: list[str], *, done: bool = True, release: bool = True
    ) -> dict[str, Received]:
        """Reads every chunk of these transfers until each has all rows or has ended, and its `finished` is there."""
        received = {id_: Received() for id_ in ids}
        waiting: dict[int, tuple[str, int, int, list[list[int]]]] = {}
        left: dict[tuple[str, int], int] = {}
        while any(r.ended is None and not self._complete(id_, r) for id_, r in received.items()) or waiting:
            frame = self.next_data()
            header = frame.header
            if frame.kind == "chunk":
                received[header["id"]].chunks.append(header)
                shards = self.shards(header)
                left[header["id"], header["index"]] = len(shards)
                for start, count, parts in shards:
                    number = self.read(header["id"], header["index"], start, count, parts)
                    waiting[number] = (header["id"], header["index"], start, parts)
            elif frame.kind == "rows":
                id_, index, start, parts = waiting.pop(header["read"])
                count = len(frame.payload) // (2 * len(parts) * self._row_elements())
                for part, rows in zip(parts, self.rows_of(frame.payload, len(parts), count), strict=True):
                    received[id_].rows.setdefault((part[0], part[1]), []).append((start, rows))
                left[id_, index] -= 1
                if release and left[id_, index] == 0:
                    self.data.send("release", {"id": id_, "index": index})
            elif frame.kind == "failed":
                del waiting[header["read"]]
            else:
                assert frame.kind == "ended", frame.kind
                received[header["id"]].ended = header["reason"]
        while any(r.finished is None for r in received.values()):
            header = self.next_control("finished").header
            received[header["id"]].finished = header
        if done:
            for id_, result in received.items():
                self.done(id_, result)
        return received

    def done(self, id_: str, result: Received) -> None:
        if result.ended is not None:
            return
        self.data.send("done", {"id": id_})
        frame = self.next_data()
        assert (frame.kind, frame.header) == ("ended", {"id": id_, "reason": "DONE"})
        result.ended = "DONE"

    def _row_elements(self) -> int:
        first, end = self.hello["heads"]
        return int((end - first) * self.ready["geometry"]["headDimension"])

    def _complete(self, id_: str, received: Received) -> bool:
        return bool(received.chunks) and received.chunks[-1]["end"] == self.ends[id_]

    def run(self, tokens: list[int], held: int = 0, scope: str = "a", **options: Any) -> Received:
        return self.run_all([(tokens, held, scope)], **options)[0]

    def run_all(self, prompts: list[tuple[list[int], int, str]], **options: Any) -> list[Received]:
        ids = []
        for tokens, held, scope in prompts:
            id_ = self.new_id()
            self.ends[id_] = len(tokens) - 1
            ids.append(self.send_prefill(tokens, held, scope, id_))
        received = self.collect(ids, **options)
        return [received[id_] for id_ in ids]

    def log_text(self) -> str:
        return self.log.read_text("utf-8", "replace")[-6000:]

    def descendants(self) -> list[int]:
        import psutil  # noqa: PLC0415

        children = psutil.Process(self.process.pid).children(recursive=True)
        return [self.process.pid, *(child.pid for child in children)]

    def wait_for_child(self) -> list[int]:
        """Until the worker has started a process, which is the engine or on the way to it."""
        end = time.monotonic() + DEADLINE
        while len(pids := self.descendants()) < 2:
            assert time.monotonic() < end, self.log_text()
            time.sleep(0.05)
        return pids

    def close_all(self) -> None:
        """What the kernel does with a producer that is killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        for link in (self.control, self.data):
            if link is not None:
                link.socket.shutdown(socket.SHUT_RDWR)
                link.close()
        for listener in self._listeners.values():
            listener.close()

    def wait_gone(self, pids: list[int], seconds: float = 30) -> None:
        import psutil  # noqa: PLC0415

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            alive = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
            if not alive:
                return
            time.sleep(0.1)
        raise AssertionError(f"still alive: {alive}\n{self.log_text()}")

    def stop(self) -> int:
        """By the end of standard input."""
        assert self.process.stdin is not None
        if self.process.poll() is None:
            self.process.stdin.close()
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            raise AssertionError(f"the worker did not end\n{self.log_text()}") from None
        self.cleanup()
        return status

    def cleanup(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()
        for listener in self._listeners.values():
            listener.close()
        shutil.rmtree(self.folder)
