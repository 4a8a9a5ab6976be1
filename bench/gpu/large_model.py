"""A model folder without weights, of the geometry of the 30-B model, for engines that make random weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Geometry:
    """:ivar kv_heads: each of `head` elements; :ivar window: tokens that three of four layers see"""

    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    window: int


LARGE = Geometry(hidden=6656, feed_forward=19_968, heads=32, kv_heads=2, head=128, window=2048)
SMALL = Geometry(hidden=512, feed_forward=1024, heads=4, kv_heads=2, head=128, window=512)
"""For a machine without a GPU."""


def write_model(source: Path, target: Path, geometry: Geometry, layers: int) -> None:
    """muse-nano's architecture and tokenizer in another size. The vocabulary stays small: logits of one row."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, target)
    config: dict[str, Any] = json.loads((source / "config.json").read_text("utf-8"))
    is_global = [layer % 4 == 3 for layer in range(layers)]
    base = config["text_config"]["rope_parameters"]["rope_theta"]
    config["text_config"] |= {
        "num_hidden_layers": layers,
        "hidden_size": geometry.hidden,
        "intermediate_size": geometry.feed_forward,
        "num_attention_heads": geometry.heads,
        "num_key_value_heads": geometry.kv_heads,
        "head_dim": geometry.head,
        "sliding_window": geometry.window,
        "layer_types": ["full_attention" if found else "sliding_attention" for found in is_global],
        "layer_rope_theta": [0 if found else base for found in is_global],
    }
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
