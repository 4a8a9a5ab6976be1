"""The half of the connector in the scheduler's process: it watches what is scheduled and holds blocks that are read."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from .metadata import PARAMETER, EndReason, FinishedRequest, PrefillSpec, StepMetadata, StepRange, WorkerReport

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

BlockIds = tuple[list[int], ...]


class SchedulerHalf:
    def __init__(self, global_block_sizes: dict[int, int]) -> None:
        """:param global_block_sizes: block size of every KV cache group of global layers, by group"""
        self._global_block_sizes = global_block_sizes
        self._specs: dict[str, PrefillSpec] = {}
        self._scheduled: set[str] = set()
        self._preemptions: dict[str, int] = {}
        self._finished: list[FinishedRequest] = []
        self._held: set[str] = set()
        self._ranks: dict[int, Any] = {}

    def on_new_request(self, request: Request) -> None:
        spec = PrefillSpec.from_parameters(request.kv_transfer_params)
        if spec is not None:
            self._specs[request.request_id] = spec

    def build(self, output: SchedulerOutput) -> StepMetadata:
        metadata = StepMetadata(finished=self._finished, idle=output.total_num_scheduled_tokens == 0)
        self._finished = []
        for request in output.preempted_req_ids or ():
            if request in self._specs:
                self._preemptions[request] = self._preemptions.get(request, 0) + 1
                metadata.preempted.append(request)
        tokens = output.num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            self._add(metadata, new.req_id, new.num_computed_tokens, tokens, new.block_ids, replaced=True)
        cached = output.scheduled_cached_reqs
        for i, request in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[i]
            replaced = request in cached.resumed_req_ids
            self._add(metadata, request, cached.num_computed_tokens[i], tokens, blocks, replaced=replaced)
        return metadata

    def _add(
        self,
        metadata: StepMetadata,
        request: str,
        start: int,
        tokens: dict[str, int],
        blocks: BlockIds | None,
        *,
        replaced: bool,
    ) -> None:
        spec = self._specs.get(request)
        if spec is None:
            return
        self._scheduled.add(request)
        copy = tuple(list(group) for group in blocks or ())
        metadata.ranges.append(StepRange(request, spec, start, start + tokens[request], copy, replaced))

    def finished(self, request: Request, blocks: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        """Blocks of a request that was ever scheduled stay until the ranks have let go of them, an aborted one's too:
        a rank may be reading."""
        spec = self._specs.pop(request.request_id, None)
        if spec is None:
            return False, None
        own: dict[str, Any] = {"preemptions": self._preemptions.pop(request.request_id, 0)}
        if spec.self_test:
            own["ranks"] = list(self._ranks.values())
        answer = {PARAMETER: own}
        if request.request_id not in self._scheduled:
            return False, answer
        self._scheduled.discard(request.request_id)
        self._held.add(request.request_id)
        self._finished.append(FinishedRequest(request.request_id, self._failure_of(request, spec, blocks)))
        return True, answer

    def _failure_of(self, request: Request, spec: PrefillSpec, blocks: BlockIds) -> EndReason | None:
        if request.status == RequestStatus.FINISHED_ABORTED:
            return "CANCELLED"
        if request.status not in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED):
            return "ENGINE_FAILED"
        # A request that was preempted in its last step ends without blocks (vLLM #48141): there is nothing to read.
        if request.num_computed_tokens < spec.end or any(not group for group in blocks):
            return "ENGINE_FAILED"
        if any(len(blocks[group]) * size < spec.end for group, size in self._global_block_sizes.items()):
            return "ENGINE_FAILED"
        return None

    def update(self, report: WorkerReport | None, finished_sending: set[str] | None) -> None:
        self._held -= finished_sending or set()
        if report is not None:
            self._ranks = {rank: asdict(found) for rank, found in report.ranks.items()}

    @property
    def holds_blocks(self) -> bool:
        """Whether waiting can free blocks, so that nothing needs to be preempted for them."""
        return bool(self._held)
