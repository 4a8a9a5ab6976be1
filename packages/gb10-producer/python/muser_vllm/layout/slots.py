"""Which slots of a paged cache hold a range of rows, in the forms in which readers need it."""

from __future__ import annotations

import torch

Runs = list[tuple[int, int, int]]
"""(block, first slot in it, slots), in the order of the rows."""


class Slots:
    """Slot numbers, block x block size + place in the block. What is derived from them is kept: layers share it."""

    def __init__(self, numbers: torch.Tensor) -> None:
        """:param numbers: int64 on the CPU, one for each row"""
        self._numbers = numbers
        self._runs: dict[int, Runs] = {}
        self._split: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}
        self.lowest = int(numbers.min()) if len(numbers) else 0
        self.highest = int(numbers.max()) if len(numbers) else 0

    def __len__(self) -> int:
        return len(self._numbers)

    def runs(self, block_slots: int) -> Runs:
        """Slots that follow one another in one block."""
        if block_slots not in self._runs:
            self._runs[block_slots] = _runs(self._numbers.tolist(), block_slots)
        return self._runs[block_slots]

    def split(self, block_slots: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and place in it of every row, on the device."""
        key = (block_slots, device)
        if key not in self._split:
            numbers = self._numbers.to(device, non_blocking=True)
            self._split[key] = (numbers // block_slots, numbers % block_slots)
        return self._split[key]


def _runs(numbers: list[int], block_slots: int) -> Runs:
    runs: Runs = []
    at = 0
    while at < len(numbers):
        block, inside = divmod(numbers[at], block_slots)
        count = 1
        while at + count < len(numbers) and inside + count < block_slots and numbers[at + count] == numbers[at] + count:
            count += 1
        runs.append((block, inside, count))
        at += count
    return runs
