"""A rank's connection to the producer process: two threads, so that a slow reader never stops the engine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .frames import Frame, FrameError, body_length, decode_body, encode, encode_head, schema
from .rows.staging import Ready

Answer = tuple[str, dict[str, Any], Sequence[memoryview]]
"""Kind, header and payload parts of what is sent for a read."""


class DataHandler(Protocol):
    def read(self, header: dict[str, Any]) -> Answer:
        """Called on the link's sending thread; the payload is sent before the next call."""

    def release(self, id_: str, index: int) -> None: ...

    def done(self, id_: str) -> None: ...

    def link_lost(self, why: str) -> None:
        """Called once, unless `close` came first."""


class DataLink:
    """Frames in the order in which they were given; each may wait for the GPU. Reads are answered in order."""

    def __init__(self, path: str, hello: dict[str, Any], handler: DataHandler) -> None:
        """Connects and greets. :raises OSError: nobody listens"""
        self._handler = handler
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(schema().limits["helloTimeoutMs"] / 1000)
        self._socket.connect(path)
        self._socket.sendall(encode("hello", hello))
        self._socket.settimeout(None)
        self._changed = threading.Condition()
        self._outbox: deque[tuple[bytes, Ready | None]] = deque()
        self._reads: deque[dict[str, Any]] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (("muser-receive", self._receive), ("muser-send", self._send))
        ]
        for thread in self._threads:
            thread.start()

    def post(self, kind: str, header: dict[str, Any], ready: Ready | None = None) -> None:
        """Never blocks. The frame leaves when `ready` says so, and none given later leaves before it."""
        frame = encode(kind, header)
        with self._changed:
            if not self._closed:
                self._outbox.append((frame, ready))
                self._changed.notify()

    def close(self) -> None:
        """What waits is sent if the peer takes it within a second."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() not in self._threads:
            self._threads[1].join(timeout=1)
        self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):  # already gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, FrameError, EOFError) as error:
            with self._changed:
                first = not self._closed
                self._closed = True
                self._changed.notify()
            if first:
                self._shut()
                self._handler.link_lost(f"{type(error).__name__}: {error}")

    def _receive(self) -> None:
        prefix = bytearray(4)
        while not self._closed:
            self._fill(memoryview(prefix))
            body = bytearray(body_length(bytes(prefix)))
            self._fill(memoryview(body))
            self._take(decode_body(memoryview(body), "data", "node"))

    def _fill(self, target: memoryview) -> None:
        while len(target):
            count = self._socket.recv_into(target)
            if count == 0:
                raise EOFError("the producer closed the connection")
            target = target[count:]

    def _take(self, frame: Frame) -> None:
        if frame.kind == "read":
            with self._changed:
                if len(self._reads) >= schema().limits["pendingReads"]:
                    raise FrameError("KIND_UNEXPECTED", "too many reads wait for an answer")
                self._reads.append(frame.header)
                self._changed.notify()
        elif frame.kind == "release":
            self._handler.release(frame.header["id"], frame.header["index"])
        else:
            self._handler.done(frame.header["id"])

    def _send(self) -> None:
        while True:
            work = self._next()
            if work is None:
                return
            if isinstance(work, bytes):
                self._socket.sendall(work)
            else:
                kind, header, parts = self._handler.read(work)
                head = encode_head(kind, header, sum(part.nbytes for part in parts))
                self._send_parts([memoryview(head), *parts])

    def _next(self) -> bytes | dict[str, Any] | None:
        """Frames before reads: a chunk that can be read is news, and it is small."""
        with self._changed:
            while True:
                if self._outbox and (self._outbox[0][1] is None or self._outbox[0][1]()):
                    return self._outbox.popleft()[0]
                if self._closed:
                    return None
                if self._reads:
                    return self._reads.popleft()
                # A GPU event cannot wake anybody, so it is asked again soon.
                self._changed.wait(timeout=0.0005 if self._outbox else None)

    def _send_parts(self, parts: list[memoryview]) -> None:
        """Without joining them: rows in host memory are copied by the kernel only."""
        queue = deque(part.cast("B") for part in parts)
        while queue:
            sent = self._socket.sendmsg(list(queue)[:64])
            while queue and sent >= len(queue[0]):
                sent -= len(queue.popleft())
            if sent:
                queue[0] = queue[0][sent:]
