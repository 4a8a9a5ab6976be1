"""What the scheduler half makes of scheduler outputs, in the form in which vLLM 0.32 gave them for real prefills."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from muser_vllm.metadata import FinishedRequest, PrefillSpec, RankReport, StepRange, WorkerReport
from muser_vllm.scheduler_half import SchedulerHalf

SPEC = PrefillSpec("id", 0, 999)


def output(
    *,
    new: list[tuple[str, int, tuple[list[int], ...]]] = (),  # type: ignore[assignment]
    cached: list[tuple[str, int, tuple[list[int], ...] | None]] = (),  # type: ignore[assignment]
    tokens: dict[str, int] | None = None,
    resumed: set[str] | None = None,
    preempted: set[str] | None = None,
) -> Any:
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id=r, num_computed_tokens=n, block_ids=b) for r, n, b in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[r for r, _, _ in cached],
            num_computed_tokens=[n for _, n, _ in cached],
            new_block_ids=[b for _, _, b in cached],
            resumed_req_ids=resumed or set(),
        ),
        num_scheduled_tokens=tokens or {},
        total_num_scheduled_tokens=sum((tokens or {}).values()),
        preempted_req_ids=preempted,
    )


def request(name: str, spec: PrefillSpec | None = SPEC, **fields: Any) -> Any:
    parameters = spec.to_parameters() if spec else None
    base = {"status": RequestStatus.FINISHED_LENGTH_CAPPED, "num_computed_tokens": 999}
    return SimpleNamespace(request_id=name, kv_transfer_params=parameters, **{**base, **fields})


@pytest.fixture
def half() -> SchedulerHalf:
    half = SchedulerHalf({1: 128})
    half.on_new_request(request("r"))
    return half


def test_chunks_of_a_prefill(half: SchedulerHalf) -> None:
    blocks = ([1, 2, 3, 4], [5, 6, 7, 8])
    first = half.build(output(new=[("r", 0, blocks)], tokens={"r": 512}))
    assert first.ranges == [StepRange("r", SPEC, 0, 512, blocks, replaced=True)]
    assert first.ranges[0].blocks[0] is not blocks[0], "vLLM goes on changing its lists"
    second = half.build(output(cached=[("r", 512, ([9], [10]))], tokens={"r": 487}))
    assert second.ranges == [StepRange("r", SPEC, 512, 999, ([9], [10]), replaced=False)]
    third = half.build(output(cached=[("r", 999, None)], tokens={"r": 1}))
    assert third.ranges[0].blocks == ()
    assert not third.idle
    assert half.build(output()).idle


def test_other_requests_are_none_of_its_business(half: SchedulerHalf) -> None:
    half.on_new_request(request("other", None))
    assert half.build(output(new=[("other", 0, ([1], [2]))], tokens={"other": 5}, preempted={"other"})).ranges == []
    assert half.finished(request("other", None), ([1], [2])) == (False, None)


def test_preemption_and_resumption(half: SchedulerHalf) -> None:
    half.build(output(new=[("r", 0, ([1], [2]))], tokens={"r": 128}))
    assert half.build(output(preempted={"r"})).preempted == ["r"]
    resumed = half.build(output(cached=[("r", 0, ([3], [4]))], tokens={"r": 128}, resumed={"r"}))
    assert resumed.ranges == [StepRange("r", SPEC, 0, 128, ([3], [4]), replaced=True)]
    _, answer = half.finished(request("r"), ([0, 7], list(range(8))))
    assert answer == {"muser": {"preemptions": 1}}


@pytest.mark.parametrize(
    ("changed", "blocks", "failure"),
    [
        ({}, ([0, 7], list(range(8))), None),
        ({"status": RequestStatus.FINISHED_STOPPED}, ([7], list(range(8))), None),
        ({"status": RequestStatus.FINISHED_ABORTED}, ([7], list(range(8))), "CANCELLED"),
        ({"status": RequestStatus.FINISHED_ABORTED}, ([], []), "CANCELLED"),
        ({"status": RequestStatus.FINISHED_ERROR}, ([7], list(range(8))), "ENGINE_FAILED"),
        ({}, ([], []), "ENGINE_FAILED"),
        ({}, ([7], list(range(7))), "ENGINE_FAILED"),
        ({}, ([], list(range(8))), "ENGINE_FAILED"),
        ({"num_computed_tokens": 998}, ([7], list(range(8))), "ENGINE_FAILED"),
    ],
)
def test_the_end_of_a_request(
    half: SchedulerHalf, changed: dict[str, Any], blocks: tuple[list[int], ...], failure: Any
) -> None:
    half.build(output(new=[("r", 0, ([1], [2]))], tokens={"r": 999}))
    assert not half.holds_blocks
    assert half.finished(request("r", **changed), blocks)[0] is True
    assert half.holds_blocks
    assert half.build(output()).finished == [FinishedRequest("r", failure)]
    assert half.build(output()).finished == []
    half.update(None, {"r"})
    assert not half.holds_blocks


def test_a_request_that_never_ran_holds_nothing(half: SchedulerHalf) -> None:
    status = RequestStatus.FINISHED_ABORTED
    assert half.finished(request("r", status=status, num_computed_tokens=0), ([], []))[0] is False
    assert half.build(output()).finished == []


def test_ranks_are_reported_to_self_tests_only() -> None:
    half = SchedulerHalf({1: 128})
    reports = [WorkerReport({rank: RankReport("B", "L", [16], 1, 1)}) for rank in (0, 1)]
    half.update(reports[0].aggregate(reports[1]), None)
    spec = PrefillSpec("t", 0, 1, self_test=True)
    half.on_new_request(request("t", spec))
    half.build(output(new=[("t", 0, ([1], [2]))], tokens={"t": 1}))
    _, answer = half.finished(request("t", spec), ([1], [2]))
    assert answer is not None
    assert [rank["backend"] for rank in answer["muser"]["ranks"]] == ["B", "B"]
