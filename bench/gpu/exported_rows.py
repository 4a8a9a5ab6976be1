"""Exported K and V in files: for llama.cpp on another machine, and to compare engines with each other.

`kv-NAME.bin` holds bf16 (little-endian) rows in wire form: token-major, KV heads x head dimension, K in half-split
order. `kv-NAME.json` says where: for each prompt its tokens and `parts`, each one layer's K or V of the rows
[start, start + count) at a byte offset. Global layers have all rows but the last token's, window layers those of the
last window.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from producer_peer import Transfer, first_window_row
from prompts import EXPECTED_ANSWER, Prompt

FORMAT = 1

TOLERANCE = 0.03
"""Of relative distance, norm(a - b) / norm(b), of one layer's K or V. Other chunk borders make 0.012 on a CPU with
muse-nano (measured); a wrong row, head, rotation or permutation makes about 1."""


def write_export(folder: Path, name: str, ready: dict[str, Any], exported: list[tuple[Prompt, Transfer]]) -> int:
    """Returns the bytes of the rows' file."""
    prompts = []
    offset = 0
    with (folder / f"kv-{name}.bin").open("wb") as file:
        for prompt, transfer in exported:
            parts = []
            for layer, which, start, rows in last_rows(ready, prompt, transfer):
                size = file.write(rows.contiguous().view(torch.uint8).numpy().tobytes())
                kind = "kv"[which]
                parts.append({"layer": layer, "kind": kind, "start": start, "count": len(rows), "offset": offset})
                offset += size
            prompts.append({"name": prompt.name, "expected": EXPECTED_ANSWER, "tokens": prompt.tokens, "parts": parts})
    description = {"format": FORMAT, "wireType": "bf16", "geometry": ready["geometry"], "prompts": prompts}
    (folder / f"kv-{name}.json").write_text(json.dumps(description), "utf-8")
    return offset


def last_rows(ready: dict[str, Any], prompt: Prompt, transfer: Transfer) -> list[tuple[int, int, int, torch.Tensor]]:
    """(layer, 0 = K or 1 = V, first row, rows) as a decoder needs them."""
    end = len(prompt.tokens) - 1
    found = []
    for layer, kind in enumerate(ready["geometry"]["layers"]):
        start = first_window_row(ready, 0, end) if kind == "window" else 0
        found += [(layer, which, start, transfer.rows(layer, which, start, end)) for which in (0, 1)]
    return found


def compare_with(folder: Path, ready: dict[str, Any], exported: list[tuple[Prompt, Transfer]]) -> dict[str, Any]:
    """Relative distances from the only export in `folder`. :raises ValueError: it is of other prompts"""
    (path,) = folder.glob("kv-*.json")
    description = json.loads(path.read_text("utf-8"))
    data = path.with_suffix(".bin").read_bytes()
    known = {entry["name"]: entry for entry in description["prompts"]}
    distances = {}
    for prompt, transfer in exported:
        entry = known[prompt.name]
        if entry["tokens"] != prompt.tokens:
            raise ValueError(f"{path.name}: {prompt.name} has other tokens")
        for part, (layer, which, start, rows) in zip(entry["parts"], last_rows(ready, prompt, transfer), strict=True):
            if (part["layer"], part["kind"], part["start"]) != (layer, "kv"[which], start):
                raise ValueError(f"{path.name}: {prompt.name} has other parts")
            reference = torch.frombuffer(
                bytearray(data[part["offset"] : part["offset"] + 2 * rows.numel()]), dtype=torch.bfloat16
            )
            name = f"{prompt.name} layer {layer} {'KV'[which]}"
            distances[name] = relative_distance(rows, reference.view(rows.shape))
    worst = max(distances, key=lambda name: distances[name])
    return {
        "reference": path.stem,
        "tolerance": TOLERANCE,
        "greatestDistance": round(distances[worst], 5),
        "greatestAt": worst,
        "meanDistance": round(sum(distances.values()) / len(distances), 5),
        "parts": len(distances),
    }


def relative_distance(rows: torch.Tensor, reference: torch.Tensor) -> float:
    difference = (rows.float() - reference.float()).norm()
    return float(difference / reference.float().norm())
