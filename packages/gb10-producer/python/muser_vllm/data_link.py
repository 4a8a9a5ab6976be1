"""A rank's connection to the producer process: threads of its own, so that a slow reader never stops the engine.

They share the interpreter with vLLM's thread, so they do little in Python: one call takes all frames that have come,
one call sends all of an answer, and waiting for the GPU is done by CUDA, not by asking again and again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from .failures import kind_of
from .frames import PREFIX_BYTES, Frame, FrameError, body_length, decode_body, encode, encode_head, schema
from .rows.staging import Ready

_RECEIVE_BYTES = 64 * 1024
_SEND_BUFFER_BYTES = 4 << 20
_PARTS_A_CALL = 512

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
        # As much of it as the system allows: each time it is full, sending stops for a moment.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._changed = threading.Condition()
        self._unready: deque[tuple[bytes, Ready | None]] = deque()
        self._outbox: deque[bytes] = deque()
        self._reads: deque[dict[str, Any]] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=name, daemon=True)
            for name, work in (
                ("muser-receive", self._receive),
                ("muser-send", self._send),
                ("muser-order", self._order),
            )
        ]
        for thread in self._threads:
            thread.start()

    def post(self, kind: str, header: dict[str, Any], ready: Ready | None = None) -> None:
        """Never blocks. The frame leaves when `ready` says so, and none given later leaves before it."""
        frame = encode(kind, header)
        with self._changed:
            if self._closed:
                return
            if ready is None and not self._unready:
                self._outbox.append(frame)
            else:
                self._unready.append((frame, ready))
            self._changed.notify_all()

    def close(self) -> None:
        """What waits is sent if the peer takes it within a second."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
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
        except Exception as error:  # whatever it is: without this thread nobody would answer the producer any more
            with self._changed:
                first = not self._closed
                self._closed = True
                self._changed.notify_all()
            if first:
                self._shut()
                own = isinstance(error, OSError | FrameError | EOFError)
                self._handler.link_lost(f"{kind_of(error)}: {error}" if own else kind_of(error))

    def _receive(self) -> None:
        buffer = bytearray()
        block = memoryview(bytearray(_RECEIVE_BYTES))
        while not self._closed:
            count = self._socket.recv_into(block)
            if count == 0:
                raise EOFError("the producer closed the connection")
            buffer += block[:count]
            self._take_all(buffer)

    def _take_all(self, buffer: bytearray) -> None:
        """Takes the whole frames at the buffer's start out of it."""
        at = 0
        while len(buffer) - at >= PREFIX_BYTES:
            end = at + PREFIX_BYTES + body_length(bytes(buffer[at : at + PREFIX_BYTES]))
            if end > len(buffer):
                break
            self._take(decode_body(memoryview(bytes(buffer[at + PREFIX_BYTES : end])), "data", "node"))
            at = end
        del buffer[:at]

    def _take(self, frame: Frame) -> None:
        if frame.kind == "read":
            with self._changed:
                if len(self._reads) >= schema().limits["pendingReads"]:
                    raise FrameError("KIND_UNEXPECTED", "too many reads wait for an answer")
                self._reads.append(frame.header)
                self._changed.notify_all()
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
                if self._outbox:
                    return self._outbox.popleft()
                if self._closed:
                    return None
                if self._reads:
                    return self._reads.popleft()
                self._changed.wait()

    def _order(self) -> None:
        """Lets frames go when the GPU has got so far, in their order."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unready or self._closed)
                if self._closed:
                    return
                frame, ready = self._unready[0]
            if ready is not None:
                ready.synchronize()
            with self._changed:
                self._unready.popleft()
                self._outbox.append(frame)
                self._changed.notify_all()

    def _send_parts(self, parts: list[memoryview]) -> None:
        """Without joining them: rows in host memory are copied by the kernel only."""
        queue = deque(part.cast("B") for part in parts)
        while queue:
            sent = self._socket.sendmsg(list(islice(queue, _PARTS_A_CALL)))
            while queue and sent >= len(queue[0]):
                sent -= len(queue.popleft())
            if sent:
                queue[0] = queue[0][sent:]
