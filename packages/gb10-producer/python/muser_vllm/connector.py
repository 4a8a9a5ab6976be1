"""vLLM's KV connector (version 1 API): one class, two halves."""

from __future__ import annotations

import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from .data_link import DataLink
from .geometry import layer_kinds, own_heads
from .layout import LayoutError, RowReader, probe_layer
from .metadata import RankReport, StepMetadata, WorkerReport
from .refusals import Refused, refuse_unsupported
from .rows import LayerSource, RankLayers
from .scheduler_half import SchedulerHalf
from .worker_half import WorkerHalf, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from vllm.config import VllmConfig
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_log = logging.getLogger(__name__)


class MuserConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc] # vLLM is not analysed
    """Hands the rows of prefills to the muser producer, chunk by chunk, while the next chunk computes."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        """:raises Refused: a setting of vLLM, or the model, is one that this connector cannot serve"""
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._rank: _Rank | None = None
        if role == KVConnectorRole.SCHEDULER:
            refuse_unsupported(vllm_config)
            self._scheduler = SchedulerHalf(_global_block_sizes(kv_cache_config))
        else:
            self._rank = _Rank(vllm_config, kv_cache_config)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Nothing here needs it, but graphs of whole decode steps would cost start-up time and memory: this engine
        decodes one token of each prompt."""
        return True

    # -- scheduler -----------------------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        self._scheduler_half.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        return self._scheduler_half.build(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler_half.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler_half.finished(request, block_ids)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        self._scheduler_half.update(report, connector_output.finished_sending)

    def has_pending_block_frees(self) -> bool:
        return self._scheduler_half.holds_blocks

    @property
    def _scheduler_half(self) -> SchedulerHalf:
        if self._scheduler is None:
            raise RuntimeError("a scheduler's method was called in a worker")
        return self._scheduler

    # -- worker --------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._own_rank.register(kv_caches)

    def handle_preemptions(self, kv_connector_metadata: StepMetadata) -> None:
        """Called before every step, whether or not anything was preempted."""
        self._own_rank.half.begin_step(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        if self.has_connector_metadata():
            self._own_rank.half.end_step()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return self._own_rank.half.finished() or None, None

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._own_rank.report()

    def shutdown(self) -> None:
        if self._rank is not None:
            self._rank.shutdown()

    @property
    def _own_rank(self) -> _Rank:
        if self._rank is None:
            raise RuntimeError("a worker's method was called in the scheduler")
        return self._rank


def _global_block_sizes(config: KVCacheConfig) -> dict[int, int]:
    groups = enumerate(config.kv_cache_groups)
    return {i: g.kv_cache_spec.block_size for i, g in groups if type(g.kv_cache_spec) is FullAttentionSpec}


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Memory of these views; layers of several cache groups lie in the same storage, which counts once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class _Rank:
    """Connects to the producer, then finds where this rank's rows are."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        self._config = vllm_config
        self._cache_config = kv_cache_config
        self._extra: dict[str, Any] = vllm_config.kv_transfer_config.kv_connector_extra_config
        parallel = vllm_config.parallel_config
        self.rank: int = parallel.rank
        self._tensor_rank = parallel.rank % parallel.tensor_parallel_size
        self._half: WorkerHalf | None = None
        self._reported = -1
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        self._numbers = {name: int(extract_layer_index(name)) for name in names}
        self._link = DataLink(self._extra["dataSocket"], self._hello(), self)
        self._milestone("weights")
        try:
            refuse_unsupported(vllm_config)
            self._kinds = layer_kinds(vllm_config.model_config.hf_text_config)
        except Refused as refused:
            self._refuse(refused)

    @property
    def half(self) -> WorkerHalf:
        if self._half is None:
            raise RuntimeError("the KV caches were not registered")
        return self._half

    def register(self, caches: dict[str, torch.Tensor]) -> None:
        try:
            layers, self._layout = self._find_layers(caches)
        except Refused as refused:
            self._refuse(refused)
        options = WorkerOptions(
            staging_bytes=self._extra["stagingBytes"] or self._default_staging(layers),
            lease_seconds=self._extra["leaseMs"] / 1000,
        )
        self._kv_bytes = storage_bytes(caches.values())
        sizes = [group.kv_cache_spec.block_size for group in self._cache_config.kv_cache_groups]
        device = next(iter(caches.values())).device
        self._half = WorkerHalf(layers, sizes, device, options)
        self._half.attach(self._link)
        together = all(rows.joined for rows in (*layers.window_groups, *layers.global_groups))
        _log.info(
            "muser: %s, block sizes %s, staging %d bytes, layers read %s",
            self._layout,
            sizes,
            options.staging_bytes,
            "together" if together else "one by one",
        )
        self._milestone("kv_cache")

    def report(self) -> WorkerReport | None:
        """Once after the start and after each self-test."""
        if self._half is None or self._half.self_tests == self._reported:
            return None
        self._reported = self._half.self_tests
        found = RankReport(
            backend=self._backend,
            layout=self._layout,
            block_sizes=[group.kv_cache_spec.block_size for group in self._cache_config.kv_cache_groups],
            kv_bytes=self._kv_bytes,
            self_tests=self._half.self_tests,
        )
        return WorkerReport({self.rank: found})

    def shutdown(self) -> None:
        if self._half is not None:
            self._half.shutdown()
        else:
            self._link.close()

    def _hello(self) -> dict[str, Any]:
        config = self._config
        numbers = sorted(self._numbers.values())
        heads = own_heads(
            config.model_config.get_total_num_kv_heads(), config.parallel_config.tensor_parallel_size, self._tensor_rank
        )
        return {
            "role": "data",
            "secret": self._extra["secret"],
            "pid": os.getpid(),
            "rank": self.rank,
            "layers": [numbers[0], numbers[-1] + 1],
            "heads": list(heads),
        }

    def _milestone(self, name: str) -> None:
        if self.rank == 0:
            elapsed = time.monotonic() - self._extra["startedAt"]
            self._link.post("milestone", {"name": name, "ms": int(1000 * elapsed)})

    def _refuse(self, refused: Refused) -> None:
        self._link.post("refused", {"code": refused.code, "message": str(refused)[:2000]})
        self._link.close()
        raise refused

    def _find_layers(self, caches: dict[str, torch.Tensor]) -> tuple[RankLayers, str]:
        """:raises Refused: MODEL_UNSUPPORTED, LAYOUT_UNKNOWN"""
        sources: dict[int, LayerSource] = {}
        # Rows of a group are taken out together, so their layers' places follow one another.
        places = {True: 0, False: 0}
        layouts: dict[Any, Any] = {}
        heads, dimension = 0, 0
        for number, name, group in self._layers_by_group():
            spec = self._cache_config.kv_cache_groups[group].kv_cache_spec
            window = self._is_window(number, spec)
            heads, dimension = self._dimensions(spec, heads, dimension)
            cache = caches[name]
            attention = self._config.compilation_config.static_forward_context[name]
            key = (type(attention.impl), tuple(cache.shape), cache.stride())
            try:
                if key not in layouts:
                    layouts[key] = _probe(attention, cache, heads, dimension)
                reader = RowReader(cache, layouts[key])
            except LayoutError as error:
                raise self._unknown_layout(attention, cache, error) from error
            sources[number] = LayerSource(name, number, group, window, places[window], reader)
            places[window] += 1
        self._backend = self._backend_name(next(iter(sources.values())).name)
        layout = "; ".join(sorted({found.name for found in layouts.values()}))
        window_tokens = int(self._config.model_config.hf_text_config.sliding_window) if places[True] else 0
        return RankLayers(sources, heads, dimension, window_tokens), layout

    def _layers_by_group(self) -> list[tuple[int, str, int]]:
        groups = enumerate(self._cache_config.kv_cache_groups)
        found = [(i, self._numbers[name], name) for i, group in groups for name in group.layer_names]
        return [(number, name, i) for i, number, name in sorted(found)]

    def _is_window(self, number: int, spec: Any) -> bool:
        kind = self._kinds[number]
        window = getattr(self._config.model_config.hf_text_config, "sliding_window", None)
        if type(spec) is SlidingWindowSpec and kind == "window" and spec.sliding_window == window:
            return True
        if type(spec) is FullAttentionSpec and spec.sliding_window is None and kind == "global":
            return False
        what = f"layer {number} is a {kind} layer (window {window})"
        raise Refused("MODEL_UNSUPPORTED", f"{what}, vLLM keeps it as {spec}")

    def _dimensions(self, spec: Any, heads: int, dimension: int) -> tuple[int, int]:
        own = (int(spec.num_kv_heads), int(spec.head_size))
        if spec.head_size_v != spec.head_size or (heads and own != (heads, dimension)):
            raise Refused(
                "MODEL_UNSUPPORTED", f"layers have KV heads of several shapes: {own} and {(heads, dimension)}"
            )
        return own

    def _default_staging(self, layers: RankLayers) -> int:
        """What the requests that run at once may need for their last windows, one chunk more each."""
        scheduler = self._config.scheduler_config
        rows = scheduler.max_num_seqs * (layers.window_tokens + scheduler.max_num_batched_tokens)
        return max(1, int(rows * layers.window_row_bytes))

    def _backend_name(self, layer: str) -> str:
        return str(self._config.compilation_config.static_forward_context[layer].get_attn_backend().get_name())

    def _unknown_layout(self, attention: Any, cache: torch.Tensor, error: LayoutError) -> Refused:
        backend = attention.get_attn_backend().get_name()
        where = f"{backend} of vLLM {vllm.__version__}, shape {tuple(cache.shape)}, strides {cache.stride()}"
        return Refused("LAYOUT_UNKNOWN", f"the KV cache of {where} has no known form: {error}")

    # -- the link's threads --------------------------------------------------------------------------------------

    def read(self, header: dict[str, Any]) -> Any:
        return self.half.read(header)

    def release(self, id_: str, index: int) -> None:
        self.half.release(id_, index)

    def done(self, id_: str) -> None:
        self.half.done(id_)

    def link_lost(self, why: str) -> None:
        """Without a producer this process is of no use, and on a GB10 it would keep the machine's memory."""
        _log.error("muser: the data link is lost (%s); this process ends", why)
        if self._half is not None:
            self._half.close_all()
        os.kill(os.getpid(), signal.SIGTERM)


def _probe(attention: Any, cache: torch.Tensor, heads: int, dimension: int) -> Any:
    def update(key: torch.Tensor, value: torch.Tensor, target: torch.Tensor, slots: torch.Tensor) -> None:
        attention.impl.do_kv_cache_update(attention, key, value, target, slots)

    return probe_layer(update, cache, heads, dimension)
