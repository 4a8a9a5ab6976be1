"""What is said at the start: refusals of what cannot be exported, and warnings of what was not tested."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_bridge_fuzz import settings

from muser_vllm import engine, worker
from muser_vllm.refusals import Refused, has_windows, refuse_unsupported, version_warnings


def config(**changed: Any) -> Any:
    """vLLM's configuration, as far as it matters here, of a model with windows that can be exported."""
    text = SimpleNamespace(layer_types=["sliding_attention", "full_attention"])
    parts: dict[str, Any] = {
        "lora": None,
        "speculative": None,
        "cache": "auto",
        "dtype": "torch.bfloat16",
        "hybrid_off": False,
        "contexts": 1,
        "images": 0,
        **changed,
    }
    multimodal = SimpleNamespace(get_limit_per_prompt=lambda kind: parts["images"] if kind == "image" else 0)
    return SimpleNamespace(
        lora_config=parts["lora"],
        speculative_config=parts["speculative"],
        cache_config=SimpleNamespace(cache_dtype=parts["cache"]),
        model_config=SimpleNamespace(
            dtype=parts["dtype"],
            hf_text_config=text,
            multimodal_config=None if parts["images"] is None else multimodal,
        ),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=parts["hybrid_off"]),
        parallel_config=SimpleNamespace(decode_context_parallel_size=parts["contexts"]),
    )


@pytest.mark.parametrize("changed", [{}, {"cache": "bfloat16"}, {"images": None}])
def test_what_can_be_exported(changed: dict[str, Any]) -> None:
    refuse_unsupported(config(**changed))


# fault: window-manager-off
# fault: last-token-guessed
# fault: quantized-cache
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"lora": object()}, "LoRA"),
        ({"speculative": object()}, "speculative"),
        ({"cache": "fp8"}, "fp8"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"hybrid_off": True}, "hybrid KV cache manager"),
        ({"contexts": 2}, "context parallelism"),
        ({"images": 1}, "image"),
    ],
)
def test_what_cannot_is_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(Refused, match=named) as error:
        refuse_unsupported(config(**changed))
    assert error.value.code == "SETTINGS_INVALID"


@pytest.mark.parametrize(
    ("changed", "text", "code"),
    [
        ({"cache": "fp8"}, {}, "SETTINGS_INVALID"),
        ({}, {"rope_parameters": {"rope_type": "yarn"}}, "MODEL_UNSUPPORTED"),
        ({}, {"layer_types": ["linear_attention", "full_attention"]}, "MODEL_UNSUPPORTED"),
    ],
)
def test_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], text: dict[str, Any], code: str
) -> None:
    vllm_config = config(**changed)
    model = vllm_config.model_config
    model.get_total_num_kv_heads, model.get_head_size = lambda: 1, lambda: 64
    vars(model.hf_text_config).update(num_hidden_layers=2, sliding_window=16, vocab_size=9, rope_theta=1e4, **text)
    loaded: list[Any] = []
    monkeypatch.setattr(engine.AsyncLLM, "from_vllm_config", lambda found, **_: loaded.append(found))
    arguments: Any = SimpleNamespace(create_engine_config=lambda _: vllm_config)
    with pytest.raises(Refused) as error:
        engine.start_engine(arguments, engine.StepCounter())
    assert error.value.code == code
    assert loaded == []


def test_models_with_windows() -> None:
    assert has_windows(SimpleNamespace(sliding_window=512))
    assert not has_windows(SimpleNamespace(sliding_window=None))
    assert not has_windows(SimpleNamespace(layer_types=["full_attention"], sliding_window=512))


@pytest.mark.parametrize("version", ["0.32", "0.32.0", "0.32.1", "0.32.0rc1"])
def test_the_tested_version_needs_no_word(version: str) -> None:
    assert version_warnings(version) == []


@pytest.mark.parametrize("version", ["0.31.0", "0.33.0", "0.320.1", "1.0", "dev"])
def test_another_version_is_named_beside_the_tested_one(version: str) -> None:
    [warning] = version_warnings(version)
    assert version in warning
    assert "0.32" in warning


# fault: versions-do-not-fit
def test_another_version_is_told_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm.__version__", "0.31.0")
    with caplog.at_level(logging.WARNING):
        worker._warn_of_version()
    assert "vLLM 0.31.0 is not tested" in caplog.text


# fault: silent-wrong-rows
# fault: kernel-traps
@pytest.mark.parametrize("ranks", [[], [{"self_tests": 0}], [{"self_tests": 1}, {"self_tests": 0}]])
def test_without_a_self_test_on_every_rank_nothing_is_served(tmp_path: Path, ranks: list[dict[str, int]]) -> None:
    one = worker.Worker(settings(tmp_path), 0.0)
    one._vocabulary_size = 100

    async def prefill(*_: Any) -> dict[str, Any]:
        return {"reused": 0, "ranks": ranks}

    one._prefill = prefill
    with pytest.raises(Refused) as error:
        asyncio.run(one._self_test(expected=max(1, len(ranks))))
    assert error.value.code == "SELF_TEST_FAILED"
