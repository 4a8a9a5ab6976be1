from __future__ import annotations

import pytest
import torch

from muser_vllm.rows import BlockTables, StagingBudget, first_window_row


# fault: block-size-of-group
def test_slots_follow_the_block_ids() -> None:
    tables = BlockTables([4, 2])
    tables.add(([7, 3], [9, 8, 5]), replaced=True)
    assert tables.slots(0, 2, 7).runs(4) == [(7, 2, 2), (3, 0, 3)]
    assert tables.slots(1, 3, 6).runs(2) == [(8, 1, 1), (5, 0, 2)]
    assert tables.slots(0, 2, 7).runs(2) == [(15, 0, 2), (6, 0, 2), (7, 0, 1)], "the tensor's blocks may be smaller"
    tables.add(([1],), replaced=False)
    assert tables.slots(0, 8, 9).runs(4) == [(1, 0, 1)]
    tables.add(([2], [6]), replaced=True)
    assert tables.slots(0, 0, 1).runs(4) == [(2, 0, 1)]
    with pytest.raises(IndexError):
        tables.slots(0, 4, 5)


def test_rows_without_a_block_are_known() -> None:
    tables = BlockTables([4])
    tables.add(([0, 0, 5, 6],), replaced=True)
    assert tables.first_present(0, 0, 16) == 8
    assert tables.first_present(0, 10, 16) == 10
    assert tables.first_present(0, 0, 13) == 8
    assert tables.first_present(0, 0, 8) == 8
    assert tables.first_present(0, 0, 17) == 17
    assert tables.holds(0, 8, 16)
    assert not tables.holds(0, 7, 16)
    assert not tables.holds(0, 8, 17)
    assert tables.holds(0, 3, 3)
    tables.clear()
    assert not tables.holds(0, 0, 1)


def window(**changed: int | bool) -> int | None:
    values = {"start": 0, "end": 10, "window": 8, "export_end": 100, "row_bytes": 2, "free": 100, "short": False}
    return first_window_row(**{**values, **changed})  # type: ignore[arg-type]


def test_window_rows_that_a_chunk_brings() -> None:
    assert window() == 2
    assert window(start=5) == 5
    assert window(row_bytes=0) == 10
    # Resume points are skipped when memory is short or would be ...
    assert window(short=True) == 10
    assert window(free=15) == 10
    # ... rows of the prompt's last window never: they come in full, as far as needed, or the transfer fails.
    assert window(export_end=10, short=True) == 2
    assert window(export_end=14, free=8) == 6
    assert window(export_end=14, free=7) is None


def test_the_budget_counts() -> None:
    budget = StagingBudget(10)
    assert budget.take(5)
    assert not budget.short
    assert not budget.take(6)
    assert budget.take(5)
    assert budget.short
    budget.give_back(10)
    assert (budget.used, budget.free) == (0, 10)


def test_slots_of_a_large_cache() -> None:
    tables = BlockTables([16])
    tables.add(([2**27],), replaced=True)
    slots = tables.slots(0, 0, 1)
    block, inside = slots.split(16, torch.device("cpu"))
    assert (slots.highest, block.tolist(), inside.tolist()) == (2**31, [2**27], [0])
