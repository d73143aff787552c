"""Reads and writes workloads as JSON, a file each, so that any client can replay the same requests.

    {"name", "kind": "closed" | "open", "stream", "concurrency", "warmup": [PROMPT …], "variants": [[PROMPT …] …]}
    PROMPT: {"ids": [int …], "text", "max_tokens", "arrival": seconds (open)}

Used by `serve` and `workloads`. Anything else in a file is ignored, anything missing is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.workloads import Prompt, Workload


class WorkloadError(Exception):
    """A file that is no workload; the message names it and says why."""


def write(workload: Workload, path: Path) -> None:
    """Write one workload."""
    body = {
        "name": workload.name,
        "kind": workload.kind,
        "stream": workload.stream,
        "concurrency": workload.concurrency,
        "warmup": [_dump(prompt) for prompt in workload.warmup],
        "variants": [[_dump(prompt) for prompt in variant] for variant in workload.variants],
    }
    path.write_text(json.dumps(body), encoding="utf-8")


def read(path: Path) -> Workload:
    """Read one workload; raises WorkloadError."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        kind = body["kind"]
        if kind not in ("closed", "open"):
            raise WorkloadError(f"{path}: workloads of kind {kind!r} can't be replayed (closed and open can)")
        workload = Workload(
            name=str(body.get("name") or path.stem),
            kind=kind,
            stream=bool(body.get("stream", True)),
            concurrency=int(body.get("concurrency", 1)),
            warmup=tuple(_load(entry) for entry in body.get("warmup", [])),
            variants=tuple(tuple(_load(entry) for entry in variant) for variant in body["variants"]),
        )
    except OSError as error:
        raise WorkloadError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkloadError(f"{path} is not a workload: {error!r}") from None
    if not workload.variants or not all(workload.variants):
        raise WorkloadError(f"{path} has a variant without requests")
    if workload.kind == "closed" and workload.concurrency < 1:
        raise WorkloadError(f"{path} is closed and has no concurrency")
    return workload


def _dump(prompt: Prompt) -> dict[str, Any]:
    body: dict[str, Any] = {"ids": list(prompt.ids), "text": prompt.text, "max_tokens": prompt.max_tokens}
    return body | ({"arrival": prompt.arrival} if prompt.arrival else {})


def _load(entry: dict[str, Any]) -> Prompt:
    ids = tuple(int(token) for token in entry.get("ids", []))
    return Prompt(ids, str(entry["text"]), int(entry["max_tokens"]), float(entry.get("arrival", 0.0)))
