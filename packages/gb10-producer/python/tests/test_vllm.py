"""Rows out of real vLLM, read as the producer reads them. Slow: one worker starts for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import reference
import torch
from peer import Peer, Received

pytestmark = pytest.mark.vllm

Record = Callable[[str, object], None]
LAYERS = 8
WINDOW = 512
WINDOW_LAYERS = [0, 1, 2, 4, 5, 6]
# bf16 rows of two implementations, the worst of all rows; another row is at 1.4. Measured: 0.062.
TOLERANCE = 0.2


def check_whole(result: Received, held: int, end: int) -> None:
    """Chunks without gaps, every global row once, window rows as announced."""
    assert result.finished is not None
    assert result.finished["ok"], result.finished
    chunks = result.chunks
    assert (chunks[0]["start"], chunks[-1]["end"]) == (held, end)
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert all(a["end"] == b["start"] for a, b in pairwise(chunks))
    for layer in range(LAYERS):
        for which in (0, 1):
            covered = [row for first, rows in result.rows[layer, which] for row in range(first, first + len(rows))]
            if layer not in WINDOW_LAYERS:
                assert covered == list(range(held, end))
            else:
                assert covered == [r for c in chunks for r in range(c["windowStart"], c["end"])]
                assert set(range(max(held, end - WINDOW), end)) <= set(covered)


def check_rows(result: Received, tokens: list[int]) -> float:
    worst = 0.0
    for part, (first, wanted) in reference.rows(tokens).items():
        for start, rows in result.rows[part]:
            begin = max(start, first)
            if begin < start + len(rows):
                got = rows[begin - start :]
                worst = max(worst, reference.distance(got, wanted[begin - first : begin - first + len(got)]))
    assert worst < TOLERANCE
    return worst


def test_what_the_worker_says_of_itself(peer: Peer) -> None:
    ready = peer.ready
    assert ready["geometry"]["layers"] == ["window", "window", "window", "global"] * 2
    assert (ready["geometry"]["kvHeads"], ready["geometry"]["headDimension"]) == (2, 64)
    assert ready["tokenizerSha256"] == "3f3b360b7f33249c5e1b61a6379a69120db909b7e9d720791c133d8f7caf7ffc"
    assert (ready["backendName"], ready["ranks"], ready["warnings"]) == ("CPU_ATTN", 1, [])
    assert (ready["chunkTokens"], ready["maxPromptTokens"]) == (512, 4096)
    assert peer.hello["layers"] == [0, LAYERS]
    assert peer.hello["heads"] == [0, 2]
    order = [peer.milestones[name] for name in ("environment", "weights", "kv_cache", "warm_up")]
    assert order == sorted(order)


# One row; a block of 128; around a chunk and a window of 512; window blocks used again; several chunks.
# fault: window-blocks-reused
@pytest.mark.parametrize("rows", [1, 128, 300, 511, 512, 513, 640, 1024, 1300, 2899])
def test_rows_equal_another_implementation(
    peer: Peer, rows: int, record_property: Callable[[str, object], None]
) -> None:
    tokens = reference.prompt(rows + 1, seed=rows)
    result = peer.run(tokens, scope=f"rows-{rows}")
    check_whole(result, 0, rows)
    record_property("worst distance", check_rows(result, tokens[:-1]))


def test_rows_that_the_reader_holds_are_not_sent(peer: Peer) -> None:
    tokens = reference.prompt(1500, seed=1)
    result = peer.run(tokens, held=700, scope="held")
    check_whole(result, 700, 1499)
    check_rows(result, tokens[:-1])
    last = peer.run(tokens, held=1498, scope="held")
    check_whole(last, 1498, 1499)


# fault: mixed-cache-entries
def test_a_prefix_cache_hit_gives_the_same_bytes(peer: Peer) -> None:
    head, tail = reference.prompt(1800, seed=2), reference.prompt(900, seed=3)
    first = peer.run(head, scope="hit")
    # vLLM keeps the window's blocks for the end of an earlier prompt, so a hit is where the new one goes on from there.
    longer = head[:-1] + tail
    second = peer.run(longer, scope="hit")
    check_whole(second, 0, len(longer) - 1)
    hit = second.finished["reusedTokens"] if second.finished else 0
    assert hit == 1792
    assert (second.chunks[0]["start"], second.chunks[0]["end"]) == (0, hit)
    assert second.chunks[0]["windowStart"] == hit - WINDOW
    for layer in range(LAYERS):
        for which in (0, 1):
            start, rows = second.rows[layer, which][0]
            begin, before = first.of(layer, which)
            assert torch.equal(rows, before[start - begin : start - begin + len(rows)])
    check_rows(second, longer[:-1])
    again = peer.run(longer, held=1000, scope="hit")
    assert again.chunks[0]["start"] == 1000
    check_whole(again, 1000, len(longer) - 1)


def test_another_scope_sees_no_hit(peer: Peer) -> None:
    tokens = reference.prompt(1000, seed=4)
    for scope, reused in (("one", 0), ("one", 896), ("two", 0), ("", 0)):
        finished = peer.run(tokens, scope=scope).finished
        assert finished is not None
        assert finished["reusedTokens"] == reused


# fault: layer-hooks-skipped
def test_four_at_once(peer: Peer) -> None:
    prompts = [reference.prompt(count, seed=count) for count in (400, 901, 1733, 2600)]
    results = peer.run_all([(tokens, 0, f"many-{i}") for i, tokens in enumerate(prompts)])
    for tokens, result in zip(prompts, results, strict=True):
        check_whole(result, 0, len(tokens) - 1)
        check_rows(result, tokens[:-1])


@pytest.mark.parametrize(
    ("tokens", "held"),
    [([9], 0), ([9] * 4097, 0), ([9, 4096], 0), ([9, 9], 1), ([9, 7, 9], 0)],
    ids=["one-token", "too-long", "vocabulary", "all-held", "image"],
)
def test_prompts_that_are_refused(peer: Peer, tokens: list[int], held: int) -> None:
    id_ = peer.send_prefill(tokens, held)
    finished = peer.next_control("finished").header
    assert (finished["id"], finished["ok"], finished["code"]) == (id_, False, "INVALID_REQUEST")


def test_an_id_is_used_once(peer: Peer) -> None:
    peer.run(reference.prompt(20, seed=5))
    peer.send_prefill([9, 9], id_="t1")
    assert peer.next_control("finished").header["code"] == "INVALID_REQUEST"


def test_sockets_of_vllm_are_where_the_producer_removes_them(peer: Peer) -> None:
    names = {path.name for path in peer.folder.iterdir() if path.is_socket()}
    assert names > {"control.sock", "data.sock"}


# fault: computes-for-nobody
def test_an_abort_ends_compute(peer: Peer) -> None:
    for attempt in range(5):
        id_ = peer.send_prefill(reference.prompt(4000, seed=60 + attempt), scope=f"abort-{attempt}")
        frame = peer.next_data()
        assert frame.kind == "chunk"
        peer.control.send("abort", {"id": id_})
        finished = peer.next_control("finished").header
        if not finished["ok"]:
            break
        # This process was slow to say so: the prompt is computed.
        peer.data.send("done", {"id": id_})
        while peer.next_data().kind != "ended":
            pass
    assert finished["code"] == "CANCELLED"
    kinds = []
    while not kinds or kinds[-1] != "ended":
        frame = peer.next_data()
        kinds.append(frame.kind)
    assert frame.header == {"id": id_, "reason": "CANCELLED"}
    assert len(kinds) < 8, "not all of the prompt's eight chunks were computed"
    # Aborting what is unknown, or over, does nothing.
    peer.control.send("abort", {"id": id_})
    peer.control.send("abort", {"id": "nobody"})
    check_whole(peer.run(reference.prompt(50, seed=7)), 0, 49)


def test_reads_of_what_is_not_there(peer: Peer) -> None:
    id_ = peer.new_id()
    peer.ends[id_] = 299
    peer.send_prefill(reference.prompt(300, seed=8), scope="reads", id_=id_)
    result = peer.collect([id_], done=False, release=False)[id_]
    whole = [[3, 0]]
    for arguments in (
        ("nobody", 0, 0, 1, whole),
        (id_, 1, 0, 1, whole),
        (id_, 0, 0, 300, whole),
        (id_, 0, 0, 1, [[8, 0]]),
    ):
        number = peer.read(*arguments)
        answer = peer.next_data()
        assert (answer.kind, answer.header["read"]) == ("failed", number)
    peer.read(id_, 0, 10, 5, [[3, 1], [0, 0]])
    rows = peer.rows_of(peer.next_data().payload, 2, 5)
    assert torch.equal(rows[0], result.of(3, 1)[1][10:15])
    assert torch.equal(rows[1], result.of(0, 0)[1][10:15])
    peer.data.send("release", {"id": id_, "index": 0})
    peer.read(id_, 0, 10, 5, whole)
    assert peer.next_data().header["code"] == "UNKNOWN"
    peer.done(id_, result)


def test_heartbeats_count_steps(peer: Peer) -> None:
    before = len(peer.heartbeats)
    steps = [beat["steps"] for beat in peer.heartbeats]
    assert steps == sorted(steps)
    end = time.monotonic() + 60
    while len(peer.heartbeats) < before + 2 and time.monotonic() < end:
        peer.send_prefill([9], 0)
        peer.next_control("finished")
    assert peer.heartbeats[-1]["freeMemoryBytes"] > 0
    assert peer.heartbeats[-1]["steps"] > 0
