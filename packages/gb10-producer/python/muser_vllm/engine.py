"""vLLM, set up for prefilling only."""

from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from .connector import MuserConnector
from .geometry import checked_geometry
from .metadata import PARAMETER, PrefillSpec
from .settings import Settings


class StepCounter(StatLoggerBase):  # type: ignore[misc] # vLLM is not analysed
    """Counts the engine's steps, for the heartbeat: no other figure tells a hung engine from a busy one."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        self.steps = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self.steps += 1

    def log_engine_initialized(self) -> None:
        return


def engine_arguments(settings: Settings, started_at: float) -> AsyncEngineArgs:
    """:param started_at: `time.monotonic()` of the worker's start, for the milestones"""
    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "dtype": "bfloat16",
        "max_model_len": settings.max_prompt_tokens,
        "max_num_batched_tokens": settings.chunk_tokens,
        "max_num_seqs": settings.max_concurrent,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "kv_cache_dtype": "bfloat16",
        "enable_prefix_caching": True,
        "disable_hybrid_kv_cache_manager": False,
        "tensor_parallel_size": settings.tensor_parallel,
        "pipeline_parallel_size": settings.pipeline_parallel,
        "enforce_eager": settings.enforce_eager or on_cpu,
        "skip_mm_profiling": True,
        "limit_mm_per_prompt": {"image": 0, "video": 0},
        "generation_config": "vllm",
        "kv_transfer_config": KVTransferConfig(
            kv_connector=MuserConnector.__name__,
            kv_connector_module_path=MuserConnector.__module__,
            kv_role="kv_both",
            kv_connector_extra_config={
                "dataSocket": settings.data_socket,
                "secret": settings.secret,
                "leaseMs": settings.lease_ms,
                "stagingBytes": settings.staging_bytes,
                "startedAt": started_at,
            },
        ),
    }
    if settings.attention_backend is not None:
        arguments["attention_config"] = {"backend": settings.attention_backend}
    if settings.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    return AsyncEngineArgs(**arguments)


def start_engine(arguments: AsyncEngineArgs, counter: StepCounter) -> AsyncLLM:
    """Blocks until weights are loaded and the caches are made.

    :raises Refused: the model cannot be handed over; before anything is loaded, which takes minutes
    """
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)
    checked_geometry(config)
    return AsyncLLM.from_vllm_config(config, stat_loggers=[lambda *_, **__: counter])


async def prefill(engine: AsyncLLM, spec: PrefillSpec, tokens: list[int], cache_scope: str) -> dict[str, Any]:
    """Computes the rows of `tokens`; the one token that vLLM must generate is thrown away. Cancelling aborts.

    Returns vLLM's cached tokens as `reused`, and what the connector answered.
    """
    parameters = SamplingParams(
        max_tokens=1, temperature=0, detokenize=False, extra_args={"kv_transfer_params": spec.to_parameters()}
    )
    prompt = {"prompt_token_ids": tokens, "cache_salt": cache_scope}
    last: Any = None
    async for output in engine.generate(prompt, parameters, request_id=spec.id):
        last = output
    return {"reused": int(last.num_cached_tokens or 0), **(last.kv_transfer_params or {}).get(PARAMETER, {})}
