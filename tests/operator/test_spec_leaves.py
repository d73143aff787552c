"""No field of the spec is ignored, and each does what its tag says."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_operator import crd
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.fields import tag_of
from pagemill_operator.hot_settings import FIELDS, settings_of
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.supported import unsupported
from pagemill_operator.template_hash import template_hash
from tests.operator.golden_cases import PICKED, SETTINGS
from tests.operator.manifests import stored
from tests.operator.spec_leaves import Leaf, change, leaves

RENDERED = "autoscaling.engine"  # as a ScaledObject
# Leaves that act outside of the children: where, and the test that shows it.
ELSEWHERE = {
    "gpu.memoryGiB": "the checks of memory: test_preflight, test_plan_command, test_admission",
    **dict.fromkeys(
        (leaf.path for leaf in leaves() if leaf.path.startswith("autoscaling.") and leaf.path != RENDERED),
        "how many replicas there are: test_autoscale, test_scaling",
    ),
    "autoscaling.wakeTimeoutSeconds": "the gateway's route: test_namespace_gateway",
    "routing": "the way through the namespace's gateway, where there is one: test_namespace_gateway",
    "rollout.maxFailures": "a rollout whose replicas fail: test_rollout_fields",
}


def children(spec: dict[str, Any]) -> tuple[Manifest, ...]:
    return render(read({**stored(), "spec": spec}), SETTINGS)


SETTINGS_MAP = ("ConfigMap", "chat-settings")


def template(manifests: tuple[Manifest, ...]) -> Any:
    return manifests[-1]["spec"]["template"]


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[tuple[str, str]]:
    """Kind and name of the children that are other than before."""
    old, new = (
        {(child["kind"], child["metadata"]["name"]): child for child in children(spec)} for spec in (before, after)
    )
    return {who for who in old.keys() | new.keys() if old.get(who) != new.get(who)}


@pytest.mark.parametrize("leaf", leaves(), ids=lambda leaf: leaf.path)
def test_a_leaf_changes_the_render_or_is_refused(leaf: Leaf) -> None:
    before, after = change(leaf.path)
    old, new = (read({**stored(), "spec": spec}) for spec in (before, after))
    tag = tag_of(leaf.description)
    refusals = unsupported(new.spec)
    if refusals:
        assert any(leaf.path.startswith(line.removeprefix("spec.").partition(" ")[0]) for line in refusals)
        return
    if leaf.path in ELSEWHERE:
        assert children(before) == children(after)
        return
    assert children(before) != children(after), f"{leaf.path} is ignored"
    rolls = template(children(before)) != template(children(after))
    assert (changed(before, after) == {SETTINGS_MAP}) == (tag == "hot"), "running replicas are told of it: test_hot"
    assert (settings_of(old.spec) != settings_of(new.spec)) == (tag == "hot")
    if tag == "immutable":
        rules = str(crd.CACHE_RULES)
        assert f"oldSelf.{leaf.path.rpartition('.')[2]}" in rules
    else:
        assert rolls == (tag == "restart"), f"{leaf.path} is tagged {tag}"
        assert (template_hash(old.spec) != template_hash(new.spec)) == (tag == "restart")


def test_the_hot_fields_are_those_that_are_sent() -> None:
    assert {leaf.path for leaf in leaves() if tag_of(leaf.description) == "hot"} == set(FIELDS.values())


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
    spec = read(stored(accelerator="gpu", engine={"quantization": "int8"}, routing="prefix", gateway=PICKED)).spec
    assert unsupported(spec) == (
        "spec.engine.quantization is not served by this release: remove it, or set accelerator to cpu, where int8 is; "
        "a quantized GGUF is loaded as it is",
        "spec.gateway.endpointPicker is not served by this release: a picker's requests pass by the namespace's gateway; "
        "remove it, or set routing to service and minReplicas to 1",
    )
    assert unsupported(read(stored(routing="prefix", gateway={"parentRef": {"name": "edge"}})).spec) == ()


@pytest.mark.parametrize("quantization", ["none", "int8", None])
def test_a_quantization_that_there_is_is_served_on_cpu(quantization: str | None) -> None:
    spec = read(stored(accelerator="cpu", engine={"quantization": quantization})).spec
    assert unsupported(spec) == ()
    (line,) = unsupported(read(stored(accelerator="cpu", engine={"quantization": "fp8"})).spec)
    assert "set one of none, int8, or remove it" in line
