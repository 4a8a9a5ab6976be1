"""The worker's settings: one line of JSON on standard input, checked against the schema."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from .frames import FrameError, check_fields, schema
from .refusals import Refused

_LINE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Settings:
    """Names and meaning as in the schema's `settings`."""

    control_socket: str
    data_socket: str
    secret: str
    model_path: str
    max_prompt_tokens: int
    chunk_tokens: int
    max_concurrent: int
    kv_cache_bytes: int
    staging_bytes: int | None
    lease_ms: int
    tensor_parallel: int
    pipeline_parallel: int
    attention_backend: str | None
    enforce_eager: bool
    gpu_memory_utilization: float | None
    threads: int | None


def read_settings(descriptor: int) -> Settings:
    """Reads up to the first line end, not beyond: the end of the input later means that the worker must end.

    :raises Refused: SETTINGS_INVALID, never with a value in its message
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte or len(line) >= _LINE_BYTES:
            raise Refused("SETTINGS_INVALID", "no line of settings on standard input")
        line += byte
    return parse_settings(bytes(line))


def parse_settings(line: bytes) -> Settings:
    """:raises Refused: SETTINGS_INVALID"""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused("SETTINGS_INVALID", "the settings are not JSON") from error
    if not isinstance(value, dict):
        raise Refused("SETTINGS_INVALID", "the settings are no JSON object")
    try:
        check_fields(schema().settings, value, "settings")
    except FrameError as error:
        raise Refused("SETTINGS_INVALID", str(error)) from error
    return Settings(
        control_socket=value["controlSocket"],
        data_socket=value["dataSocket"],
        secret=value["secret"],
        model_path=value["modelPath"],
        max_prompt_tokens=value["maxPromptTokens"],
        chunk_tokens=value["chunkTokens"],
        max_concurrent=value["maxConcurrent"],
        kv_cache_bytes=value["kvCacheBytes"],
        staging_bytes=value["stagingBytes"],
        lease_ms=value["leaseMs"],
        tensor_parallel=value["tensorParallel"],
        pipeline_parallel=value["pipelineParallel"],
        attention_backend=value["attentionBackend"],
        enforce_eager=value["enforceEager"],
        gpu_memory_utilization=value["gpuMemoryUtilization"],
        threads=value["threads"],
    )


def prepare_environment(settings: Settings) -> None:
    """Before vLLM or PyTorch is imported. What the caller has set stays."""
    defaults = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # A forked engine would keep the control socket open after this process has died.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # vLLM's own sockets are never removed by it; the producer removes this folder with all that is in it.
        "VLLM_RPC_BASE_PATH": os.path.dirname(settings.control_socket),
    }
    if settings.threads is not None:
        # The processor is shared. vLLM's own choice is to bind a thread to every core, and threads that spin while they
        # wait bring another engine on the same cores to a standstill.
        defaults |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
