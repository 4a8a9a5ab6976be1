"""What the connector costs: prefills with it and without it, in turns."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from producer_peer import PlainEngine, ProducerPeer
from prompts import ordinary_tokens

SPEED_GOAL = 0.97
"""Least part of vLLM's own prefill rate that is left with the connector."""
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Load:
    """Prompts that are computed.

    :ivar tokens: of each prompt
    :ivar concurrent: prompts at once, after one at a time
    :ivar rounds: that are measured, of one prompt and of several at once
    """

    tokens: int
    vocabulary: int
    concurrent: int
    rounds: tuple[int, int]


def measure_speed(peer: ProducerPeer, plain: PlainEngine, load: Load) -> dict[str, dict[str, Any]]:
    """Prefill tokens/s with and without the connector, in turns, every row read; ratios of medians.

    :return: figures of ``one`` prompt and of ``four`` at once
    """
    figures = {}
    for name, count, rounds in zip(("one", "four"), (1, load.concurrent), load.rounds, strict=True):
        times: dict[str, list[float]] = {"on": [], "off": [], "read": []}
        delays: list[tuple[int, float]] = []
        for number in range(rounds + _WARM_UP_ROUNDS):
            prompts = [ordinary_tokens(load.tokens, load.vocabulary, 1000 * (number + 1) + i) for i in range(count)]
            kinds = ("on", "off") if number % 2 == 0 else ("off", "on")
            for kind in kinds:
                if kind == "off":
                    times["off"].append(plain.prefill_seconds(prompts))
                    continue
                computed, read, chunks = _timed(peer, prompts, f"speed-{name}-{number}")
                times["on"].append(computed)
                times["read"].append(read)
                delays += chunks if number >= _WARM_UP_ROUNDS else []
        figures[name] = _figures_of(times, delays, count * load.tokens)
    return figures


def _timed(peer: ProducerPeer, prompts: list[list[int]], scope: str) -> tuple[float, float, list[tuple[int, float]]]:
    """(seconds until computed, until read, the chunks' delays)"""
    started = time.perf_counter()
    transfers = peer.read_all([peer.prefill(tokens, scope) for tokens in prompts], keep=False)
    computed = max(transfer.computed_at for transfer in transfers) - started
    read = max(transfer.read_at for transfer in transfers) - started
    return computed, read, [delay for transfer in transfers for delay in transfer.chunk_delays]


def _figures_of(times: dict[str, list[float]], delays: list[tuple[int, float]], tokens: int) -> dict[str, Any]:
    on, off, read = (statistics.median(times[kind][_WARM_UP_ROUNDS:]) for kind in ("on", "off", "read"))
    seconds = sorted(delay for _, delay in delays)
    return {
        "onTokensPerSecond": round(tokens / on),
        "offTokensPerSecond": round(tokens / off),
        "ratio": round(off / on, 4),
        "untilReadRatio": round(off / read, 4),
        "chunkEndToLastByteMs": {
            "median": round(1000 * statistics.median(seconds), 2),
            "slowest": round(1000 * seconds[-1], 2),
        },
        "chunkBytes": max(size for size, _ in delays),
        "roundsMs": {kind: [round(1000 * value, 1) for value in times[kind]] for kind in ("on", "off")},
    }
