from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from muser_vllm.memory import free_memory_bytes

GIB = 2**30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    # A GB10's: hardly anything is free, but most of what is used is page cache. 100 GiB are available.
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: {128 * 2**20} kB\nMemFree: {2**20} kB\nMemAvailable: {100 * 2**20} kB\nHugePages: 0\n")
    return path


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_page_cache_counts_as_free(meminfo: Path, tmp_path: Path) -> None:
    assert free_memory_bytes(meminfo, tmp_path / "none", tmp_path / "none") == 100 * GIB


def own_cgroup(folder: Path, line: str) -> Path:
    path = folder / "cgroup"
    path.write_text(f"3:cpu:/other\n{line}\n")
    return path


@pytest.mark.parametrize("folder", ["", "system.slice", "system.slice/muser.service"])
@pytest.mark.parametrize(("limit", "free"), [(20 * GIB, 14 * GIB), ("max", 100 * GIB), (200 * GIB, 100 * GIB)])
def test_a_container_or_service_has_no_more_than_its_limit(
    meminfo: Path, tmp_path: Path, folder: str, limit: int | str, free: int
) -> None:
    stat = f"anon 1\ninactive_file {4 * GIB}\n"
    files = {"memory.max": f"{limit}\n", "memory.current": f"{10 * GIB}\n", "memory.stat": stat}
    write(tmp_path / "v2" / folder, files)
    own = own_cgroup(tmp_path, "0::/system.slice/muser.service")
    assert free_memory_bytes(meminfo, tmp_path / "v2", own) == free


@pytest.mark.parametrize(("limit", "free"), [(8 * GIB, GIB), (9223372036854771712, 100 * GIB), (GIB, 0)])
def test_a_cgroup_of_version_1(meminfo: Path, tmp_path: Path, limit: int, free: int) -> None:
    files = {
        "memory.limit_in_bytes": f"{limit}",
        "memory.usage_in_bytes": f"{9 * GIB}",
        "memory.stat": f"total_inactive_file {2 * GIB}",
    }
    write(tmp_path / "v1" / "memory" / "docker", files)
    own = own_cgroup(tmp_path, "4:hugetlb,memory:/docker/c0ffee")
    assert free_memory_bytes(meminfo, tmp_path / "v1", own) == free


def test_this_machine() -> None:
    assert 0 < free_memory_bytes() <= 1.2 * psutil.virtual_memory().available
