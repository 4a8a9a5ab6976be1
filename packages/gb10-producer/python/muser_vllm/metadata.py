"""What the scheduler half tells every rank's worker half in each step, and what those report back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

EndReason = Literal["DONE", "CANCELLED", "PREEMPTED", "STAGING_FULL", "LEASE_EXPIRED", "ENGINE_FAILED"]

PARAMETER = "muser"
"""Key in vLLM's `kv_transfer_params`, in a request and in its answer."""


@dataclass(frozen=True)
class PrefillSpec:
    """What of a request is exported: the rows [held, end).

    :ivar id: the producer's id; vLLM's own id of the request is another
    :ivar self_test: rows are checked by the rank itself, nobody else hears of them
    """

    id: str
    held: int
    end: int
    self_test: bool = False

    def to_parameters(self) -> dict[str, Any]:
        return {PARAMETER: {"id": self.id, "held": self.held, "end": self.end, "selfTest": self.self_test}}

    @staticmethod
    def from_parameters(parameters: dict[str, Any] | None) -> PrefillSpec | None:
        own = (parameters or {}).get(PARAMETER)
        return None if own is None else PrefillSpec(own["id"], own["held"], own["end"], own["selfTest"])


@dataclass(frozen=True)
class StepRange:
    """Tokens [start, end) of a request are computed in this step.

    :ivar request: vLLM's id
    :ivar blocks: for each KV cache group, ids that are new since the request's last range
    :ivar replaced: `blocks` are all that the request has; what was known before is void
    """

    request: str
    spec: PrefillSpec
    start: int
    end: int
    blocks: tuple[list[int], ...]
    replaced: bool


@dataclass(frozen=True)
class FinishedRequest:
    """vLLM computes no more for it and keeps its blocks until `get_finished` names it.

    :ivar failure: None when all was computed
    """

    request: str
    failure: EndReason | None


@dataclass
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc] # vLLM is not analysed
    """:ivar idle: nothing is computed in this step"""

    ranges: list[StepRange] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    idle: bool = False


@dataclass(frozen=True)
class RankReport:
    """What a rank found at its start.

    :ivar self_tests: how many self-tests it has passed
    """

    backend: str
    layout: str
    block_sizes: list[int]
    kv_bytes: int
    self_tests: int


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc] # vLLM is not analysed
    ranks: dict[int, RankReport]

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        return WorkerReport({**self.ranks, **other.ranks})
