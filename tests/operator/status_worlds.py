"""Worlds of one LLMDeployment and its pods, and what the status says of them: for the status' tests."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.fleet import standing, survey, wanted_of
from pagemill_operator.observe import World
from pagemill_operator.preflight import PASSED, Preflight
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.status import status
from pagemill_operator.waiting import Trouble
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.pod_statuses import loading, running

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
DRAINS = "2026-01-01T18:00:00Z"


class Pod(NamedTuple):
    """A pod of the present template."""

    status: Mapping[str, Any]
    answer: Probe | None = None
    former: bool = False  # of a former template
    leaving: str | None = None  # the end of its grace period
    spec: Mapping[str, Any] = {}  # beyond the template's


GET_READY = Pod(running(False), loading(47))


def world(
    *pods: Pod,
    spec: Mapping[str, Any],
    conditions: tuple[Mapping[str, str], ...] = (),
    seen: bool = True,
    nodes: Sequence[Manifest] = (),
) -> World:
    """Pods are called chat-0, chat-1 and so on."""
    resource = read(stored(**spec))
    children = [copy.deepcopy(dict(child)) for child in render(resource, SETTINGS)]
    (deployment,) = [child for child in children if child["kind"] == "Deployment"]
    deployment["metadata"]["generation"] = 3
    deployment["status"] = {"observedGeneration": 3 if seen else 2, "conditions": list(conditions)}
    made, answers = [], {}
    for number, pod in enumerate(pods):
        metadata = {**copy.deepcopy(deployment["spec"]["template"]["metadata"]), "name": f"chat-{number}"}
        if pod.former:
            metadata["annotations"] = {"pagemill.dev/template-hash": "former"}
        if pod.leaving:
            metadata["deletionTimestamp"] = pod.leaving
        made.append(
            {"metadata": metadata, "spec": deployment["spec"]["template"]["spec"] | pod.spec, "status": pod.status}
        )
        if pod.answer is not None:
            answers[f"chat-{number}"] = pod.answer
    return World(children=tuple(children), pods=tuple(made), probes=answers, nodes=tuple(nodes))


def told(
    seen: World,
    spec: Mapping[str, Any],
    refusal: Trouble | None = None,
    previous: Mapping[str, Any] | None = None,
    now: datetime = NOW,
    *,
    before: Preflight = PASSED,
    beside: Sequence[Trouble] = (),
) -> dict[str, Any]:
    """The status of generation 4."""
    resource = read(stored(generation=4, **spec))
    wanted = wanted_of(resource) if refusal is None else standing(seen)
    fleet = survey(wanted, seen, now)
    return status(
        resource.owner, resource.spec, fleet, seen, refusal, previous or {}, now, before=before, beside=beside
    )


def condition(body: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [one for one in body["conditions"] if one["type"] == kind]
    return dict(found)


def answers(body: Mapping[str, Any]) -> dict[str, str]:
    """Each condition as "Status Reason"."""
    return {one["type"]: f"{one['status']} {one['reason']}" for one in body["conditions"]}
