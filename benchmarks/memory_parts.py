"""What holds a server's memory, mapping by mapping: once torch is imported, once it is ready, and after each workload.

    python -m benchmarks.memory_parts                                   default flags, w1 to w3
    python -m benchmarks.memory_parts w1 -- --kv-cache-memory-bytes 360MiB   flags after -- go to `pagemill serve`

Resident pages are read from /proc/PID/smaps. The cache is the smallest anonymous mapping that holds as much as the server says its
cache is and malloc's header before it: an allocator's arena may happen to be as large as the cache alone. What files hold is told
apart by whether it was written (libraries' relocations) or only read, which the system may drop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import codec, machine, own_server, processes, record, speed, workloads
from benchmarks.client import Target, replay
from benchmarks.own_server import OwnServer, ServerError
from benchmarks.peers import process
from pagemill.metrics import MEMORY_BYTES

READ, WRITTEN, CACHE, REST = PARTS = ("files, read", "files, written", "KV cache", "other memory")
HUGE, PEAK = "of it in huge pages", "peak (VmHWM)"
_IMPORT = "import torch, sys; sys.stdout.write('there\\n'); sys.stdout.flush(); sys.stdin.read()"
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Mapping:
    """One of a process's; bytes."""

    name: str  # the file's path; "" or "[heap]" and the like without one
    size: int
    resident: int
    written: int  # of `resident`: pages of its own, not the file's
    huge: int


def mappings(text: str) -> Iterator[Mapping]:
    """Of a /proc/PID/smaps (https://docs.kernel.org/filesystems/proc.html)."""
    name, fields = "", dict[str, int]()
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if not words[0].endswith(":"):
            if fields:
                yield _mapping(name, fields)
            name, fields = words[5] if len(words) > 5 else "", {}
        elif words[-1] == "kB":
            fields[words[0]] = int(words[1]) * _KIB
    if fields:
        yield _mapping(name, fields)


def _mapping(name: str, fields: dict[str, int]) -> Mapping:
    return Mapping(name, fields["Size:"], fields["Rss:"], fields["Anonymous:"], fields["AnonHugePages:"])


def parts_of(maps: Sequence[Mapping], cache: int) -> dict[str, int]:
    """Bytes of each of PARTS and in huge pages; `cache` is the size that the server's cache has, 0 for none."""
    parts = dict.fromkeys((*PARTS, HUGE), 0)
    pool = min((m.size for m in maps if not m.name and 0 < cache < m.size), default=0)
    for mapping in maps:
        parts[HUGE] += mapping.huge
        if mapping.name.startswith("/"):
            parts[WRITTEN] += mapping.written
            parts[READ] += mapping.resident - mapping.written
        else:
            parts[CACHE if pool and mapping.size == pool else REST] += mapping.resident
    return parts


def look(pid: int, cache: int) -> dict[str, int]:
    """The same of a running process and of those below it, with their peak."""
    parts = dict.fromkeys((*PARTS, HUGE), 0)
    for member in processes.tree(pid):
        for part, size in parts_of(list(mappings(Path(f"/proc/{member}/smaps").read_text())), cache).items():
            parts[part] += size
    return parts | {PEAK: processes.peak_bytes(pid)}


def largest(pid: int, count: int) -> list[Mapping]:
    """The files of which most is resident, all mappings of one taken together."""
    files: dict[str, Mapping] = {}
    for m in mappings(Path(f"/proc/{pid}/smaps").read_text()):
        if m.name.startswith("/"):
            had = files.get(m.name, Mapping(m.name, 0, 0, 0, 0))
            files[m.name] = Mapping(
                m.name, had.size + m.size, had.resident + m.resident, had.written + m.written, had.huge + m.huge
            )
    return sorted(files.values(), key=lambda m: -m.resident)[:count]


def import_alone() -> dict[str, int]:
    """Of a Python of its own that imports torch and nothing else."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _IMPORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=kept) as running:
        assert running.stdout is not None
        running.stdout.readline()
        parts = look(running.pid, 0)
        running.communicate()
        return parts


def cache_bytes(base_url: str) -> int:
    """As the server's own /metrics have it."""
    with urllib.request.urlopen(f"{base_url}/metrics", timeout=10) as response:
        for line in response.read().decode().splitlines():
            if line.startswith(MEMORY_BYTES + "{") and 'kind="kv_cache"' in line and 'source="measured"' in line:
                return int(float(line.split()[-1]))
    raise ServerError("the server's /metrics say nothing of a KV cache")


async def measure(
    server: OwnServer, cache: int, names: Sequence[str], model: str, reps: int
) -> list[tuple[str, dict[str, int]]]:
    """A look when it is ready, and one after each workload."""
    tokenizer, target = codec.load(model), Target(server.base_url, model, prompt="ids")
    looks = [("ready", look(server.pid, cache))]
    for name in names:
        workload = workloads.STANDARD[name](tokenizer, workloads.SEED)
        for rep in range(reps):
            await replay(target, workload, workload.variants[rep % len(workload.variants)])
        looks.append((f"after {name}", look(server.pid, cache)))
    return looks


def table(looks: Sequence[tuple[str, dict[str, int]]]) -> str:
    """MB, as `speed` counts them."""
    columns = (*PARTS, HUGE, PEAK)
    rows = [[when, *(f"{parts[column] / 1e6:.0f}" for column in columns)] for when, parts in looks]
    return record.table(["MB", *columns], rows)


def main(argv: list[str] | None = None) -> int:
    """One run; 1 where the server did not start."""
    argv = sys.argv[1:] if argv is None else argv
    own, flags = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_parts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="(default: w1 w2 w3)")
    parser.add_argument("--model", default=speed.MODEL)
    parser.add_argument("--reps", type=int, default=3, help="repetitions of each workload (default: 3)")
    parser.add_argument("--files", type=int, default=0, metavar="N", help="name the N files of which most is resident")
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(own)
    here = machine.describe()
    print(here.line(), flush=True)
    looks = [("torch alone", import_alone())]
    try:
        with own_server.started(args.model, flags) as server:
            cache = cache_bytes(server.base_url)
            names = args.workloads or ["w1", "w2", "w3"]
            looks += asyncio.run(measure(server, cache, names, args.model, args.reps))
            for m in largest(server.pid, args.files):
                print(f"{m.resident / 1e6:8.1f} MB, written {m.written / 1e6:6.1f}  {m.name}")
    except ServerError as error:
        sys.stderr.write(f"benchmarks.memory_parts: {error}\n")
        return 1
    print(table(looks))
    if args.out:
        record.write(args.out, here, {"flags": flags, "cache": cache, "looks": dict(looks)})
    return 0


if __name__ == "__main__":
    process.end_cleanly()
    sys.exit(main())
