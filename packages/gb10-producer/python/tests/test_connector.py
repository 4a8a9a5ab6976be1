from __future__ import annotations

import torch

from muser_vllm.connector import storage_bytes


def test_a_storage_that_layers_share_counts_once() -> None:
    shared = torch.zeros(4, 1000, dtype=torch.int8)
    alone = torch.zeros(10, dtype=torch.int8)
    views = [shared[0], shared[1:].view(3, 10, 100), shared.view(torch.bfloat16), alone]
    assert storage_bytes(views) == 4000 + 10


def test_no_layer_needs_nothing() -> None:
    assert storage_bytes([]) == 0
