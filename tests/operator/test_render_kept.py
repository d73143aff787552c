"""A pod template stays as it was rendered while nothing that restarts has changed, whatever a later operator would render."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from pagemill_operator.labels import TEMPLATE_ANNOTATION
from pagemill_operator.render import render
from pagemill_operator.resource import read
from tests.operator.golden_cases import EVERYTHING, MANAGED
from tests.operator.manifests import manifest, stored

LATER = replace(MANAGED, cpu_image="registry.example/server:later", image_pull_policy="Always")


def deployment(live: dict[str, Any] | None = None, later: bool = False, **spec: Any) -> dict[str, Any]:
    return dict(render(read(stored(**spec)), LATER if later else MANAGED, live)[-1])


def template(found: dict[str, Any]) -> Any:
    return found["spec"]["template"]


def made_otherwise(**spec: Any) -> dict[str, Any]:
    """What an operator of another release left: a pod that this one would never render, and its own word of it."""
    made = copy.deepcopy(deployment(**spec))
    template(made)["spec"]["containers"][0]["env"].append({"name": "OF_ANOTHER_RELEASE", "value": "1"})
    made["metadata"]["annotations"][TEMPLATE_ANNOTATION] = json.dumps(template(made))
    return made


def test_the_deployment_carries_it() -> None:
    made = deployment()
    assert json.loads(made["metadata"]["annotations"][TEMPLATE_ANNOTATION]) == template(made)


def test_a_files_render_does_not() -> None:
    assert TEMPLATE_ANNOTATION not in render(read(manifest()), MANAGED)[-1]["metadata"]["annotations"]


@pytest.mark.parametrize("spec", [{}, {"schedulingPolicy": "fair"}, {**EVERYTHING, "autoscaling": None}], ids=str)
def test_a_later_operator_keeps_it(spec: dict[str, Any]) -> None:
    before = made_otherwise(**spec)
    assert template(deployment(before, later=True, **spec)) == template(before)


def test_what_restarts_is_rendered_anew() -> None:
    changed = deployment(made_otherwise(), later=True, maxModelLen=99)
    assert "OF_ANOTHER_RELEASE" not in str(changed)
    assert template(changed)["spec"]["containers"][0]["image"] == LATER.cpu_image


def test_what_acts_elsewhere_is_not_held_back_by_it() -> None:
    before = made_otherwise()
    scaled = deployment(before, later=True, replicas=3, rollout={"strategy": "Surge"}, schedulingPolicy="fair")
    assert template(scaled) == template(before)
    assert scaled["spec"]["replicas"] == 3
    assert scaled["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1


def test_a_hands_edit_is_put_right() -> None:
    before = made_otherwise()
    edited = copy.deepcopy(before)
    template(edited)["spec"]["containers"][0]["image"] = "registry.example/theirs"
    assert template(deployment(edited, later=True)) == template(before)


@pytest.mark.parametrize("spoilt", ["", "{", "[]", "7", '{"spec": {}}', '{"metadata": {}, "spec": {"containers": []}}'])
def test_where_a_hand_has_spoilt_the_word_nothing_restarts(spoilt: str) -> None:
    before = made_otherwise()
    before["metadata"]["annotations"][TEMPLATE_ANNOTATION] = spoilt
    mended = deployment(before, later=True)
    assert template(mended) == template(before)
    assert json.loads(mended["metadata"]["annotations"][TEMPLATE_ANNOTATION]) == template(before)


def of_the_first_release(**spec: Any) -> dict[str, Any]:
    """It wrote no template down, and its servers took the scheduling by their command lines."""
    made = made_otherwise(**spec)
    del made["metadata"]["annotations"][TEMPLATE_ANNOTATION]
    container = template(made)["spec"]["containers"][0]
    place = container["args"].index("--settings-file")
    del container["args"][place : place + 2]
    return made


def test_servers_of_the_first_release_are_not_restarted() -> None:
    before = of_the_first_release()
    taken_over = deployment(before, later=True)
    assert template(taken_over) == template(before)
    assert template(deployment(taken_over, later=True)) == template(before)


def test_until_they_are_to_take_what_they_would_never_hear_of() -> None:
    taken_over = deployment(of_the_first_release(), later=True)
    changed = deployment(taken_over, later=True, scheduling={"maxQueuedRequests": 8})
    assert "--settings-file" in template(changed)["spec"]["containers"][0]["args"]
