"""What this connector does not do, said at the start instead of found out by wrong rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

TESTED_VERSION = "0.32"


class Refused(Exception):  # noqa: N818 - it reads as what happened
    """:ivar code: one of `refused.code` in the schema"""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def refuse_unsupported(config: VllmConfig) -> None:
    """:raises Refused: SETTINGS_INVALID, naming what has to be turned off"""
    for refused, message in _settings(config):
        if refused:
            raise Refused("SETTINGS_INVALID", message)


def _settings(config: VllmConfig) -> list[tuple[bool, str]]:
    cache, parallel, model = config.cache_config, config.parallel_config, config.model_config
    return [
        (config.lora_config is not None, "LoRA adapters change K and V: start vLLM without them"),
        (
            config.speculative_config is not None,
            "speculative decoding pads the last prompt token: start vLLM without it",
        ),
        (
            cache.cache_dtype not in ("auto", "bfloat16"),
            f"the KV cache is {cache.cache_dtype}: only bfloat16 is exported (set kv_cache_dtype=bfloat16)",
        ),
        (str(model.dtype) != "torch.bfloat16", f"the model runs in {model.dtype}: only bfloat16 is exported"),
        (
            bool(config.scheduler_config.disable_hybrid_kv_cache_manager) and has_windows(model.hf_text_config),
            "the hybrid KV cache manager is off although the model has sliding-window layers: turn it on",
        ),
        (
            getattr(parallel, "decode_context_parallel_size", 1) > 1
            or getattr(parallel, "prefill_context_parallel_size", 1) > 1,
            "context parallelism divides the tokens of a row's cache: use tensor or pipeline parallelism",
        ),
        (
            _accepts_images(config),
            "image and video input is on: set limit_mm_per_prompt to 0 for each",
        ),
    ]


def has_windows(text_config: Any) -> bool:
    kinds = getattr(text_config, "layer_types", None)
    if kinds is not None:
        return "sliding_attention" in kinds
    return getattr(text_config, "sliding_window", None) is not None


def _accepts_images(config: VllmConfig) -> bool:
    multimodal = config.model_config.multimodal_config
    if multimodal is None:
        return False
    return any(multimodal.get_limit_per_prompt(kind) > 0 for kind in ("image", "video"))


def untested(version: str) -> bool:
    return version != TESTED_VERSION and not version.startswith(f"{TESTED_VERSION}.")


def version_warnings(version: str) -> list[str]:
    """What the producer is told once the layout has been found and the self-test has passed."""
    if not untested(version):
        return []
    return [f"vLLM {version} is not the tested {TESTED_VERSION}; it goes on because its layout and self-test are right"]
