from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from cache import DIM, HEADS, KINDS, Engine, expected

from muser_vllm.metadata import FinishedRequest, PrefillSpec
from muser_vllm.refusals import Refused
from muser_vllm.rows import transfer
from muser_vllm.rows.staging import Piece

ALL = [[layer, which] for layer in range(4) for which in (0, 1)]
GLOBAL = [[1, 0], [1, 1], [3, 0], [3, 1]]
WINDOW = [[0, 0], [0, 1], [2, 0], [2, 1]]


def blocks(*ids: int) -> tuple[list[int], list[int]]:
    return list(ids), [i + 20 for i in ids]


# fault: layer-hooks-skipped
def test_a_chunk_can_be_read_after_its_step() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 7)
    engine.step((spec, 0, 7, blocks(3, 1), True))
    assert engine.link.frames == [("chunk", {"id": "a", "index": 0, "start": 0, "end": 7, "windowStart": 0})]
    rows = engine.read("a", 0, 0, 7, ALL)
    assert torch.equal(rows, expected(ALL, 0, 7))
    mixed = [[3, 1], [0, 0], [3, 1]]
    assert torch.equal(engine.read("a", 0, 2, 3, mixed), expected(mixed, 2, 3))


# fault: window-blocks-reused
def test_window_rows_are_kept_although_their_blocks_are_reused() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 24)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.step((spec, 8, 16, blocks(3, 4), False))
    # vLLM gives the request's first window blocks to itself again; the global group gets new ones.
    engine.step((spec, 16, 24, ([1, 2], [25, 26]), False))
    for index, start in enumerate((0, 8, 16)):
        assert torch.equal(engine.read("a", index, start, 8, ALL), expected(ALL, start, 8))


# fault: last-token-guessed
def test_only_rows_beyond_those_held_and_before_the_end_are_announced() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 10, 13)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    assert engine.link.frames == []
    engine.step((spec, 8, 14, blocks(3, 4), False))
    assert engine.link.take("chunk") == [{"id": "a", "index": 0, "start": 10, "end": 13, "windowStart": 10}]
    assert engine.read("a", 0, 9, 1, GLOBAL) == "RANGE"
    assert torch.equal(engine.read("a", 0, 10, 3, ALL), expected(ALL, 10, 3))


def test_a_prefix_cache_hit_is_read_from_the_cache() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 16, blocks(1, 2, 3, 4), True))
    spec = PrefillSpec("b", 2, 20)
    # The window has left the hit's first two blocks: vLLM says 0 for them.
    engine.step((spec, 16, 20, ([0, 0, 3, 4, 9], [21, 22, 23, 24, 29]), True))
    hit, computed = engine.link.take("chunk")[1:]
    assert hit == {"id": "b", "index": 0, "start": 2, "end": 16, "windowStart": 8}
    assert computed == {"id": "b", "index": 1, "start": 16, "end": 20, "windowStart": 16}
    assert torch.equal(engine.read("b", 0, 2, 14, GLOBAL), expected(GLOBAL, 2, 14))
    assert torch.equal(engine.read("b", 0, 8, 8, WINDOW), expected(WINDOW, 8, 8))
    assert engine.read("b", 0, 7, 1, WINDOW) == "RANGE"


def test_a_hit_of_which_window_rows_are_missing_says_so() -> None:
    engine = Engine()
    engine.step((PrefillSpec("b", 0, 20), 16, 20, ([0, 0, 0, 4, 9], [21, 22, 23, 24, 29]), True))
    assert engine.link.take("chunk")[0]["windowStart"] == 12


def test_all_of_a_prompt_from_the_cache() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 8), 0, 8, blocks(1, 2), True))
    engine.step((PrefillSpec("b", 0, 8), 8, 9, blocks(1, 2, 3), True))
    assert [(c["start"], c["end"]) for c in engine.link.take("chunk") if c["id"] == "b"] == [(0, 8)]
    assert torch.equal(engine.read("b", 0, 0, 8, ALL), expected(ALL, 0, 8))


def test_a_hit_without_its_global_blocks_fails() -> None:
    engine = Engine()
    engine.step((PrefillSpec("b", 0, 20), 16, 20, ([1, 2, 3, 4, 5], [0, 22, 23, 24, 29]), True))
    assert engine.link.frames == [("ended", {"id": "b", "reason": "ENGINE_FAILED"})]


def test_several_requests_in_one_step() -> None:
    engine = Engine()
    a, b = PrefillSpec("a", 0, 8), PrefillSpec("b", 0, 5)
    engine.step((a, 0, 8, blocks(1, 2), True), (b, 0, 5, blocks(3, 4), True))
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))
    assert torch.equal(engine.read("b", 0, 0, 5, ALL), expected(ALL, 0, 5))


# fault: block-size-of-group
@pytest.mark.parametrize("layers", [range(1), range(1, 2), range(1, 3), range(2, 4)])
def test_a_rank_that_has_some_of_the_layers(layers: range) -> None:
    engine = Engine(layers=layers)
    engine.step((PrefillSpec("a", 0, 12), 0, 12, blocks(1, 2, 3), True))
    windows = "window" in (KINDS[layer] for layer in layers)
    chunk = {"id": "a", "index": 0, "start": 0, "end": 12, "windowStart": 4 if windows else 0}
    assert engine.link.frames == [("chunk", chunk)]
    own = [[layer, which] for layer in layers for which in (0, 1)]
    assert torch.equal(engine.read("a", 0, 4, 8, own), expected(own, 4, 8))
    for other in set(range(4)) - set(layers):
        assert engine.read("a", 0, 4, 8, [[other, 0]]) == "RANGE"
    assert engine.step(preempted=("a",)) == set()
    assert torch.equal(engine.read("a", 0, 4, 8, own), expected(own, 4, 8))


@pytest.mark.parametrize(
    ("index", "start", "count", "parts", "code"),
    [
        (1, 0, 1, GLOBAL, "UNKNOWN"),
        (0, 0, 8, GLOBAL, "RANGE"),
        (0, 7, 1, GLOBAL, "RANGE"),
        (0, 0, 1, [[4, 0]], "RANGE"),
        (0, 0, 1, [], "RANGE"),
    ],
)
def test_reads_that_cannot_be_served(index: int, start: int, count: int, parts: list[list[int]], code: str) -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 7), 0, 7, blocks(1, 2), True))
    assert engine.read("a", index, start, count, parts) == code


def test_a_read_larger_than_a_frame_is_refused() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 128), 0, 128, (list(range(1, 33)), list(range(1, 33))), True))
    most = 4 * 2**20 // (2 * HEADS * DIM * 128)
    assert not isinstance(engine.read("a", 0, 0, 128, [[1, 0]] * most), str)
    assert engine.read("a", 0, 0, 128, [[1, 0]] * (most + 1)) == "RANGE"


def test_done_frees_blocks_when_vllm_has_finished_too() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 8)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    assert engine.step(finished=(FinishedRequest("a", None),)) == set()
    engine.half.done("a")
    assert engine.link.take("ended") == [{"id": "a", "reason": "DONE"}]
    assert engine.read("a", 0, 0, 1, GLOBAL) == "UNKNOWN"
    assert engine.step() == {"a"}
    assert engine.step() == set()
    engine.half.done("a")
    assert engine.link.take("ended") == []


def test_done_before_the_end_drops_what_follows() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 16)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.half.done("a")
    assert engine.step((spec, 8, 16, blocks(3, 4), False)) == set()
    assert [kind for kind, _ in engine.link.frames] == ["chunk", "ended"]
    assert engine.half.staged_bytes == 0
    assert engine.step(finished=(FinishedRequest("a", "CANCELLED"),)) == {"a"}


def test_an_abort_ends_the_transfer_at_once() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    assert engine.step(finished=(FinishedRequest("a", "CANCELLED"),)) == {"a"}
    assert engine.link.take("ended") == [{"id": "a", "reason": "CANCELLED"}]
    assert engine.half.staged_bytes == 0


# fault: held-after-abort
def test_the_lease_ends_what_nobody_reads() -> None:
    engine = Engine(lease=30)
    engine.step((PrefillSpec("a", 0, 8), 0, 8, blocks(1, 2), True))
    assert engine.step(finished=(FinishedRequest("a", None),)) == set()
    engine.now = 29.9
    assert engine.step() == set()
    engine.now = 30
    assert engine.step() == {"a"}
    assert engine.link.take("ended") == [{"id": "a", "reason": "LEASE_EXPIRED"}]


# fault: finished-without-blocks
def test_a_request_that_ends_before_its_rows_were_announced_failed() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    engine.step(finished=(FinishedRequest("a", None),))
    assert engine.link.take("ended") == [{"id": "a", "reason": "ENGINE_FAILED"}]


# fault: preempted-blocks
def test_rows_of_a_preempted_request_are_taken_out_before_they_are_lost() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 16)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    # The blocks go to another request in the very step that announces the preemption.
    other = PrefillSpec("b", 0, 8)
    engine.step((other, 0, 8, blocks(1, 2), True), preempted=("a",), version=1)
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))
    assert torch.equal(engine.read("b", 0, 0, 8, ALL), expected(ALL, 0, 8, version=1))
    # It starts again from nothing, and goes on where it was.
    engine.step((spec, 0, 12, blocks(5, 6, 7), True))
    assert [(c["start"], c["end"]) for c in engine.link.take("chunk") if c["id"] == "a"] == [(0, 8), (8, 12)]
    assert torch.equal(engine.read("a", 1, 8, 4, ALL), expected(ALL, 8, 4))
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))
    staged = engine.half.staged_bytes
    engine.half.release("a", 0)
    assert engine.half.staged_bytes < staged


# fault: preempted-blocks
def test_a_preempted_request_whose_rows_do_not_fit_fails() -> None:
    engine = Engine(staging=8 * 2 * 2 * HEADS * DIM * 2)
    spec = PrefillSpec("a", 0, 16)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.step(preempted=("a",))
    assert engine.link.take("ended") == [{"id": "a", "reason": "PREEMPTED"}]
    assert engine.read("a", 0, 0, 1, GLOBAL) == "PREEMPTED"
    engine.step((spec, 0, 16, blocks(5, 6, 7, 8), True))
    assert engine.step(finished=(FinishedRequest("a", None),)) == {"a"}
    assert engine.half.staged_bytes == 0


def test_a_released_chunk_need_not_be_saved() -> None:
    engine = Engine(staging=8 * 2 * 2 * HEADS * DIM * 2)
    spec = PrefillSpec("a", 0, 16)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.half.release("a", 0)
    engine.step(preempted=("a",))
    engine.step((spec, 0, 16, blocks(5, 6, 7, 8), True))
    assert engine.link.take("ended") == []
    assert engine.link.take("chunk")[-1]["start"] == 8


def test_a_request_that_resumes_on_a_longer_hit() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 20)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.step(preempted=("a",))
    engine.step((PrefillSpec("b", 0, 16), 0, 16, blocks(3, 4, 5, 6), True))
    engine.step((spec, 16, 20, blocks(3, 4, 5, 6, 7), True))
    ranges = [(c["start"], c["end"]) for c in engine.link.take("chunk") if c["id"] == "a"]
    assert ranges == [(0, 8), (8, 16), (16, 20)]
    assert torch.equal(engine.read("a", 1, 8, 8, ALL), expected(ALL, 8, 8))


def meanwhile(engine: Engine, work: Callable[[], object]) -> None:
    """`work` is done by vLLM's thread while the next read copies rows out of the cache: it must not have to wait."""
    copier = engine.half._copier
    fetch = copier.fetch

    def interrupted(pieces: Sequence[Piece], shape: tuple[int, ...]) -> torch.Tensor:
        copier.fetch = fetch  # type: ignore[method-assign]
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        return fetch(pieces, shape)

    copier.fetch = interrupted  # type: ignore[method-assign]


def test_steps_go_on_while_rows_are_read() -> None:
    engine = Engine()
    spec = PrefillSpec("a", 0, 16)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    meanwhile(engine, lambda: engine.step((spec, 8, 16, blocks(3, 4), False)))
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))
    assert torch.equal(engine.read("a", 1, 8, 8, ALL), expected(ALL, 8, 8))


# fault: preempted-blocks
def test_a_preemption_while_rows_are_read() -> None:
    """What the read took may be another request's rows by then; those that were saved are the right ones."""
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    other = PrefillSpec("b", 0, 8)
    meanwhile(engine, lambda: engine.step((other, 0, 8, blocks(1, 2), True), preempted=("a",), version=1))
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))


def test_the_end_of_a_transfer_while_its_rows_are_read() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    meanwhile(engine, lambda: engine.step(finished=(FinishedRequest("a", "CANCELLED"),)))
    assert engine.read("a", 0, 0, 8, ALL) == "CANCELLED"


def test_an_abort_is_found_out_by_a_read_under_way() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    meanwhile(engine, engine.half.close_all)
    assert engine.read("a", 0, 0, 8, ALL) == "ENGINE_FAILED"


# fault: writes-without-drain
def test_rows_are_taken_out_ahead_of_reads_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_AHEAD_BYTES", 2 * 8 * HEADS * DIM * 2)
    engine = Engine()
    fetched = []
    fetch = engine.half._copier.fetch
    monkeypatch.setattr(
        engine.half._copier, "fetch", lambda pieces, shape: fetched.append(shape) or fetch(pieces, shape)
    )
    engine.step((PrefillSpec("a", 0, 8), 0, 8, blocks(1, 2), True))
    before = engine.half.staged_bytes
    for start, count, parts, layers in (
        (0, 8, [[1, 0]], [1]),
        (0, 8, [[1, 1]], []),
        (0, 8, [[3, 1]], [1]),
        (2, 4, [[3, 0]], []),
        (2, 4, [[1, 0]], [2]),
        (2, 4, [[3, 0], [1, 1]], []),
        (0, 8, [[3, 0], [1, 1]], [2]),
    ):
        del fetched[:]
        assert torch.equal(engine.read("a", 0, start, count, parts), expected(parts, start, count))
        assert [shape[0] for shape in fetched] == layers, (start, count, parts)
    assert engine.half.staged_bytes == before + 2 * 2 * 8 * HEADS * DIM * 2
    engine.half.release("a", 0)
    assert engine.half.staged_bytes == 0


def test_a_full_staging_fails_that_transfer_and_no_other() -> None:
    engine = Engine(staging=8 * 2 * 2 * HEADS * DIM * 2)
    a, b = PrefillSpec("a", 0, 8), PrefillSpec("b", 0, 8)
    engine.step((a, 0, 8, blocks(1, 2), True), (b, 0, 8, blocks(3, 4), True))
    assert engine.link.take("ended") == [{"id": "b", "reason": "STAGING_FULL"}]
    assert torch.equal(engine.read("a", 0, 0, 8, ALL), expected(ALL, 0, 8))
    engine.half.release("a", 0)
    engine.step((PrefillSpec("c", 0, 8), 0, 8, blocks(5, 6), True))
    assert engine.link.take("ended") == []


def test_resume_points_are_skipped_while_memory_is_short() -> None:
    engine = Engine(staging=12 * 2 * 2 * HEADS * DIM * 2)
    spec = PrefillSpec("a", 0, 32)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    engine.step((spec, 8, 16, blocks(3, 4), False))
    engine.half.release("a", 0)
    engine.step((spec, 16, 24, blocks(5, 6), False))
    engine.half.release("a", 2)
    engine.step((spec, 24, 32, blocks(7, 8), False))
    assert [c["windowStart"] for c in engine.link.take("chunk")] == [0, 16, 16, 24]


def test_the_end_of_the_producer_closes_everything() -> None:
    engine = Engine()
    engine.step((PrefillSpec("a", 0, 16), 0, 8, blocks(1, 2), True))
    engine.half.close_all()
    assert engine.read("a", 0, 0, 1, GLOBAL) == "ENGINE_FAILED"
    assert engine.half.staged_bytes == 0
    engine.half.shutdown()
    assert engine.link.frames[-1] == ("closed", {})


def test_self_tests_are_not_announced() -> None:
    engine = Engine()
    spec = PrefillSpec("t", 0, 8, self_test=True)
    engine.step((spec, 0, 8, blocks(1, 2), True))
    assert engine.half.self_tests == 1
    assert engine.step(finished=(FinishedRequest("t", None),)) == {"t"}
    assert engine.link.frames == []


def test_self_tests_compare_window_rows_at_their_own_tokens() -> None:
    """A prompt longer than the window: the window layers' rows do not begin at token 0."""
    engine = Engine()
    for name, ids in (("t", (1, 2, 5)), ("u", (3, 4, 6))):
        engine.step((PrefillSpec(name, 0, 12, self_test=True), 0, 12, blocks(*ids), True))
    assert engine.half.self_tests == 2


# fault: silent-wrong-rows
@pytest.mark.parametrize("fault", ["empty", "alike", "heads", "infinite", "other"])
def test_self_tests_find_wrong_rows(fault: str) -> None:
    engine = Engine()
    spec = PrefillSpec("t", 0, 8, self_test=True)
    if fault == "other":
        engine.step((spec, 0, 8, blocks(1, 2), True))
    again = PrefillSpec("u", 0, 8, self_test=True)
    cache = engine.caches[1]
    original = engine.write

    def spoil(layer: int, ids: list[int], start: int, end: int, version: int = 0) -> None:
        original(layer, ids, start, end, version)
        if layer != 1:
            return
        if fault == "empty":
            cache[ids[1], :, 2] = 0
        elif fault == "alike":
            cache[:] = cache[ids[0], :, :1].clone()
        elif fault == "heads":
            cache[:, 1] = cache[:, 0].clone()
        elif fault == "infinite":
            cache[ids[0], 1, 1, 3] = float("inf")
        else:
            cache[ids] = cache[ids[::-1]].clone()

    engine.write = spoil  # type: ignore[method-assign]
    with pytest.raises(Refused) as error:
        engine.step((again, 0, 8, blocks(3, 4), True))
    assert error.value.code == "SELF_TEST_FAILED"
