"""Many lives of a deployment in a Kubernetes that moves by itself: what must hold at every second, and what in the end.

Each seed is another life: spec edits, kills of the operator between any two calls, a cache that lags, and in rough lives pods
that are deleted, go silent or crash, and hands that meddle. Afterwards everything calms down, and what is wanted must be there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Key
from pagemill_operator.labels import DELETION_COST_ANNOTATION, DRAIN_ANNOTATION, PREFLIGHT_ANNOTATION
from pagemill_operator.reconcile import reconcile
from pagemill_operator.settings import Settings
from tests.operator.golden_cases import MANAGED
from tests.operator.manifests import stored
from tests.operator.simulated_cluster import BAD_LENGTH, BAD_MODEL, Killed, SimulatedCluster
from tests.operator.status_schema import check_status

KEY = Key("team", "chat")
LOOKING = replace(MANAGED, preflight=True)
ROLLOUT = {"lameDuckSeconds": 3, "drainTimeoutSeconds": 20}

UNSERVED = {"quantization": "fp8"}  # which this release refuses


class Life:
    """One deployment, and the operator that is called when an event has come or when it wanted to look again."""

    def __init__(self, seed: int, settings: Settings = MANAGED, **spec: Any) -> None:
        self.chance = random.Random(seed)
        self.cluster = SimulatedCluster(stored(**{"rollout": ROLLOUT, **spec}), self.chance)
        self.settings = settings
        self.due: float | None = 0.0
        self.looks = 0

    @property
    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.manifests[KEY]["spec"]
        return found

    @property
    def wanted(self) -> int:
        return 0 if self.spec.get("suspend") else int(self.spec.get("replicas", 1))

    def edit(self, **spec: Any) -> None:
        self.cluster.edit(KEY, **spec)
        self.cluster.changed = True

    async def second(self) -> None:
        cluster = self.cluster
        cluster.tick()
        if not cluster.changed and (self.due is None or cluster.seconds < self.due):
            return
        cluster.changed = False
        self.looks += 1
        before = cluster.manifests[KEY].get("status")
        try:
            again = await reconcile(cluster, KEY, cluster.now, self.settings)
        except Killed:
            cluster.tell_all()  # the next one lists everything
            return
        assert again is None or again >= 1, "a hot loop"
        self.due = None if again is None else cluster.seconds + again
        status = cluster.status(KEY)
        check_status(status, cluster.manifests[KEY]["metadata"]["generation"])
        if status != before:
            cluster.changed = True  # an event of the resource's own
            self.check_ready(status)

    def check_ready(self, status: dict[str, Any]) -> None:
        ready = cluster_condition(status, "Ready")
        if ready["status"] == "True" and ready["reason"] == "Serving":
            assert status["readyReplicas"] >= self.wanted > 0
        assert (ready["reason"] == "ScaledToZero") == (ready["status"] == "True" and not self.wanted)

    async def calm(self) -> None:
        """Nothing happens any more: it must come to rest, with what is wanted."""
        cluster = self.cluster
        cluster.killing = cluster.lag = 0.0
        for server in cluster.servers.values():
            server.hears = True
        cluster.tell_all()
        for _ in range(400):
            await self.second()
        cluster.writes.clear()
        cluster.managed.clear()
        looks = self.looks
        for _ in range(120):
            await self.second()
        assert (cluster.writes, cluster.managed) == ([], [])
        assert self.looks - looks <= 20

    def check_served(self) -> None:
        cluster = self.cluster
        pods = cluster.pods(all_of_them=True)
        for name, pod in pods.items():
            annotations = pod["metadata"]["annotations"]
            assert DRAIN_ANNOTATION not in annotations
            assert DELETION_COST_ANNOTATION not in annotations
            assert not cluster.servers[name].draining
        assert (len(pods), cluster.takers()) == (self.wanted, self.wanted)
        status = cluster.status(KEY)
        said = {one["type"]: one["status"] for one in status["conditions"]}
        assert (said["Ready"], said["Progressing"], said["Degraded"], said["Draining"]) == (
            "True",
            "False",
            "False",
            "False",
        )
        assert "rollout" not in status
        names = [one["metadata"]["name"] for one in cluster.posted]
        assert len(names) == len(set(names))
        assert not any(kind == "Job" for kind, _ in cluster.objects)


def cluster_condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [one for one in status["conditions"] if one["type"] == kind]
    return dict(found)


def gentle(life: Life) -> dict[str, Any]:
    """An edit that no replica fails for."""
    chance = life.chance
    return chance.choice(
        [
            {"replicas": chance.randint(1, 5)},
            {"replicas": chance.randint(1, 5)},
            {"maxModelLen": chance.randint(100, 103)},
            {"rollout": {**ROLLOUT, "strategy": chance.choice(["Replace", "Surge"])}},
            {"replicas": chance.randint(1, 5), "maxModelLen": chance.randint(100, 103)},
            {"schedulingPolicy": chance.choice(["fcfs", "fair"])},
        ]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [MANAGED, LOOKING], ids=["", "preflight"])
async def test_while_nothing_fails_as_many_serve_as_the_strategy_promises(seed: int, settings: Settings) -> None:
    life = Life(seed, settings, replicas=3)
    cluster = life.cluster
    for _ in range(60):
        await life.second()
    for _ in range(6):
        assert cluster.takers() == life.wanted
        served, least = cluster.takers(), life.wanted
        cluster.lag, cluster.killing = life.chance.choice([0.0, 0.5]), life.chance.choice([0.0, 0.1])
        surge = life.spec["rollout"].get("strategy") == "Surge"
        pause = life.chance.choice([5, 20])
        for second in range(200):
            if second in (0, pause, 3 * pause):
                life.edit(**gentle(life))
                least = min(least, life.wanted)
                surge = surge and life.spec["rollout"].get("strategy") == "Surge"
            await life.second()
            promised = min(least, served) - (0 if surge else 1)
            assert cluster.takers() >= promised, (second, cluster.sets, cluster.servers)
        cluster.lag = cluster.killing = 0.0
        cluster.tell_all()
        for _ in range(100):
            await life.second()
    await life.calm()
    life.check_served()


@pytest.mark.parametrize("seed", range(8))
async def test_a_scale_down_takes_nobody_who_is_busy(seed: int) -> None:
    life = Life(seed, replicas=5)
    cluster = life.cluster
    for _ in range(60):
        await life.second()
    cluster.lag, cluster.killing = life.chance.choice([0.0, 0.5]), life.chance.choice([0.0, 0.1])
    for _ in range(16):
        life.edit(replicas=life.chance.randint(1, 6))
        for _ in range(life.chance.choice([2, 4, 8, 15, 60])):
            await life.second()
            for _, server in cluster.stopped:
                assert not server.serving or (server.draining and not server.in_flight) or server.age > 500
            cluster.stopped.clear()
    await life.calm()
    life.check_served()


def meddle(life: Life) -> None:
    """Something goes wrong, or a hand does it."""
    cluster, chance = life.cluster, life.chance
    pods, deployment = list(cluster.pods()), cluster.objects.get(("Deployment", "chat"))
    name = chance.choice(pods) if pods else None
    notes = cluster.objects["Pod", name]["metadata"]["annotations"] if name else {}

    def silence() -> None:
        if name:
            cluster.servers[name].hears = not cluster.servers[name].hears

    def restart() -> None:
        if name:
            cluster.servers[name].age = 0
            cluster.servers[name].draining, cluster.servers[name].in_flight = False, 0

    def scale() -> None:
        if deployment:
            deployment["spec"]["replicas"] = chance.randint(0, 6)
            deployment["metadata"]["generation"] += 1

    def spoil() -> None:
        if deployment:
            deployment["metadata"]["annotations"][PREFLIGHT_ANNOTATION] = "spoilt"

    def delete_job() -> None:
        for kind, job in list(cluster.objects):
            if kind == "Job":
                del cluster.objects[kind, job]

    acts: list[Callable[[], object]] = [
        lambda: cluster.stop(name) if name else None,
        silence,
        restart,
        scale,
        spoil,
        delete_job,
        lambda: cluster.objects.pop(("Deployment", "chat"), None),
        lambda: cluster.objects.pop(("Service", "chat"), None),
        lambda: notes.update({DRAIN_ANNOTATION: chance.choice(["x", "2026-01-01T00:00:00", "2026-01-01T00:00:00Z"])}),
        lambda: notes.update({DELETION_COST_ANNOTATION: chance.choice(["-1000", "7"])}),
        lambda: notes.pop(DRAIN_ANNOTATION, None),
        lambda: life.edit(**gentle(life)),
        lambda: life.edit(maxModelLen=BAD_LENGTH),
        lambda: life.edit(model=BAD_MODEL),
        lambda: life.edit(model=None) if "model" not in life.spec else life.edit(model="org/other"),
        lambda: life.edit(suspend=chance.choice([True, None])),
        lambda: life.edit(engine=chance.choice([UNSERVED, None])),
        lambda: life.edit(replicas=chance.choice([0, 1, 2, 4])),
    ]
    chance.choice(acts)()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("settings", [MANAGED, LOOKING], ids=["", "preflight"])
async def test_whatever_happens_it_comes_to_rest_with_what_is_wanted(seed: int, settings: Settings) -> None:
    life = Life(seed, settings, replicas=3)
    cluster = life.cluster
    cluster.lag, cluster.killing = life.chance.choice([0.0, 0.5]), life.chance.choice([0.0, 0.1])
    for _ in range(40):
        for _ in range(life.chance.choice([1, 3, 8, 30])):
            await life.second()
        meddle(life)
    life.edit(suspend=None, engine=None, replicas=life.chance.randint(1, 4), maxModelLen=200, model="org/good")
    await life.calm()
    life.check_served()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("settings", [MANAGED, LOOKING], ids=["", "preflight"])
async def test_what_stays_broken_is_left_in_peace(seed: int, settings: Settings) -> None:
    life = Life(seed, settings, replicas=3)
    for _ in range(10):
        for _ in range(life.chance.choice([1, 3, 8, 30])):
            await life.second()
        meddle(life)
    strategy = life.chance.choice(["Replace", "Surge"])
    life.edit(
        suspend=None,
        engine=None,
        replicas=4,
        maxModelLen=200,
        model="org/good",
        rollout={**ROLLOUT, "strategy": strategy},
    )
    for _ in range(150):
        await life.second()
    wanted = life.chance.randint(1, 3)
    life.edit(replicas=wanted)
    for _ in range(life.chance.randint(0, 12)):
        await life.second()
    last: list[dict[str, Any]] = [
        {"maxModelLen": BAD_LENGTH},
        {"engine": UNSERVED},
        {"model": BAD_MODEL, "suspend": True},
    ]
    life.edit(**life.chance.choice(last))
    await life.calm()
    if not life.spec.get("suspend"):
        assert life.cluster.takers() >= wanted - (1 if strategy == "Replace" else 0)
    assert not any(server.draining for server in life.cluster.servers.values())
