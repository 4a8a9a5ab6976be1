from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muser_vllm.data_link import Answer, DataLink
from muser_vllm.frames import Frame, body_length, decode_body, encode, schema

HELLO = {"role": "data", "secret": "ab" * 32, "pid": 1, "rank": 0, "layers": [0, 8], "heads": [0, 2]}


class Handler:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.lost = threading.Event()
        self.changed = threading.Condition()

    def read(self, header: dict[str, Any]) -> Answer:
        number = header["read"]
        if header["id"] == "none":
            return "failed", {"read": number, "code": "UNKNOWN"}, []
        parts = [
            memoryview(bytes([number % 256, i % 256]) * header["tokenCount"]) for i, _ in enumerate(header["parts"])
        ]
        return "rows", {"read": number}, parts

    def _note(self, *call: Any) -> None:
        with self.changed:
            self.calls.append(call)
            self.changed.notify_all()

    def release(self, id_: str, index: int) -> None:
        self._note("release", id_, index)

    def done(self, id_: str) -> None:
        self._note("done", id_)

    def link_lost(self, why: str) -> None:
        self._note("lost", why)
        self.lost.set()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.calls) >= count, timeout=10)


class Ready(threading.Event):
    """As a GPU's event."""

    def query(self) -> bool:
        return self.is_set()

    def synchronize(self) -> None:
        assert self.wait(10)


class Node:
    def __init__(self, folder: Path) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / "d"))
        self.listener.listen(1)
        self.handler = Handler()
        self.link = DataLink(str(folder / "d"), HELLO, self.handler)
        self.socket, _ = self.listener.accept()
        self.socket.settimeout(10)
        assert self.next().header == HELLO

    def next(self) -> Frame:
        length = body_length(self._exactly(4))
        return decode_body(memoryview(self._exactly(length)), "data", "worker")

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def read(self, number: int, id_: str = "a", count: int = 3, parts: int = 2) -> None:
        header = {"read": number, "id": id_, "index": 0, "tokenStart": 0, "tokenCount": count}
        self.socket.sendall(encode("read", {**header, "parts": [[0, 0]] * parts}))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.socket.close()
    node.link.close()
    node.listener.close()


def test_reads_are_answered_in_order(node: Node) -> None:
    for number in range(1, 20):
        node.read(number, id_="none" if number % 5 == 0 else "a")
    for number in range(1, 20):
        frame = node.next()
        assert frame.header["read"] == number
        assert frame.kind == ("failed" if number % 5 == 0 else "rows")
        if frame.kind == "rows":
            assert bytes(frame.payload) == bytes([number, 0]) * 3 + bytes([number, 1]) * 3


def test_many_parts_and_much_payload(node: Node) -> None:
    node.read(1, count=4096, parts=512)
    payload = node.next().payload
    assert len(payload) == 4 * 2**20
    assert payload[:2] == b"\1\0"
    assert payload[-2:] == b"\1\xff"


def test_frames_wait_for_the_gpu_and_keep_their_order(node: Node) -> None:
    ready = Ready()
    node.link.post("ended", {"id": "a", "reason": "DONE"}, ready)
    node.link.post("ended", {"id": "b", "reason": "DONE"})
    node.read(1)
    assert node.next().kind == "rows", "reads go on meanwhile"
    ready.set()
    assert [node.next().header["id"] for _ in range(2)] == ["a", "b"]


def test_releases_are_taken_while_the_reader_is_slow(node: Node) -> None:
    for number in range(8):
        node.read(number, count=4096, parts=512)
    node.socket.sendall(encode("release", {"id": "a", "index": 3}) + encode("done", {"id": "a"}))
    node.handler.wait_for(2)
    assert node.handler.calls == [("release", "a", 3), ("done", "a")]
    assert [node.next().header["read"] for _ in range(8)] == list(range(8))


def test_too_many_reads_end_the_link(node: Node) -> None:
    limit = schema().limits["pendingReads"]
    try:
        for number in range(limit + 40):
            node.read(number, count=4096, parts=512)
    except OSError:
        pass  # it was closed before all were sent
    assert node.handler.lost.wait(10)


@pytest.mark.parametrize("seed", range(10))
def test_garbage_ends_the_link_once(node: Node, seed: int) -> None:
    generator = random.Random(seed)
    garbage = generator.randbytes(generator.randint(12, 400))
    length = generator.choice([0, 3, 2**31, len(garbage)])
    node.socket.sendall(length.to_bytes(4, "little") + garbage)
    assert node.handler.lost.wait(10)
    with pytest.raises((EOFError, OSError)):
        node.next()
    node.link.post("ended", {"id": "a", "reason": "DONE"})
    node.link.close()
    assert len(node.handler.calls) == 1


def test_the_peers_end_is_noticed(node: Node) -> None:
    node.socket.close()
    assert node.handler.lost.wait(10)


def test_closing_sends_what_waits_and_is_no_loss(node: Node) -> None:
    node.link.post("refused", {"code": "LAYOUT_UNKNOWN", "message": "m"})
    node.link.close()
    assert node.next().kind == "refused"
    with pytest.raises(EOFError):
        node.next()
    assert node.handler.calls == []
