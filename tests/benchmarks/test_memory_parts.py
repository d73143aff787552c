"""What holds a server's memory: from a map of it, and of a server that is started."""

import json
from pathlib import Path

import pytest

from benchmarks import memory_parts
from benchmarks.memory_parts import CACHE, HUGE, PEAK, READ, REST, WRITTEN, Mapping

SMAPS = """\
55e0-55e8 r-xp 00000000 08:01 1234                       /usr/lib/a library.so
Size:                 64 kB
Rss:                  40 kB
Pss:                   7 kB
Anonymous:             8 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me
7f00-7f80 rw-p 00000000 00:00 0
Size:               8192 kB
Rss:                4096 kB
Anonymous:          4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me hg
7f90-7f98 rw-p 00000000 00:00 0                          [heap]
Size:                100 kB
Rss:                  50 kB
Anonymous:            50 kB
AnonHugePages:         0 kB
"""


def test_mappings_are_read_with_their_names() -> None:
    assert list(memory_parts.mappings(SMAPS)) == [
        Mapping("/usr/lib/a library.so", 64 << 10, 40 << 10, 8 << 10, 0),
        Mapping("", 8 << 20, 4 << 20, 4 << 20, 2 << 20),
        Mapping("[heap]", 100 << 10, 50 << 10, 50 << 10, 0),
    ]


@pytest.mark.parametrize(
    ("size", "found"), [((8 << 20) - 4096, True), (7 << 20, True), (8 << 20, False), (9 << 20, False), (0, False)]
)
def test_the_cache_is_the_mapping_that_can_hold_it_and_mallocs_header(size: int, found: bool) -> None:
    parts = memory_parts.parts_of(list(memory_parts.mappings(SMAPS)), size)
    cache = 4 << 20 if found else 0
    assert parts == {
        READ: 32 << 10,
        WRITTEN: 8 << 10,
        CACHE: cache,
        REST: (50 << 10) + (4 << 20) - cache,
        HUGE: 2 << 20,
    }


def test_a_server_is_started_and_split(tmp_path: Path, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "parts.json"
    flags = ["w2", "--model", tiny, "--reps", "1", "--files", "2", "--out", str(out)]
    assert memory_parts.main([*flags, "--", "--kv-cache-memory-bytes", "16MiB"]) == 0
    looks = json.loads(out.read_text())["looks"]
    assert list(looks) == ["torch alone", "ready", "after w2"]
    assert looks["after w2"][CACHE] > looks["ready"][CACHE]
    for parts in looks.values():
        # The kernel counts pages a few late, and a start gives back a part of its peak.
        assert 0.4 * parts[PEAK] < sum(parts[part] for part in memory_parts.PARTS) < 1.1 * parts[PEAK]
    assert "after w2" in capsys.readouterr().out
