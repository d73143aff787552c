"""Which writes follow from a world: none from one that is as wanted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import SPEC_HASH_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.plan import Apply, plan
from pagemill_operator.render import render
from pagemill_operator.resource import read
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored


def desired(**spec: Any) -> tuple[Manifest, ...]:
    return render(read(stored(**spec)), SETTINGS)


def applied(**spec: Any) -> World:
    """The world after everything was written once."""
    actions = plan(read(stored(**spec)).owner, desired(**spec), World())
    assert all(isinstance(action, Apply) for action in actions)
    return World(children=tuple(copy.deepcopy(action.manifest) for action in actions if isinstance(action, Apply)))


def planned(world: World, **spec: Any) -> list[str]:
    actions = plan(read(stored(**spec)).owner, desired(**spec), world)
    return [
        f"apply {action.manifest['kind']}"
        if isinstance(action, Apply)
        else f"delete {action.ref.kind} {action.ref.name}"
        for action in actions
    ]


CACHE = {"modelCache": {"size": "1Gi"}}


@pytest.mark.parametrize(
    ("before", "after", "actions"),
    [
        ({}, {}, []),
        ({}, {"replicas": 2}, ["apply PodDisruptionBudget", "apply Deployment"]),
        ({}, {"suspend": True}, ["apply Deployment"]),
        ({}, {"service": {"port": 80}}, ["apply Service"]),
        ({}, {"maxModelLen": 5}, ["apply Deployment"]),
        ({}, {"schedulingPolicy": "fair"}, ["apply ConfigMap"]),
        ({}, CACHE, ["apply PersistentVolumeClaim", "apply Deployment"]),
        (CACHE, {}, ["apply Deployment", "delete PersistentVolumeClaim chat-models"]),
        ({"modelCache": {"size": "1Gi", "retain": True}}, {}, ["apply Deployment"]),  # it is kept
        ({}, {"pod": {"serviceAccountName": "own"}}, ["apply Deployment", "delete ServiceAccount chat"]),
        ({"resources": {"limits": {"cpu": "1"}}}, {}, ["apply Deployment"]),  # a field that goes
    ],
)
def test_a_change_of_the_spec(before: dict[str, Any], after: dict[str, Any], actions: list[str]) -> None:
    assert planned(applied(**before), **after) == actions


def test_the_order_of_a_first_apply() -> None:
    assert planned(World(), **CACHE) == [
        "apply ServiceAccount",
        "apply PersistentVolumeClaim",
        "apply Service",
        "apply ConfigMap",
        "apply Deployment",
    ]


def _scale(child: Any) -> None:
    child["spec"]["replicas"] = 7


def _image(child: Any) -> None:
    child["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep"]


def _unlabel(child: Any) -> None:
    child["metadata"]["labels"].pop("app.kubernetes.io/name")


def _disown(child: Any) -> None:
    child["metadata"]["ownerReferences"] = []


def _pause(child: Any) -> None:
    child["spec"]["paused"] = True


@pytest.mark.parametrize("by_hand", [_scale, _image, _unlabel, _disown, _pause])
def test_what_a_hand_changed_is_put_right(by_hand: Callable[[Any], None]) -> None:
    world = applied()
    by_hand(world.children[-1])
    assert planned(world) == ["apply Deployment"]


def _default(child: Any) -> None:
    child["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    child["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"


def test_what_others_own_is_left_alone() -> None:
    world = applied()
    _default(world.children[-1])
    assert planned(world) == []


GROWN = {"modelCache": {"size": "2Gi"}}


def _claim_of(size: str) -> tuple[World, Any]:
    world = applied(**GROWN)
    claim: Any = next(child for child in world.children if child["kind"] == "PersistentVolumeClaim")
    claim["spec"]["resources"]["requests"]["storage"] = size
    return world, claim


@pytest.mark.parametrize(
    ("size", "actions"), [("3Gi", []), ("3072Mi", []), ("2048Mi", []), ("1Gi", ["apply PersistentVolumeClaim"])]
)
def test_a_claim_that_has_grown_is_not_shrunk(size: str, actions: list[str]) -> None:
    """By a hand or a volume autoscaler: the API server would refuse it for good."""
    world, _ = _claim_of(size)
    assert planned(world, **GROWN) == actions


def test_nor_when_it_is_written_for_another_reason() -> None:
    world, claim = _claim_of("3Gi")
    _unlabel(claim)
    (action,) = plan(read(stored(**GROWN)).owner, desired(**GROWN), world)
    assert isinstance(action, Apply)
    assert action.manifest["spec"]["resources"]["requests"]["storage"] == "3Gi"


def test_another_owners_child_is_not_deleted() -> None:
    world = applied(**CACHE)
    world.children[1]["metadata"]["ownerReferences"][0]["uid"] = "of-a-former-deployment"  # type: ignore[index]
    assert planned(world) == ["apply Deployment"]


def test_every_child_carries_the_hash_of_what_was_applied() -> None:
    stamps = [child["metadata"]["annotations"][SPEC_HASH_ANNOTATION] for child in applied().children]
    assert len(set(stamps)) == 4
