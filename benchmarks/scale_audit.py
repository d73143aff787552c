"""What an audit log says of an operator at scale: how long each LLMDeployment waited, and what was written for it.

Pure but for reading the file. The API server's own stamps are the clock, so that neither a watch nor a poll of ours is part of
a figure. Knows the operator by its account. Called by `operator_scale` and tests/cluster/test_scale.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

Name = tuple[str, str]  # namespace and name


@dataclass(frozen=True, slots=True)
class Write:
    """One write that the API server answered."""

    at: float  # unix seconds, when it was answered
    user: str
    verb: str
    resource: str  # plural, with its subresource: "llmdeployments/status"
    name: Name
    code: int

    @property
    def kind(self) -> str:
        """Verb and resource, for counting."""
        return f"{self.verb} {self.resource}"


def read(log: Path) -> list[Write]:
    """Every write of a log and of what was rotated out of it, oldest first."""
    files = sorted(log.parent.glob(f"{log.stem}*{log.suffix}"))
    found: list[Write] = []
    for file in files:
        with file.open(encoding="utf-8") as lines:
            found += _parse(line for line in lines if line.endswith("\n"))  # the last may be half written
    return sorted(found, key=lambda write: write.at)


def _parse(lines: Iterable[str]) -> Iterator[Write]:
    for line in lines:
        event: Mapping[str, Any] = json.loads(line)
        about = event.get("objectRef")
        if event.get("stage") != "ResponseComplete" or about is None:
            continue
        resource = "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)
        yield Write(
            at=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
            user=event["user"]["username"],
            verb=event["verb"],
            resource=resource,
            name=(about.get("namespace", ""), about.get("name", "")),
            code=event.get("responseStatus", {}).get("code", 0),
        )


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds from an LLMDeployment's apply, one a deployment that got there."""

    to_deployment: tuple[float, ...]
    to_pod_bound: tuple[float, ...]  # its last pod has a node
    to_status: tuple[float, ...]  # the last change of its status, so far


def waits(writes: Sequence[Write], names: Iterable[Name], operator: str) -> Waits:
    """How long each of `names` waited, from the answer to its first apply."""
    wanted = set(names)
    applied, made, bound, said = (dict[Name, float]() for _ in range(4))
    for write in writes:
        if write.code >= 300:
            continue
        if write.resource == "llmdeployments" and write.name in wanted:
            applied.setdefault(write.name, write.at)
        elif write.resource == "deployments" and write.user == operator and write.name in wanted:
            made.setdefault(write.name, write.at)
        elif write.resource == "pods/binding" and (owner := owner_of(write.name)) in wanted:
            bound[owner] = write.at
        elif write.resource == "llmdeployments/status" and write.user == operator and write.name in wanted:
            said[write.name] = write.at
    return Waits(
        *(tuple(sorted(at[name] - applied[name] for name in at if name in applied)) for at in (made, bound, said))
    )


def owner_of(pod: Name) -> Name:
    """The Deployment that a pod's name is made of: NAME-TEMPLATE-RANDOM."""
    return pod[0], pod[1].rsplit("-", 2)[0]


def by(user: str, writes: Iterable[Write], since: float = 0.0, until: float = float("inf")) -> list[Write]:
    """The writes of one user in a stretch of time."""
    return [write for write in writes if write.user == user and since <= write.at < until]


def kinds(writes: Iterable[Write]) -> dict[str, int]:
    """How many of each kind, most first; refused ones apart."""
    counted = Counter(write.kind if write.code < 300 else f"{write.kind}: {write.code}" for write in writes)
    return dict(counted.most_common())


def per_name(writes: Iterable[Write], names: Iterable[Name]) -> dict[Name, int]:
    """How many writes concern each of `names`, by the names of children and events: NAME, NAME-SOMETHING or NAME.SOMETHING."""
    found = dict.fromkeys(names, 0)
    for write in writes:
        namespace, name = write.name
        while (namespace, name) not in found and (cut := max(name.rfind("-"), name.rfind("."))) >= 0:
            name = name[:cut]
        if (namespace, name) in found:
            found[namespace, name] += 1
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest rank of sorted `values`; None where there are none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
