"""What may be told of an error of vLLM or PyTorch: its kind. Its text may quote token ids, so it stays here."""

from __future__ import annotations

from collections.abc import Iterator

# PyTorch's allocator on a CPU, cuBLAS, and the driver of a GB10 do not raise an error of a kind of its own.
_ALLOCATION = ("out of memory", "allocate memory", "ALLOC_FAILED", "NV_ERR_NO_MEMORY", "No available memory")


def kind_of(error: BaseException) -> str:
    """The error's type, and that of what caused it: "RuntimeError by OutOfMemoryError"."""
    return " by ".join(type(one).__name__ for one in list(_chain(error))[:4])


def is_out_of_memory(error: BaseException) -> bool:
    return any(_lacks_memory(one) for one in _chain(error))


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError | ValueError) and any(sign in str(error) for sign in _ALLOCATION)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
