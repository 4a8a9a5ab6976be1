"""Real vLLM with hardly any KV memory: blocks that leak would stop it, and prefills push one another out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import reference
from peer import Peer
from test_vllm import check_rows, check_whole

pytestmark = pytest.mark.vllm

# vLLM gives each request all of a step's tokens that it can use, so that prefills follow one another and never compete.
# This start-up divides the step, as a long and a short prompt would.
DIVIDED = """
if __name__ == "__main__":
    import muser_vllm.engine as engine
    import muser_vllm.worker as worker
    original = engine.engine_arguments
    def divided(*arguments):
        result = original(*arguments)
        result.long_prefill_token_threshold = 128
        return result
    engine.engine_arguments = divided
    worker.main()
"""
BLOCK_BYTES = 2 * 2 * 128 * 2 * 64 * 2


@pytest.fixture(scope="module")
def scarce(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    script = tmp_path_factory.mktemp("scarce") / "divided.py"
    script.write_text(DIVIDED)
    peer = Peer(kvCacheBytes=64 * BLOCK_BYTES, maxPromptTokens=2304, leaseMs=2000)
    peer.command = [sys.executable, str(script)]
    try:
        peer.start()
        yield peer
        pids = peer.descendants()
        os.kill(peer.process.pid, signal.SIGTERM)
        assert peer.process.wait(60) == 0
        peer.wait_gone(pids)
    finally:
        peer.cleanup()


# fault: held-after-abort
def test_aborts_free_blocks(scarce: Peer) -> None:
    for attempt in range(6):
        id_ = scarce.send_prefill(reference.prompt(2200, seed=attempt), scope=f"abort-{attempt}")
        assert scarce.next_data().kind == "chunk"
        scarce.control.send("abort", {"id": id_})
        # On a machine that is quick to compute and slow to abort, the prompt may have come to its end.
        finished = scarce.next_control("finished").header
        assert finished["ok"] or finished["code"] == "CANCELLED"
        while scarce.next_data().kind != "ended":
            pass
    tokens = reference.prompt(2200, seed=9)
    result = scarce.run(tokens, scope="after")
    check_whole(result, 0, 2199)
    check_rows(result, tokens[:-1])


# fault: held-after-abort
def test_what_nobody_reads_is_freed_by_its_lease(scarce: Peer) -> None:
    ids = [scarce.send_prefill(reference.prompt(2200, seed=20 + i), scope=f"lease-{i}") for i in range(3)]
    ended = []
    while len(ended) < 3:
        frame = scarce.next_data()
        if frame.kind == "ended":
            ended.append((frame.header["id"], frame.header["reason"]))
    assert ended == [(id_, "LEASE_EXPIRED") for id_ in ids]
    assert all(scarce.next_control("finished").header["ok"] for _ in ids)


# fault: preempted-blocks
def test_preempted_prefills_give_right_rows(scarce: Peer, record_property: Callable[[str, object], None]) -> None:
    prompts = [reference.prompt(2100, seed=30 + i) for i in range(4)]
    results = scarce.run_all([(tokens, 0, f"preempt-{i}") for i, tokens in enumerate(prompts)])
    preemptions = 0
    for tokens, result in zip(prompts, results, strict=True):
        assert result.finished is not None
        preemptions += result.finished.get("preemptions", 0)
        if result.ended == "PREEMPTED":
            continue
        check_whole(result, 0, len(tokens) - 1)
        check_rows(result, tokens[:-1])
    assert preemptions > 0, "the cache was not small enough to force any"
    record_property("preemptions", preemptions)


def test_the_log_has_no_prompt_and_no_secret(scarce: Peer) -> None:
    text = Path(scarce.log).read_text("utf-8", "replace")
    assert scarce.secret not in text
    assert str(reference.prompt(2100, seed=30)[:8]).strip("[]") not in text
