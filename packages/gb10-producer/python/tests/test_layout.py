"""Every known form of a paged cache, written by a stand-in for the backend's update that is spelt out per form here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from muser_vllm.layout import JoinedReader, LayoutError, RowReader, Slots, probe_layer

BLOCKS, SLOTS, HEADS, DIM = 9, 32, 3, 64
Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def last_axis(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    dim = key.shape[2]
    block, inside = slots // cache.shape[2], slots % cache.shape[2]
    cache[block, :, inside, :dim] = key
    cache[block, :, inside, dim:] = value


def two_first(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    block, inside = slots // cache.shape[2], slots % cache.shape[2]
    cache[0, block, inside] = key
    cache[1, block, inside] = value


def two_second(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    block, inside = slots // cache.shape[2], slots % cache.shape[2]
    cache[block, 0, inside] = key
    cache[block, 1, inside] = value


def halves(place_k: str, place_v: str) -> Update:
    """Per block and head first K, then V, each in an order of its own."""

    def positions(order: str, slot: torch.Tensor, dim: int, slots: int) -> torch.Tensor:
        slot, d = slot[:, None], torch.arange(dim)
        if order == "plain":
            return slot * dim + d
        if order == "transposed":
            return d * slots + slot
        if order == "packed K":  # pairs of dimensions, groups of 16 tokens
            return slot // 16 * 16 * dim + d // 2 * 32 + slot % 16 * 2 + d % 2
        return slot // 2 * 32 + d // 16 * slots * 16 + d % 16 * 2 + slot % 2  # packed V: pairs of tokens

    def update(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        blocks, heads, length, dim = cache.shape[0], cache.shape[1], cache.shape[2], key.shape[2]
        flat = cache.view(blocks, heads, -1)
        block, inside = slots[:, None] // length, slots % length
        for head in range(heads):
            flat[block, head, positions(place_k, inside, dim, length)] = key[:, head]
            flat[block, head, length * dim + positions(place_v, inside, dim, length)] = value[:, head]

    return update


def memory(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def shared(*, gap: int) -> torch.Tensor:
    """One layer of several in one storage: it begins at an offset and blocks are further apart than they are long."""
    block = HEADS * SLOTS * 2 * DIM
    whole = memory((BLOCKS + 1) * (block + gap))
    return whole.as_strided((BLOCKS, HEADS, SLOTS, 2 * DIM), (block + gap, 2 * DIM, HEADS * 2 * DIM, 1), gap)


FORMS: dict[str, tuple[Callable[[], torch.Tensor], Update, str]] = {
    "last-axis-nhd": (lambda: memory(BLOCKS, SLOTS, HEADS, 2 * DIM).transpose(1, 2), last_axis, "(N,H,B,2D), NHD"),
    "last-axis-hnd": (lambda: memory(BLOCKS, HEADS, SLOTS, 2 * DIM), last_axis, "(N,H,B,2D), HND"),
    "last-axis-nhd-shared": (lambda: shared(gap=4096), last_axis, "(N,H,B,2D), NHD"),
    "two-first": (lambda: memory(2, BLOCKS, SLOTS, HEADS, DIM), two_first, "(2,N,B,H,D), NHD"),
    "two-first-hnd": (
        lambda: memory(2, BLOCKS, HEADS, SLOTS, DIM).transpose(2, 3),
        two_first,
        "(2,N,B,H,D), HND",
    ),
    "two-second": (lambda: memory(BLOCKS, 2, SLOTS, HEADS, DIM), two_second, "(N,2,B,H,D), NHD"),
    "two-second-hnd": (lambda: memory(BLOCKS, 2, HEADS, SLOTS, DIM).transpose(2, 3), two_second, "(N,2,B,H,D), HND"),
    "cpu-plain": (
        lambda: memory(BLOCKS, HEADS, SLOTS, 2 * DIM),
        halves("plain", "plain"),
        "(N,H,B,2D) in halves, K plain, V plain",
    ),
    "cpu-transposed": (
        lambda: memory(BLOCKS, HEADS, SLOTS, 2 * DIM),
        halves("transposed", "plain"),
        "(N,H,B,2D) in halves, K transposed, V plain",
    ),
    "cpu-packed": (
        lambda: memory(BLOCKS, HEADS, SLOTS, 2 * DIM),
        halves("packed K", "packed V"),
        "(N,H,B,2D) in halves, K packed, V packed",
    ),
}


# fault: unknown-layout
@pytest.mark.parametrize("form", FORMS)
def test_rows_come_back_from_every_known_form(form: str) -> None:
    make, update, name = FORMS[form]
    cache = make()
    layout = probe_layer(update, cache, HEADS, DIM)
    assert layout.name == name
    assert not cache.any(), "the probe must leave the cache alone"
    generator = torch.Generator().manual_seed(7)
    slots = torch.randperm(BLOCKS * SLOTS, generator=generator)[:100]
    key, value = (torch.randn(100, HEADS, DIM, generator=generator).to(torch.bfloat16) for _ in range(2))
    update(key, value, cache, slots)
    reader = RowReader(cache, layout)
    for head in range(HEADS):
        assert torch.equal(reader.read(0, Slots(slots.numpy()))[:, head], key[:, head])
        assert torch.equal(reader.read(1, Slots(slots.numpy()))[:, head], value[:, head])
    assert not torch.equal(reader.read(0, Slots(slots.numpy()))[:, 0], key[:, 1]), (
        "heads must differ for this test to mean anything"
    )


# fault: more-blocks-than-planned
@pytest.mark.parametrize("form", FORMS)
def test_runs_that_cross_blocks(form: str) -> None:
    make, update, _ = FORMS[form]
    cache = make()
    layout = probe_layer(update, cache, HEADS, DIM)
    slots = torch.cat([torch.arange(SLOTS * 5 + 7, SLOTS * 7 + 3), torch.arange(SLOTS - 1, SLOTS + 2)])
    rows = torch.randn(len(slots), HEADS, DIM).to(torch.bfloat16)
    update(rows, -rows, cache, slots)
    reader = RowReader(cache, layout)
    assert torch.equal(reader.read(0, Slots(slots.numpy())), rows)
    assert torch.equal(reader.read(1, Slots(slots.numpy())), -rows)
    assert reader.read(0, Slots(slots[:0].numpy())).shape == (0, HEADS, DIM)


def test_one_head() -> None:
    layout = probe_layer(last_axis, memory(BLOCKS, 1, SLOTS, 2 * DIM), 1, DIM)
    assert layout.k.offset == 0


def scrambled(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    order = torch.randperm(DIM, generator=torch.Generator().manual_seed(1))
    last_axis(key[:, :, order], value, cache, slots)


def head_dependent(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    other = key.clone()
    other[:, 1] = key[:, 1].flip(-1)
    last_axis(other, value, cache, slots)


def drops_v(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    last_axis(key, torch.zeros_like(value), cache, slots)


def scales(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    last_axis(key * 1.5, value, cache, slots)


def value_first(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    last_axis(value, key, cache, slots)


def ignores_slots(key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    last_axis(key, value, cache, slots.sort().values)


# fault: unknown-layout
@pytest.mark.parametrize("update", [scrambled, head_dependent, drops_v, scales, value_first, ignores_slots])
def test_unknown_forms_are_refused(update: Update) -> None:
    with pytest.raises(LayoutError):
        probe_layer(update, memory(BLOCKS, HEADS, SLOTS, 2 * DIM), HEADS, DIM)


# fault: unknown-layout
def test_caches_that_cannot_be_told_are_refused() -> None:
    with pytest.raises(LayoutError, match="axes cannot be told"):
        probe_layer(two_first, memory(2, 2, SLOTS, HEADS, DIM), HEADS, DIM)
    with pytest.raises(LayoutError, match="float16"):
        probe_layer(last_axis, memory(BLOCKS, HEADS, SLOTS, 2 * DIM).to(torch.float16), HEADS, DIM)
    with pytest.raises(LayoutError, match="axes cannot be told"):
        probe_layer(last_axis, memory(BLOCKS, HEADS, SLOTS, 2 * DIM), HEADS + 1, DIM)


# fault: replicated-heads
def test_rows_outside_the_cache_are_refused() -> None:
    cache = memory(BLOCKS, HEADS, SLOTS, 2 * DIM)
    reader = RowReader(cache, probe_layer(last_axis, cache, HEADS, DIM))
    for slot in (-1, BLOCKS * SLOTS):
        with pytest.raises(LayoutError):
            reader.read(0, Slots(np.array([slot])))
    small = memory(BLOCKS - 1, HEADS, SLOTS, 2 * DIM)[: BLOCKS - 2]
    assert RowReader(small, probe_layer(last_axis, cache, HEADS, DIM)).slots == (BLOCKS - 2) * SLOTS


@pytest.mark.parametrize("form", FORMS)
def test_the_way_of_a_gpu_reads_the_same(form: str) -> None:
    """One indexing of the whole cache instead of copies of runs: no GPU is needed to check that."""
    make, update, _ = FORMS[form]
    cache = make()
    layout = probe_layer(update, cache, HEADS, DIM)
    slots = torch.randperm(BLOCKS * SLOTS)[:70]
    rows = torch.randn(len(slots), HEADS, DIM).to(torch.bfloat16)
    update(rows, -rows, cache, slots)
    reader = RowReader(cache, layout)
    target = torch.empty_like(rows)
    for which, wanted in ((0, rows), (1, -rows)):
        reader._index(which, Slots(slots.numpy()), target)
        assert torch.equal(target, wanted)


def _of_one_memory(form: str, layers: int, *, step: int = 1) -> list[torch.Tensor]:
    """Caches of a form, `step` apart in one memory."""
    make, _, _ = FORMS[form]
    one = make()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
    memory = torch.zeros(extent * (layers * step + 1), dtype=torch.bfloat16)
    return [memory.as_strided(one.shape, one.stride(), (1 + i * step) * extent) for i in range(layers)]


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_one_memory_are_read_together(form: str) -> None:
    _, update, _ = FORMS[form]
    caches = _of_one_memory(form, 3)
    layout = probe_layer(update, caches[0], HEADS, DIM)
    slots = torch.randperm(BLOCKS * SLOTS)[:70]
    rows = torch.randn(3, 2, len(slots), HEADS, DIM).to(torch.bfloat16)
    for cache, (key, value) in zip(caches, rows, strict=True):
        update(key, value, cache, slots)
    joined = JoinedReader.of([RowReader(cache, layout) for cache in caches])
    if layout.k.order() != "plain" or layout.v.order() != "plain":
        assert joined is None
        return
    assert joined is not None
    target = torch.empty(2, 2, len(slots), HEADS, DIM, dtype=torch.bfloat16)
    joined.read_into(Slots(slots.numpy()), target, 1, 3)
    assert torch.equal(target, rows[1:])
    with pytest.raises(LayoutError):
        joined.read_into(Slots(np.array([BLOCKS * SLOTS])), target[:, :, :1], 1, 3)


def test_layers_that_are_no_one_tensor_are_not_joined() -> None:
    apart = _of_one_memory("last-axis-nhd", 4, step=2)
    layout = probe_layer(last_axis, apart[0], HEADS, DIM)
    readers = [RowReader(cache, layout) for cache in apart]
    assert JoinedReader.of(readers) is not None
    assert JoinedReader.of([readers[i] for i in (0, 1, 3)]) is None
    assert JoinedReader.of(readers[::-1]) is None
    other = memory(BLOCKS, HEADS, SLOTS, 2 * DIM)
    assert JoinedReader.of([readers[0], RowReader(other, probe_layer(last_axis, other, HEADS, DIM))]) is None
