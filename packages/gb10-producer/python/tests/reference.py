"""muse-nano in transformers: K and V by another implementation."""

from __future__ import annotations

import random
from functools import cache

import torch
from peer import MODEL
from transformers import AutoModelForImageTextToText


@cache
def _model() -> torch.nn.Module:
    torch.set_num_threads(1)
    model: torch.nn.Module = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.bfloat16)
    return model


def prompt(count: int, seed: int) -> list[int]:
    """`count` tokens that are no special ones."""
    generator = random.Random(seed)
    return [generator.randrange(9, 4096) for _ in range(count)]


def rows(tokens: list[int]) -> dict[tuple[int, int], tuple[int, torch.Tensor]]:
    """By (layer, 0=K or 1=V): first row that is kept (window layers drop early ones), (tokens, heads, dimension)."""
    with torch.no_grad():
        cache = _model()(torch.tensor([tokens]), use_cache=True).past_key_values
    found = {}
    for number, layer in enumerate(cache.layers):
        for which, kept in enumerate((layer.keys, layer.values)):
            values = kept[0].permute(1, 0, 2)
            found[number, which] = (len(tokens) - len(values), values)
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest relative distance of any row of any head."""
    a, b = a.float(), b.float()
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())
