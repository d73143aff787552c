"""No field of the spec is ignored, and each does what its tag says."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator import crd
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.fields import tag_of
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.supported import unsupported
from pagemill_operator.template_hash import template_hash
from tests.operator.golden_cases import SETTINGS
from tests.operator.manifests import stored
from tests.operator.spec_leaves import Leaf, change, leaves

# Leaves that act outside of the children: where, and the test that shows it.
ELSEWHERE = {"gpu.memoryGiB": "pagemill plan: test_plan_command"}


def children(spec: dict[str, Any]) -> tuple[Manifest, ...]:
    return render(read({**stored(), "spec": spec}), SETTINGS)


def template(manifests: tuple[Manifest, ...]) -> Any:
    return manifests[-1]["spec"]["template"]


@pytest.mark.parametrize("leaf", leaves(), ids=lambda leaf: leaf.path)
def test_a_leaf_changes_the_render_or_is_refused(leaf: Leaf) -> None:
    before, after = change(leaf.path)
    old, new = (read({**stored(), "spec": spec}) for spec in (before, after))
    tag = tag_of(leaf.description)
    refusals = unsupported(new.spec)
    if refusals:
        assert any(leaf.path.startswith(line.removeprefix("spec.").partition(" ")[0]) for line in refusals)
        return
    assert tag != "hot", "nothing takes over a hot field yet: refuse it"
    if leaf.path in ELSEWHERE:
        assert children(before) == children(after)
        return
    assert children(before) != children(after), f"{leaf.path} is ignored"
    rolls = template(children(before)) != template(children(after))
    if tag == "immutable":
        rules = str(crd.CACHE_RULES)
        assert f"oldSelf.{leaf.path.rpartition('.')[2]}" in rules
    else:
        assert rolls == (tag == "restart"), f"{leaf.path} is tagged {tag}"
        assert (template_hash(old.spec) != template_hash(new.spec)) == (tag == "restart")


def test_a_default_that_is_written_out_rolls_nothing() -> None:
    bare = read({**stored(), "spec": {"model": "org/name"}}).spec
    spelled = {
        "model": "org/name",
        "accelerator": "gpu",
        "gpuMemoryUtilization": 0.9,
        "engine": {"dtype": "auto"},
        "rollout": {"lameDuckSeconds": 5},
        "gpu": {},
        "pod": {"labels": {}},
        "imagePullSecrets": [],
    }
    assert template_hash(read({**stored(), "spec": spelled}).spec) == template_hash(bare)


def test_a_refusal_names_the_field_and_what_to_do() -> None:
    spec = read(stored(autoscaling={"maxReplicas": 3}, routing="prefix")).spec
    assert unsupported(spec) == (
        "spec.autoscaling is not served by this release: remove it and set replicas; /scale takes an HPA's or KEDA's word",
        "spec.routing is not served by this release: set it to service",
    )
