"""Both links of a worker, fed with thousands of damaged, random and misplaced frames: they go on, or they end once."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muser_vllm.control_link import ControlLink
from muser_vllm.data_link import Answer, DataLink
from muser_vllm.frames import FrameError, encode, schema
from muser_vllm.settings import Settings
from muser_vllm.worker import Worker

VECTORS = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "bridge.json").read_text("utf-8"))["valid"]
FROM_NODE = {
    link: [bytes.fromhex(v["frame"]) for v in VECTORS if v["from"] == "node" and v["link"] == link]
    for link in ("control", "data")
}
HELLO = {"role": "data", "secret": "ab" * 32, "pid": 1, "rank": 0, "layers": [0, 8], "heads": [0, 2]}
FRAMES = 60
ROUNDS = 40
DEADLINE = 10.0


def damaged(generator: random.Random, frame: bytes) -> bytes:
    data = bytearray(frame)
    kind = generator.randrange(5)
    if kind == 0:
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
    elif kind == 1:
        del data[generator.randrange(len(data)) :]
    elif kind == 2:
        data[:0] = generator.randbytes(generator.randint(1, 40))
    elif kind == 3:
        # A whole frame of any content.
        body = generator.randbytes(generator.randint(0, 200))
        data = bytearray(struct.pack("<I", len(body)) + body)
    else:
        # The right frame with another length.
        data[:4] = struct.pack("<I", generator.choice([0, 7, 8, len(data), len(data) + 9, 2**22, 2**31, 2**32 - 1]))
    return bytes(data)


def stream(generator: random.Random, link: str) -> bytes:
    """Many good frames, then some that are not."""
    good = [generator.choice(FROM_NODE[link]) for _ in range(generator.randrange(FRAMES))]
    bad = [damaged(generator, generator.choice(FROM_NODE[link])) for _ in range(3)]
    return b"".join(good + bad)


class Handler:
    def __init__(self) -> None:
        self.lost: list[str] = []
        self.told = threading.Event()

    def read(self, header: dict[str, Any]) -> Answer:
        return "rows", {"read": header["read"]}, [memoryview(bytes(64)) for _ in header["parts"]] or [memoryview(b"..")]

    def release(self, id_: str, index: int) -> None:
        return

    def done(self, id_: str) -> None:
        return

    def link_lost(self, why: str) -> None:
        self.lost.append(why)
        self.told.set()


def drain(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 16):
            pass
    except OSError:
        pass


@pytest.mark.parametrize("seed", range(8))
def test_the_data_link(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    threads = threading.active_count()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d"))
        listener.listen(1)
        for _ in range(ROUNDS):
            handler = Handler()
            link = DataLink(str(tmp_path / "d"), HELLO, handler)
            connection, _ = listener.accept()
            reader = threading.Thread(target=drain, args=[connection])
            reader.start()
            with connection:
                try:
                    connection.sendall(stream(generator, "data"))
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it has closed already
                reader.join(DEADLINE)
                assert not reader.is_alive()
            assert handler.told.wait(DEADLINE)
            link.close()
            assert len(handler.lost) == 1
    end = time.monotonic() + DEADLINE
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_a_read_that_fails_in_an_unknown_way_ends_the_link(tmp_path: Path) -> None:
    """A thread that dies in silence would leave the producer without an answer."""

    class Broken(Handler):
        def read(self, header: dict[str, Any]) -> Answer:
            raise RuntimeError("no memory for [1, 2, 3]")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d"))
        listener.listen(1)
        handler = Broken()
        DataLink(str(tmp_path / "d"), HELLO, handler)
        connection, _ = listener.accept()
        with connection:
            header = {"read": 1, "id": "a", "index": 0, "tokenStart": 0, "tokenCount": 1, "parts": [[0, 0]]}
            connection.sendall(encode("read", header))
            connection.settimeout(DEADLINE)
            drain(connection)
        assert handler.told.wait(DEADLINE)
        assert handler.lost == ["RuntimeError"]


def settings(folder: Path) -> Settings:
    return Settings(
        control_socket=str(folder / "c"),
        data_socket=str(folder / "d"),
        secret="ab" * 32,
        model_path="/model",
        max_prompt_tokens=4096,
        chunk_tokens=512,
        max_concurrent=4,
        kv_cache_bytes=1,
        staging_bytes=None,
        lease_ms=1000,
        tensor_parallel=1,
        pipeline_parallel=1,
        attention_backend=None,
        enforce_eager=True,
        gpu_memory_utilization=None,
        threads=1,
    )


class Bench(Worker):
    """The worker without vLLM: it receives, and its prefills take a moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(settings(folder), 0.0)
        self._vocabulary_size = 1 << 18
        self._prefill = self._pretend
        self.most = 0

    async def _pretend(self, *_: Any) -> dict[str, Any]:
        self.most = max(self.most, len(self._tasks))
        await asyncio.sleep(0.001)
        return {"reused": 0}

    async def serve(self, link: ControlLink) -> int:
        self._link = link
        await self._receive()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return self._status


async def run_control(folder: Path, data: bytes) -> tuple[int, list[bytes]]:
    """The worker's status, and what it has answered."""
    answers: list[bytes] = []

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        writer.write_eof()
        answers.append(await reader.read())
        writer.close()

    server = await asyncio.start_unix_server(node, str(folder / "c"))
    async with server, asyncio.timeout(DEADLINE):
        worker = Bench(folder)
        hello = {"role": "control", "secret": "ab" * 32, "pid": 1, "version": "0"}
        link = await ControlLink.connect(str(folder / "c"), hello)
        status = await worker.serve(link)
        await link.close()
        assert worker.most <= schema().limits["pendingPrefills"] + 1
        while not answers:
            await asyncio.sleep(0.001)
    return status, answers


@pytest.mark.parametrize("seed", range(8))
def test_the_control_link(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    for round_ in range(ROUNDS):
        folder = tmp_path / str(round_)
        folder.mkdir()
        status, answers = asyncio.run(run_control(folder, stream(generator, "control")))
        assert status in (0, 1)
        assert len(answers) == 1


def test_more_prefills_than_may_wait(tmp_path: Path) -> None:
    count = 3 * schema().limits["pendingPrefills"]
    header = {"heldTokens": 0, "cacheScope": "s"}
    frames = [encode("prefill", {"id": f"p{i}", **header}, struct.pack("<3I", 1, 2, 3)) for i in range(count)]
    status, [answer] = asyncio.run(run_control(tmp_path, b"".join(frames)))
    assert status == 0
    assert answer.count(b"INVALID_REQUEST") >= 1


def test_random_headers_are_refused_by_name_only() -> None:
    generator = random.Random(1)
    values: list[Any] = [None, True, -1, 2**53, 1e300, "x" * 70, "secret", [], [[1]], {}, {"a": 1}]
    kinds = sorted(schema().by_name)
    told: list[tuple[str, str]] = []
    for _ in range(5000):
        kind = generator.choice(kinds)
        names = [*schema().by_name[kind].fields, "other"]
        header = {name: generator.choice(values) for name in names if generator.random() < 0.8}
        try:
            encode(kind, header, generator.choice([b"", b"abcd", b"abcde"]))
        except FrameError as error:
            told.append((error.code, str(error)))
    assert {code for code, _ in told} <= set(schema().errors)
    assert not any("secret" in text or "xxx" in text for _, text in told)
