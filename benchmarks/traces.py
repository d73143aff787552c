"""Recorded production traces as open workloads: the arrivals, lengths and shared prefixes of real users, with text of ours.

Two public formats are read, plain or gzipped; benchmarks/README.md names their sources.

    Azure   CSV: TIMESTAMP, ContextTokens, GeneratedTokens
    Mooncake  JSON lines: timestamp (ms), input_length, output_length, hash_ids (one a 512-token block; equal ids, equal prefix)

Traces of large models are too much for small machines: time can be stretched and lengths shrunk, both by a plain factor.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.workload_file import WorkloadError
from benchmarks.workloads import VARIANTS, WARMUP, Codec, Prompt, Tokens, Workload

BLOCK = 512  # tokens that one hash id stands for


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace."""

    at: float  # seconds after the trace's first
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()  # what the prompt is made of, where the trace tells


@dataclass(frozen=True, slots=True)
class Cut:
    """Which part of a trace is replayed, and how it is scaled."""

    start: float = 0.0  # seconds into the trace
    seconds: float = 60.0  # of the trace, before it is stretched
    slowdown: float = 1.0  # arrivals are this many times further apart
    shrink: float = 1.0  # lengths are multiplied by this
    longest: int = 2048  # tokens of prompt and reply together; longer requests are left out


def read(path: Path) -> list[Recorded]:
    """Every request in order of arrival; raises WorkloadError for a file that is neither format."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            first = file.readline()
            rows = _azure(file) if first.startswith("TIMESTAMP,") else _mooncake([first, *file])
            recorded = sorted(rows, key=lambda row: row.at)
    except OSError as error:
        raise WorkloadError(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path} is neither an Azure nor a Mooncake trace: {error!r}") from None
    if not recorded:
        raise WorkloadError(f"{path} holds no requests")
    first_at = recorded[0].at
    return [Recorded(row.at - first_at, row.prompt_tokens, row.output_tokens, row.blocks) for row in recorded]


def _azure(lines: Iterable[str]) -> Iterator[Recorded]:
    for stamp, prompt, output in csv.reader(lines):
        at = datetime.fromisoformat(f"{stamp[:26]}+00:00").timestamp()  # to the microsecond
        yield Recorded(at, int(prompt), int(output))


def _mooncake(lines: Iterable[str]) -> Iterator[Recorded]:
    for line in lines:
        row = json.loads(line)
        blocks = tuple(int(block) for block in row.get("hash_ids", ()))
        yield Recorded(row["timestamp"] / 1000, int(row["input_length"]), int(row["output_length"]), blocks)


def workload(name: str, recorded: Sequence[Recorded], cut: Cut, codec: Codec, seed: int) -> Workload:
    """An open workload of the requests that lie in the cut; raises WorkloadError when none does."""
    plan = [row for row in (_scaled(row, cut) for row in _window(recorded, cut)) if _fits(row, cut)]
    if not plan:
        raise WorkloadError(
            f"{name} has no request between {cut.start:.0f} and {cut.start + cut.seconds:.0f} s that fits"
        )
    tokens = Tokens(codec, f"{seed} {name}")
    requests, length, out = WARMUP
    warmup = tuple(tokens.prompt(tokens.take(length), out) for _ in range(requests))
    block = max(1, round(BLOCK * cut.shrink))
    variants = tuple(tuple(_prompts(plan, tokens, block)) for _ in range(VARIANTS))
    return Workload(name, "open", True, 0, warmup, variants)


def _window(recorded: Iterable[Recorded], cut: Cut) -> Iterator[Recorded]:
    return (row for row in recorded if cut.start <= row.at < cut.start + cut.seconds)


def _scaled(row: Recorded, cut: Cut) -> Recorded:
    prompt, output = (max(1, round(count * cut.shrink)) for count in (row.prompt_tokens, row.output_tokens))
    return Recorded((row.at - cut.start) * cut.slowdown, prompt, output, row.blocks)


def _fits(row: Recorded, cut: Cut) -> bool:
    return row.prompt_tokens + row.output_tokens <= cut.longest


def _prompts(plan: Sequence[Recorded], tokens: Tokens, block: int) -> Iterator[Prompt]:
    texts: dict[int, list[int]] = {}  # equal ids are equal text within one variant
    for row in plan:
        ids: list[int] = []
        for name in row.blocks:
            if name not in texts:
                texts[name] = tokens.take(block)
            ids += texts[name]
        missing = row.prompt_tokens - len(ids)
        ids = ids[: row.prompt_tokens] if missing <= 0 else ids + tokens.take(missing)
        yield tokens.prompt(ids, row.output_tokens, row.at)
