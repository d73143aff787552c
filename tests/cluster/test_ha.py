"""Two operators: one acts, the other follows when it is killed, told to end, stopped or cut off, and they never act at once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.operators import Operators, now
from testbed.ready import eventually
from testbed.release import NAMESPACE

pytestmark = pytest.mark.cluster
TAKEOVER = timedelta(seconds=20)


@pytest.fixture
def operators(pagemill: Cluster) -> Iterator[Operators]:
    """Two that are well, before and after."""
    found = Operators(pagemill)
    found.standby()
    yield found
    found.standby()


def handled(cluster: Cluster, namespace: str, name: str) -> Deployed:
    """A new LLMDeployment without pods, as soon as an operator has spoken of it."""
    deployed = deploy(cluster, namespace, name, replicas=0)
    deployed.await_condition("Ready", "True", "ScaledToZero")
    return deployed


def taken_at(operators: Operators, since: datetime, by: str) -> datetime:
    """When that pod first wrote itself into the Lease."""
    return next(write.at for write in operators.writes(since, leases=True) if write.pod == by)


def test_one_acts_and_the_other_only_watches(operators: Operators, pagemill: Cluster, namespace: str) -> None:
    leader, restarts, began = operators.leader(), operators.restarts(), now()
    for number in range(3):
        handled(pagemill, namespace, f"one{number}")
    assert {write.pod for write in operators.writes(began)} == {leader}
    assert {write.pod for write in operators.writes(began, leases=True)} <= {leader}
    assert operators.restarts() == restarts, "a standby is alive"


def test_a_killed_leader_is_followed_in_less_than_20_seconds(
    operators: Operators, pagemill: Cluster, namespace: str
) -> None:
    took = []
    for number in range(3):  # a machine that does much else may hold up one; too long a Lease would hold up all
        operators.standby()
        handled(pagemill, namespace, f"before-{number}")
        holder, killed = operators.holder(), now()
        operators.send(operators.leader(), "SIGKILL")
        deployed = deploy(pagemill, namespace, f"after-{number}", replicas=0)
        follower = operators.await_other(holder).rpartition("_")[0]
        takeover = taken_at(operators, killed + timedelta(seconds=1), follower)
        deployed.await_condition("Ready", "True", "ScaledToZero")
        assert min(write.at for write in operators.writes(killed)) >= takeover
        took.append(takeover - killed)
        if took[-1] < TAKEOVER:
            return
    raise AssertionError(f"each takes too long: {took}")


def test_a_leader_that_is_told_to_end_lets_the_other_begin_at_once(
    operators: Operators, pagemill: Cluster, namespace: str
) -> None:
    holder, told = operators.holder(), now()
    pagemill.kubectl("delete", "pod", operators.leader(), "-n", NAMESPACE, "--wait=false")
    # The standby or, on a machine that starts one faster than a standby looks, the pod that is made for the leader's place.
    follower = operators.await_other(holder).rpartition("_")[0]
    assert taken_at(operators, told, follower) - told < timedelta(seconds=10)
    handled(pagemill, namespace, "next")


def test_a_leader_that_is_cut_off_has_stopped_before_the_other_begins(
    operators: Operators, pagemill: Cluster, namespace: str
) -> None:
    leader, standby, restarts, began = operators.leader(), operators.standby(), operators.restarts(), now()
    with operators.cut_off(leader):
        cut = now()
        deployed = deploy(pagemill, namespace, "during", replicas=0)
        eventually("the standby's lead", lambda: operators.holder().startswith(standby) or None)
        taken = taken_at(operators, began, standby)
        assert taken - cut < 1.5 * TAKEOVER, "as after a kill, on a machine that does much else, too"
        deployed.await_condition("Ready", "True", "ScaledToZero")
        stopped = [at for at, words in operators.log(leader, began) if "leads no more" in words]
        assert len(stopped) == 1
        assert stopped[0] < taken
    handled(pagemill, namespace, "since")
    assert {write.pod for write in operators.writes(taken)} == {standby}
    assert operators.restarts() == restarts, "it waits for the API server, and is well"
    assert operators.holder().startswith(standby), "it stands by when it is back"


def test_a_leader_that_was_stopped_writes_nothing_when_it_wakes(
    operators: Operators, pagemill: Cluster, namespace: str
) -> None:
    """SIGSTOP: events pile up, and no timer of its own tells it that its time is over."""
    leader, standby, restarts, began = operators.leader(), operators.standby(), operators.restarts(), now()
    operators.send(leader, "SIGSTOP")
    try:
        deployed = deploy(pagemill, namespace, "meanwhile", replicas=0)
        eventually("the standby's lead", lambda: operators.holder().startswith(standby) or None)
        deployed.await_condition("Ready", "True", "ScaledToZero")
        deploy(pagemill, namespace, "meanwhile", replicas=0, servedModelNames=["another"])
    finally:
        operators.send(leader, "SIGCONT")

    def noticed() -> bool | None:
        """It says so; or, on a machine that does much else, the kubelet took too long a stop for a death and started it again."""
        said = [words for _, words in operators.log(leader, began) if "leads no more" in words]
        return bool(said) or operators.restarts()[leader] > restarts[leader] or None

    eventually("its word", noticed)
    handled(pagemill, namespace, "since")
    taken = taken_at(operators, began, standby)
    assert {write.pod for write in operators.writes(taken)} == {standby}
