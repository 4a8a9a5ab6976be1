"""A small paged cache with a scheduler's worth of block ids, for tests of the worker half without vLLM."""

from __future__ import annotations

from typing import Any

import torch

from muser_vllm.layout import RowReader, probe_layer
from muser_vllm.metadata import FinishedRequest, PrefillSpec, StepMetadata, StepRange
from muser_vllm.rows import LayerSource, RankLayers
from muser_vllm.rows.staging import Ready
from muser_vllm.worker_half import WorkerHalf, WorkerOptions

HEADS, DIM, SLOTS, BLOCKS, WINDOW = 2, 8, 4, 40, 8
KINDS = ["window", "global", "window", "global"]


def update(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    block, inside = slots // SLOTS, slots % SLOTS
    cache[block, :, inside, :DIM] = key
    cache[block, :, inside, DIM:] = value


def row(layer: int, which: int, token: int, version: int = 0) -> torch.Tensor:
    """What a token's row is in these tests: (heads, dimension), distinct everywhere."""
    base = torch.arange(HEADS * DIM, dtype=torch.float32).reshape(HEADS, DIM)
    generator = torch.Generator().manual_seed(token * 64 + layer * 8 + which * 4 + version)
    return (base + torch.randn(HEADS, DIM, generator=generator)).to(torch.bfloat16)


class Link:
    """Takes the frames of a worker half."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, dict[str, Any]]] = []

    def post(self, kind: str, header: dict[str, Any], ready: Ready | None = None) -> None:
        assert ready is None
        self.frames.append((kind, header))

    def close(self) -> None:
        self.frames.append(("closed", {}))

    def take(self, kind: str) -> list[dict[str, Any]]:
        found = [header for name, header in self.frames if name == kind]
        self.frames = [frame for frame in self.frames if frame[0] != kind]
        return found


class Engine:
    """Runs steps: groups 0 (window) and 1 (global); what vLLM would write is written between begin and end."""

    def __init__(self, *, staging: int = 1 << 20, lease: float = 30.0, layers: range = range(len(KINDS))) -> None:
        """:param layers: those that the rank has"""
        self.caches = [torch.zeros(BLOCKS, HEADS, SLOTS, 2 * DIM, dtype=torch.bfloat16) for _ in KINDS]
        places = {"window": 0, "global": 0}
        sources = {}
        for number in layers:
            kind, cache = KINDS[number], self.caches[number]
            reader = RowReader(cache, probe_layer(update, cache, HEADS, DIM))
            group = 0 if kind == "window" else 1
            sources[number] = LayerSource(f"l{number}", number, group, kind == "window", places[kind], reader)
            places[kind] += 1
        self.now = 0.0
        self.layers = RankLayers(sources, HEADS, DIM, WINDOW)
        options = WorkerOptions(staging, lease)
        self.half = WorkerHalf(self.layers, [SLOTS, SLOTS], torch.device("cpu"), options, clock=lambda: self.now)
        self.link = Link()
        self.half.attach(self.link)  # type: ignore[arg-type]
        self.tables: dict[str, list[list[int]]] = {}

    def step(
        self,
        *ranges: tuple[PrefillSpec, int, int, tuple[list[int], list[int]], bool],
        preempted: tuple[str, ...] = (),
        finished: tuple[FinishedRequest, ...] = (),
        version: int = 0,
    ) -> set[str]:
        metadata = StepMetadata(preempted=list(preempted), finished=list(finished), idle=not ranges)
        for spec, start, end, blocks, replaced in ranges:
            metadata.ranges.append(StepRange(spec.id, spec, start, end, blocks, replaced))
            known = self.tables.setdefault(spec.id, [[], []])
            for ids, new in zip(known, blocks, strict=True):
                if replaced:
                    ids.clear()
                ids.extend(new)
        self.half.begin_step(metadata)
        for number, kind in enumerate(KINDS):
            for spec, start, end, _, _ in ranges:
                self.write(number, self.tables[spec.id][0 if kind == "window" else 1], start, end, version)
        self.half.end_step()
        return self.half.finished()

    def write(self, layer: int, ids: list[int], start: int, end: int, version: int = 0) -> None:
        slots = torch.tensor([ids[token // SLOTS] * SLOTS + token % SLOTS for token in range(start, end)])
        key, value = (torch.stack([row(layer, w, t, version) for t in range(start, end)]) for w in (0, 1))
        update(key, value, self.caches[layer], slots)

    def read(self, id_: str, index: int, start: int, count: int, parts: list[list[int]]) -> torch.Tensor | str:
        header = {"read": 1, "id": id_, "index": index, "tokenStart": start, "tokenCount": count, "parts": parts}
        kind, answer, payload = self.half.read(header)
        if kind == "failed":
            return str(answer["code"])
        joined = b"".join(bytes(part) for part in payload)
        return torch.frombuffer(bytearray(joined), dtype=torch.bfloat16).view(len(parts), count, HEADS, DIM)


def expected(parts: list[list[int]], start: int, count: int, version: int = 0) -> torch.Tensor:
    return torch.stack(
        [torch.stack([row(layer, w, t, version) for t in range(start, start + count)]) for layer, w in parts]
    )
