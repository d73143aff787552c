"""Free memory and CPUs under the limits that containers set, read from made-up proc and cgroup files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemill_server.model.host_limits import available_memory, cpu_quota

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": f"MemTotal: 999 kB\nMemAvailable:  {8 * GIB // 1024} kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"})
    assert available_memory(root) == 8 * GIB
    assert cpu_quota(root) is None


def test_a_cgroup_limit_less_what_is_used_and_can_not_be_reclaimed(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/kubepods/pod1"
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1",
            f"{group}/memory.max": str(4 * GIB),
            f"{group}/memory.current": str(3 * GIB),
            f"{group}/memory.stat": f"anon 5\ninactive_file {2 * GIB}",
            f"{group}/cpu.max": "150000 100000",
        },
    )
    assert available_memory(root) == 3 * GIB
    assert cpu_quota(root) == 1.5


def test_the_limits_of_groups_above_bind_as_well(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/pod1/container",
            "sys/fs/cgroup/pods/pod1/memory.max": str(2 * GIB),
            "sys/fs/cgroup/pods/pod1/memory.current": str(GIB),
            "sys/fs/cgroup/pods/pod1/container/memory.max": "max",
            "sys/fs/cgroup/pods/pod1/container/cpu.max": "max 100000",
            "sys/fs/cgroup/pods/cpu.max": "400000 100000",
        },
    )
    assert available_memory(root) == GIB
    assert cpu_quota(root) == 4.0


def test_inside_a_container_the_group_is_the_root(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": str(GIB), "sys/fs/cgroup/memory.current": "0"},
    )
    assert available_memory(root) == GIB


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/c\n3:memory:/m",
            "sys/fs/cgroup/memory/m/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/m/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/m/memory.stat": f"total_inactive_file {GIB // 2}",
            "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000",
        },
    )
    assert available_memory(root) == 2 * GIB - GIB // 2
    assert cpu_quota(root) == 0.5


def test_more_used_than_allowed_is_nothing_left(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1000", "sys/fs/cgroup/memory.current": "2000"},
    )
    assert available_memory(root) == 0


@pytest.mark.parametrize("text", ["", "0::/gone/away"])
def test_a_machine_without_cgroups(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"proc/self/cgroup": text})
    assert available_memory(root) == 8 * GIB
    assert cpu_quota(root) is None


def test_this_machine_says_something_sensible() -> None:
    assert 1 << 20 < available_memory() < 1 << 50
