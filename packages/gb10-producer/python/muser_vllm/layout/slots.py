"""Which slots of a paged cache hold a range of rows, in the forms in which readers need it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

Runs = list[tuple[int, int, int]]
"""(block, first slot in it, slots), in the order of the rows."""


class Slots:
    """Slot numbers, block x block size + place in the block. What is derived from them is kept: layers share it."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        """:param numbers: one for each row"""
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
            self._runs[block_slots] = _runs(self._numbers, block_slots)
        return self._runs[block_slots]

    def split(self, block_slots: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and place in it of every row, on the device. On a GPU the copy is queued on the current stream."""
        key = (block_slots, device)
        if key not in self._split:
            on_host = torch.empty((2, len(self)), dtype=torch.int64, pin_memory=device.type == "cuda")
            np.divmod(self._numbers, block_slots, out=(on_host[0].numpy(), on_host[1].numpy()))
            # From pinned memory, so that nobody waits for what the stream has to do before.
            block, inside = on_host.to(device, non_blocking=True)
            self._split[key] = (block, inside)
        return self._split[key]


def _runs(numbers: NDArray[np.int64], block_slots: int) -> Runs:
    if len(numbers) == 0:
        return []
    breaks = (np.diff(numbers) != 1) | (numbers[1:] % block_slots == 0)
    firsts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    counts = np.diff(firsts, append=len(numbers))
    block, inside = np.divmod(numbers[firsts], block_slots)
    return list(zip(block.tolist(), inside.tolist(), counts.tolist(), strict=True))
