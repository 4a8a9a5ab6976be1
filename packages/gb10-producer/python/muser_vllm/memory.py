"""How much memory is left for another prefill."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
# Beyond this a limit means none: version 1 writes the largest multiple of a page.
_NO_LIMIT = 2**60


def free_memory_bytes(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """What this process's machine, container or service can still give, page cache that can be dropped included.

    Not what CUDA reports: on a GB10 the GPU's memory is the host's, and CUDA counts droppable page cache as used. A GPU
    with memory of its own gave vLLM all that it needs at the start; what prefills take after that is the host's.
    """
    fields = _fields(meminfo)
    available = 1024 * fields["MemAvailable:"]
    return max(0, min(available, *(limit - used for limit, used in _limits(cgroups, own_cgroup))))


def _limits(cgroups: Path, own_cgroup: Path) -> list[tuple[int, int]]:
    """Limit and use of every memory cgroup that is above this process."""
    found = [(_NO_LIMIT, 0)]
    for folder, version in _folders(cgroups, own_cgroup):
        limit_name, use_name, cache_name = _NAMES[version]
        try:
            limit, use = (folder / limit_name).read_text().strip(), int((folder / use_name).read_text())
            droppable = _fields(folder / "memory.stat").get(cache_name, 0)
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < _NO_LIMIT:
            found.append((int(limit), max(0, use - droppable)))
    return found


_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def _folders(cgroups: Path, own_cgroup: Path) -> list[tuple[Path, int]]:
    """From the process's own cgroup up to the root, where a container sees its own."""
    try:
        lines = [line.split(":", 2) for line in own_cgroup.read_text().splitlines()]
    except OSError:
        return []
    folders = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "" or "memory" in controllers.split(","):
            root, version = (cgroups / "memory", 1) if controllers else (cgroups, 2)
            own = root / path.lstrip("/")
            folders += [(folder, version) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders


def _fields(path: Path) -> Mapping[str, int]:
    """Lines of a name and a number."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdigit()}
