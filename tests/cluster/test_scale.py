"""Many LLMDeployments on fake nodes: the operator writes little for each, nothing at rest, and keeps nobody waiting.

The same code as the benchmark's (`benchmarks/operator_scale.py`, which takes a thousand and gives the figures of docs/scale.md).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from testbed import kwok
from testbed.cluster import Cluster
from testbed.errors import NotPossibleHere
from testbed.ready import eventually

from benchmarks import operator_scale, scale_audit, scale_load
from benchmarks.scale_operator import USER, Operator

pytestmark = pytest.mark.cluster
COUNT = 40
MOST_WRITES = (
    20  # for one LLMDeployment until it is Ready: its children, its status as pods come, an event for what is new
)
REST_SECONDS = 20


@pytest.fixture(scope="module")
def fleet() -> Iterator[tuple[Cluster, Operator]]:
    """A cluster with COUNT LLMDeployments that are served, and their operator."""
    if os.environ.get("PAGEMILL_TEST_KUBECONFIG"):
        pytest.skip("needs fake nodes and the audit log of a cluster of our own")
    try:
        cluster = kwok.up(nodes=8)
    except NotPossibleHere as reason:
        pytest.skip(str(reason))
    try:
        operator_scale.prepare(cluster, "ready")
        operator = Operator(cluster)
        operator.start()
        scale_load.apply(cluster.kubeconfig, [scale_load.manifest(name) for name in scale_load.names(COUNT)])
        operator_scale.settle(cluster, COUNT, seconds=600)
        yield cluster, operator
    finally:
        cluster.close()


def writes(cluster: Cluster, since: float = 0.0) -> list[scale_audit.Write]:
    """The operator's, its Lease aside."""
    found = scale_audit.by(USER, scale_audit.read(operator_scale.audit_log(cluster)), since)
    return [write for write in found if write.resource != "leases"]


def test_all_are_served_with_few_writes_for_each(fleet: tuple[Cluster, Operator]) -> None:
    cluster, _ = fleet
    names = scale_load.names(COUNT)
    waited = scale_audit.waits(scale_audit.read(operator_scale.audit_log(cluster)), names, USER)
    assert len(waited.to_deployment) == len(waited.to_pod_bound) == COUNT
    assert operator_scale.conditions(cluster) == {"Serving": COUNT}
    counts = scale_audit.per_name(writes(cluster), names)
    assert min(counts.values()) >= 3
    assert max(counts.values()) <= MOST_WRITES, scale_audit.kinds(writes(cluster))


def test_nothing_is_written_at_rest(fleet: tuple[Cluster, Operator]) -> None:
    cluster, _ = fleet
    began = time.time()
    time.sleep(REST_SECONDS)
    assert scale_audit.kinds(writes(cluster, since=began)) == {}


def test_a_new_operator_writes_nothing_for_what_is_there_and_acts_for_who_is_new(
    fleet: tuple[Cluster, Operator],
) -> None:
    cluster, operator = fleet
    found = operator_scale.restart(cluster, operator)
    assert found["writes_for_what_was_there"] == {}
    assert found["seconds_to_a_new_deployment"] is not None


def test_pods_that_do_not_answer_keep_nobody_else_waiting(fleet: tuple[Cluster, Operator]) -> None:
    """Each costs the operator a time-out at every look; looks at them must not stand in the way of one who is new."""
    cluster, operator = fleet
    operator.stop()
    operator_scale.answer(cluster, "silent")
    operator.start()
    time.sleep(5)  # all are looked at again and again
    waited = []
    for number in range(3):  # a busy machine may hold up one; whoever stands in the way would hold up all
        new = ("scale-0", f"among-the-silent-{number}")
        scale_load.apply(cluster.kubeconfig, [scale_load.manifest(new)])
        began = time.time()
        eventually("its Deployment", lambda new=new: is_made(cluster, new) or None)  # type: ignore[misc]
        waited.append(time.time() - began)
        if waited[-1] < 15:
            return
    raise AssertionError(f"each new one waits: {waited}")


def is_made(cluster: Cluster, name: tuple[str, str]) -> bool:
    return any(write.resource == "deployments" and write.name == name for write in writes(cluster))
