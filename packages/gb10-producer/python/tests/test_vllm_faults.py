"""The other side misbehaves or dies; nothing of vLLM may stay behind. Each of these starts a worker of its own."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterator

import pytest
import reference
from peer import Peer

pytestmark = pytest.mark.vllm


@pytest.fixture
def fresh() -> Iterator[Peer]:
    """Not spawned yet."""
    peer = Peer()
    yield peer
    peer.cleanup()


def test_the_producer_is_gone(worker: Peer) -> None:
    """Sockets close, as by kill -9, while a prefill runs. Standard input stays open: it must not be needed."""
    worker.start()
    pids = worker.descendants()
    worker.send_prefill(reference.prompt(4000, seed=1))
    assert worker.next_data().kind == "chunk"
    worker.data.close()
    worker.control.close()
    worker.wait_gone(pids, 60)


def test_garbage_on_the_data_link(worker: Peer) -> None:
    worker.start()
    pids = worker.descendants()
    worker.data.socket.sendall(struct.pack("<I", 2**31))
    assert worker.process.wait(60) == 1
    worker.wait_gone(pids, 60)


def test_garbage_on_the_control_link(worker: Peer) -> None:
    worker.start()
    pids = worker.descendants()
    worker.control.socket.sendall(struct.pack("<I", 16) + b"\xff" * 16)
    assert worker.process.wait(60) == 1
    worker.wait_gone(pids, 60)


def test_sigterm_while_it_starts(fresh: Peer) -> None:
    fresh.spawn()
    fresh.control, _ = fresh.accept("control")
    fresh.data, _ = fresh.accept("data")
    pids = fresh.descendants()
    os.kill(fresh.process.pid, signal.SIGTERM)
    assert fresh.process.wait(60) == 0
    fresh.wait_gone(pids, 60)


def test_a_model_that_is_not_there_is_refused() -> None:
    worker = Peer(modelPath="/nowhere/model")
    try:
        worker.spawn()
        worker.control, _ = worker.accept("control")
        assert worker.next_control("refused").header["code"] == "ENGINE_FAILED"
        assert worker.process.wait(60) == 1
    finally:
        worker.cleanup()


def test_settings_that_are_not_valid_end_it_at_once() -> None:
    worker = Peer(chunkTokens="many")
    try:
        worker.spawn()
        assert worker.process.wait(60) == 2
        assert worker.secret not in worker.log_text()
    finally:
        worker.cleanup()


@pytest.mark.parametrize("moment", ["import", "engine"])
def test_the_producer_is_gone_while_it_starts(fresh: Peer, moment: str) -> None:
    """By kill -9: the kernel closes standard input and both sockets. An engine on a GB10 starts for minutes, with all
    of the memory, so the worker may not wait for it."""
    fresh.spawn()
    fresh.control, _ = fresh.accept("control")
    pids = fresh.descendants()
    if moment == "engine":
        pids = fresh.wait_for_child()
    fresh.close_all()
    assert fresh.process.wait(20) == 0
    fresh.wait_gone(pids, 5)


def test_the_worker_is_killed_together_with_the_producer(worker: Peer) -> None:
    """Nobody is left who could end the engine: it has to notice by itself."""
    worker.start()
    pids = worker.descendants()
    assert len(pids) > 1
    worker.process.kill()
    worker.close_all()
    worker.wait_gone(pids, 30)
