"""How much is asked of a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MIB = 2**20


@dataclass(frozen=True)
class Sizes:
    """How much is asked of a machine.

    :ivar long: prompt that is aborted; the small cache holds little more than one of them
    :ivar turns: length of the prompts that preempt each other
    :ivar rounds: that are measured, of one prompt and of several at once
    """

    chunk: int
    block: int
    kv_bytes: int
    long: int
    turns: int
    aborts: int
    speed: int
    rounds: tuple[int, int]
    patience: float
    starts_at_once: int
    threads: int | None


_ON_GPU = Sizes(2048, 16, 1024 * _MIB, 16_000, 15_000, 10, 8000, (12, 12), 60, 3, None)
_ON_CPU = Sizes(512, 128, 256 * _MIB, 4000, 2300, 3, 1200, (2, 2), 240, 2, 1)
# Rounds are long here: four prompts of 8,192 tokens take seconds.
_LARGE_ON_GPU = Sizes(2048, 16, 4096 * _MIB, 16_000, 0, 0, 8192, (8, 4), 90, 3, None)
_LARGE_ON_CPU = Sizes(512, 128, 256 * _MIB, 4000, 0, 0, 1200, (1, 1), 240, 2, 1)


def sizes_for(large: bool, cpu: bool, chunk: int | None) -> Sizes:
    """
    :param large: for the model of random weights
    :param chunk: tokens of a step; None for the machine's usual number
    """
    on_cpu, on_gpu = (_LARGE_ON_CPU, _LARGE_ON_GPU) if large else (_ON_CPU, _ON_GPU)
    sizes = on_cpu if cpu else on_gpu
    return sizes if chunk is None else replace(sizes, chunk=chunk)
