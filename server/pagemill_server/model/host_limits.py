"""What this process may use of the machine: free memory and CPUs, container limits included. Linux; read by `device` and `load`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that can still be taken: the machine's MemAvailable, or less where a cgroup (v2 or v1) allows less."""
    free = _meminfo(root)
    for group in _groups(root, "memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None:
                reclaimable = _stat(group / "memory.stat", cache_name)
                free = min(free, max(0, limit - max(0, used - reclaimable)))
    return free


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs that the cgroup's quota is worth, or None without one."""
    quotas = []
    for group in _groups(root, "cpu"):
        fields = _read(group / "cpu.max").split()
        if len(fields) == 2 and fields[0].isdigit():
            quotas.append(int(fields[0]) / int(fields[1]))
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _meminfo(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above it, whose limits bind as well."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not path or (controllers and controller not in controllers.split(",")):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = top / path.strip("/")
        while group != top:
            yield group
            group = group.parent
        yield top


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None  # "max": no limit


def _stat(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(name + " "):
            return int(line.split()[1])
    return 0
