from __future__ import annotations

import pytest

from muser_vllm.failures import is_out_of_memory, kind_of


class OutOfMemoryError(RuntimeError):
    """As PyTorch's is called."""


def raised_from(cause: BaseException) -> BaseException:
    try:
        raise RuntimeError("engine failed at prompt [1, 2, 3]") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: 64 bytes"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        OSError(12, "Cannot allocate memory"),
        ValueError("No available memory for the cache blocks."),
        raised_from(MemoryError()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_is_known(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [ValueError("memory"), RuntimeError("illegal memory access"), KeyError("m")])
def test_other_errors_are_none(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_only_kinds_are_told() -> None:
    told = kind_of(raised_from(ValueError("token 4711")))
    assert told == "RuntimeError by ValueError"


def test_errors_that_caused_one_another_come_to_an_end() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert kind_of(first) == "ValueError by KeyError"
    assert not is_out_of_memory(first)
