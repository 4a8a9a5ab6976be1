"""What a rank checks on its own rows before anybody may rely on it."""

from __future__ import annotations

import torch

from .refusals import Refused
from .rows import Chunk, HostCopier, RankLayers, RowsWanted, Transfer, read_rows

_MOST_BYTES = 4 << 20


class SelfTest:
    """The same prompt twice: computed, then (as far as vLLM's prefix cache has it) from the cache.

    The layout was proven by its probe; this shows that hooks run, that block ids mean what they should, and that rows
    of real prefills are neither empty, nor all alike, nor others when they are read again.
    """

    def __init__(self, layers: RankLayers) -> None:
        self._layers = layers
        # By layer and K or V: the first token, and the rows from it on. Window layers do not begin at token 0.
        self._rows: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        self.passed = 0

    def check(self, transfer: Transfer, chunk: Chunk, copier: HostCopier) -> None:
        """Waits for the GPU. :raises Refused: SELF_TEST_FAILED"""
        ready = copier.mark()
        if ready is not None:
            ready.synchronize()
        for layer, source in self._layers.by_number.items():
            first = chunk.window_start if source.window else chunk.start
            for which in (0, 1) if first < chunk.end else ():
                self._check_rows(layer, which, first, self._read(transfer, chunk, first, (layer, which), copier))
        if chunk.end == transfer.spec.end:
            self.passed += 1

    def _read(
        self, transfer: Transfer, chunk: Chunk, first: int, part: tuple[int, int], copier: HostCopier
    ) -> torch.Tensor:
        most = _MOST_BYTES // self._layers.row_bytes
        pieces = []
        for start in range(first, chunk.end, most):
            wanted = RowsWanted(chunk.index, start, min(most, chunk.end - start), [part])
            pieces.append(read_rows(transfer, wanted, copier, _MOST_BYTES)[0].clone())
        return torch.cat(pieces)

    def _check_rows(self, layer: int, which: int, first: int, rows: torch.Tensor) -> None:
        where = f"layer {layer}, {'KV'[which]}"
        if not bool(torch.isfinite(rows).all()):
            raise Refused("SELF_TEST_FAILED", f"{where}: rows that are not finite")
        if not bool(rows.any(dim=-1).all()):
            raise Refused("SELF_TEST_FAILED", f"{where}: empty rows")
        if len(rows) > 1 and bool((rows[1:] == rows[:-1]).all()):
            raise Refused("SELF_TEST_FAILED", f"{where}: every token has the same row")
        if rows.shape[1] > 1 and bool((rows[:, 1:] == rows[:, :-1]).all()):
            raise Refused("SELF_TEST_FAILED", f"{where}: every head has the same row")
        known = self._rows.get((layer, which))
        if known is None:
            self._rows[layer, which] = (first, rows)
            return
        known_first, known_rows = known
        start, end = max(first, known_first), min(first + len(rows), known_first + len(known_rows))
        if start >= end:
            return
        # Other chunk borders change sums by a little; another row would be another by far.
        before = known_rows[start - known_first : end - known_first].float()
        again = rows[start - first : end - first].float()
        distance = (before - again).norm() / before.norm()
        if float(distance) > 0.05:
            raise Refused("SELF_TEST_FAILED", f"{where}: read again, rows differ by {float(distance):.3f}")
