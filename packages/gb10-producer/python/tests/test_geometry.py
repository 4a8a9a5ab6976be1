from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from muser_vllm.geometry import geometry_of, own_heads, tokenizer_sha256
from muser_vllm.refusals import Refused

MODEL = Path(__file__).parents[4] / "models" / "muse-nano" / "hf"


def test_muse_nano_is_what_its_gguf_file_says() -> None:
    # The values are those that the engine reads from muse-nano-q8_0.gguf (native/metal, Model.info).
    text = AutoConfig.from_pretrained(MODEL).get_text_config()
    assert geometry_of(text, 2, 64) == {
        "layers": ["window", "window", "window", "global"] * 2,
        "kvHeads": 2,
        "headDimension": 64,
        "windowTokens": 512,
        "ropeBase": 500000,
        "ropeLayers": "window",
        "vocabularySize": 4096,
    }
    digest = "3f3b360b7f33249c5e1b61a6379a69120db909b7e9d720791c133d8f7caf7ffc"
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    assert tokenizer_sha256(tokenizer, 4096) == digest
    assert tokenizer_sha256(tokenizer, 4095) != digest


def config(**fields: Any) -> SimpleNamespace:
    base = {"num_hidden_layers": 2, "vocab_size": 10, "sliding_window": None, "rope_parameters": {"rope_theta": 1e4}}
    return SimpleNamespace(**{**base, **fields})


def test_a_dense_model() -> None:
    assert geometry_of(config(), 1, 2)["layers"] == ["global", "global"]
    assert geometry_of(config(), 1, 2)["ropeLayers"] == "all"
    assert geometry_of(config(sliding_window=7), 1, 2)["windowTokens"] == 7
    mixed = config(layer_types=["sliding_attention", "full_attention"], sliding_window=4)
    assert geometry_of(mixed, 1, 2)["ropeLayers"] == "all"


def test_rope_parameters_of_each_kind_of_layer() -> None:
    each = {"rope_theta": 5e4, "rope_type": "default"}
    kinds = ["sliding_attention", "full_attention"]
    model = config(layer_types=kinds, sliding_window=4, rope_parameters=dict.fromkeys(kinds, each))
    assert geometry_of(model, 1, 2)["ropeBase"] == 50000
    assert geometry_of(model, 1, 2)["ropeLayers"] == "all"


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention", "linear_attention"]},
        {"layer_types": ["full_attention"]},
        {"rope_parameters": None},
        {"layer_rope_theta": [1e4, 1e6]},
        {"layer_rope_theta": [1e4, 0]},
        {"no_rope_layers": [1, 0]},
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 2, 3]}},
        {"partial_rotary_factor": 0.25},
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 4,
            "rope_parameters": {
                "sliding_attention": {"rope_theta": 1e4},
                "full_attention": {"rope_theta": 1e6},
            },
        },
    ],
)
def test_what_cannot_be_handed_over_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        geometry_of(config(**fields), 1, 2)


# fault: replicated-heads
@pytest.mark.parametrize(
    ("heads", "ranks", "expected"),
    [(2, 1, [(0, 2)]), (8, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]), (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)])],
)
def test_heads_of_a_rank(heads: int, ranks: int, expected: list[tuple[int, int]]) -> None:
    assert [own_heads(heads, ranks, rank) for rank in range(ranks)] == expected
