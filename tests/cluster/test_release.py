"""The chart's life: users' objects and running models outlive an uninstall, and a release can be held to one namespace."""

from __future__ import annotations

from typing import Any

import pytest
from testbed.cluster import Cluster, CommandFailed
from testbed.deployments import Deployed, deploy
from testbed.images import Images
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR, helm_test, install, restrict, uninstall, upgrade, verdict

pytestmark = pytest.mark.cluster
TINY = "pagemill/tiny"
SECONDS = 600  # a start on a machine that does much else


@pytest.fixture
def uninstalled(pagemill: Cluster, images: Images) -> Any:
    """The cluster without the operator, for one test."""
    uninstall(pagemill)
    yield pagemill
    uninstall(pagemill)
    install(pagemill, images)


def lives(deployed: Deployed) -> list[tuple[str, int]]:
    """Each pod and how often its container was restarted: the same before and after means that nothing was touched."""
    return sorted(
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in deployed.pods()
    )


def test_models_live_through_an_uninstall_and_are_taken_over_by_the_next_install(
    pagemill: Cluster, images: Images, namespace: str
) -> None:
    kept = deploy(pagemill, namespace, "kept", model=TINY)
    kept.await_condition("Ready", "True", seconds=SECONDS)
    before = lives(kept)
    uninstall(pagemill)
    try:
        assert kept.get()["spec"]["model"] == TINY
        assert kept.pods()[0]["status"]["phase"] == "Running"
    finally:
        install(pagemill, images)
    pagemill.kubectl("scale", "llmd", "kept", "-n", namespace, "--replicas=2")
    kept.await_condition("Progressing", "False", "Settled", seconds=SECONDS)
    assert set(before) < set(lives(kept))


def test_without_the_operator_deployments_can_be_deleted(
    pagemill: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    left = deploy(pagemill, namespace, "left", model=TINY)
    left.await_condition("Ready", "True", seconds=SECONDS)
    request.getfixturevalue("uninstalled")
    pagemill.kubectl("delete", "llmd", "left", "-n", namespace, "--timeout=90s")
    eventually("the end of its pods", lambda: not left.pods() or None, seconds=600)


def test_a_changed_value_reaches_the_operator_and_no_model(pagemill: Cluster, images: Images, namespace: str) -> None:
    same = deploy(pagemill, namespace, "same", model=TINY)
    same.await_condition("Ready", "True", seconds=SECONDS)
    before = lives(same)
    upgrade(pagemill, images, "operator.podAnnotations.example\\.com/changed=yes")

    def changed() -> bool | None:
        pods = pagemill.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=pagemill-operator")["items"]
        return all(pod["metadata"].get("annotations", {}).get("example.com/changed") == "yes" for pod in pods) or None

    eventually("the end of the former operators", changed)
    pagemill.kubectl("annotate", "llmd", "same", "-n", namespace, "looked=at")  # whoever leads now looks at it
    same.await_condition("Ready", "True", seconds=SECONDS)
    assert lives(same) == before


def test_a_release_for_one_namespace_serves_that_and_no_other(
    uninstalled: Cluster, images: Images, namespace: str
) -> None:
    restrict(uninstalled, namespace)
    install(uninstalled, images, f"watchNamespaces={{{namespace}}}")
    mine = deploy(uninstalled, namespace, "mine", model=TINY)
    uninstalled.kubectl("create", "namespace", "elsewhere")
    try:
        other = deploy(uninstalled, "elsewhere", "other", model=TINY)
        mine.await_condition("Ready", "True", seconds=SECONDS)
        assert "status" not in other.get()
        as_operator = ("get", "pods", "--as", f"system:serviceaccount:{NAMESPACE}:{OPERATOR}", "-n")
        uninstalled.kubectl(*as_operator, namespace)
        assert "forbidden" in uninstalled.refused(*as_operator, "elsewhere")
    finally:
        uninstalled.kubectl("delete", "namespace", "elsewhere", "--wait=false")
    assert verdict(helm_test(uninstalled)) == "Succeeded"


def test_helm_test_asks_a_tiny_model_and_leaves_nothing(pagemill: Cluster) -> None:
    """In a namespace that enforces Pod Security's `restricted`, the model's pod included."""
    assert verdict(helm_test(pagemill)) == "Succeeded"
    for kind in ("llmd", "pods -l app.kubernetes.io/name=pagemill-test"):
        assert not pagemill.get(*kind.split(" "), "-n", NAMESPACE)["items"]


def test_helm_test_fails_with_the_deployments_own_words(pagemill: Cluster, images: Images) -> None:
    reasons = ("HubUnreachable", "ModelNotFound")
    try:
        for seconds in (25, 240):  # it waits all of it, and a busy machine may not have looked at the model by then
            upgrade(pagemill, images, "helmTest.model=pagemill/none", f"helmTest.timeoutSeconds={seconds}")
            said = helm_test(pagemill)
            assert verdict(said) == "Failed"
            assert f"not ready after {seconds} s: Ready=False" in said
            if any(reason in said for reason in reasons):
                break
        assert any(reason in said for reason in reasons)
        assert not pagemill.get("llmd", "-n", NAMESPACE)["items"]
    finally:
        upgrade(pagemill, images)


def test_who_applies_too_much_gpu_memory_is_warned_and_served(pagemill: Cluster, namespace: str) -> None:
    def said(rest: str, *flags: str) -> str:
        spec = f"{{model: {TINY}, replicas: 0, {rest}}}"
        text = f"apiVersion: pagemill.dev/v1alpha1\nkind: LLMDeployment\nmetadata: {{name: much}}\nspec: {spec}"
        apply = ("apply", "-n", namespace, "--warnings-as-errors", "-f", "-", *flags)
        try:
            return pagemill.kubectl(*apply, stdin=text)
        except CommandFailed as warned:
            return str(warned.stderr)

    warning = "gpuMemoryUtilization is above 0.95"
    # Not stored: the API server reads policies every few seconds, and what is there already would not be sent again.
    eventually("the policy", lambda: warning in said("gpuMemoryUtilization: 1", "--dry-run=server") or None, seconds=60)
    assert warning in said("gpuMemoryUtilization: 0.96")
    assert pagemill.get("llmd", "much", "-n", namespace)["spec"]["gpuMemoryUtilization"] == 0.96
    for rest in ("gpuMemoryUtilization: 0.95", "maxModelLen: 64", "gpuMemoryUtilization: 0.99, accelerator: cpu"):
        assert warning not in said(rest, "--dry-run=server")


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("view", ["get", "list", "watch"], ["create", "patch", "delete"]),
        ("edit", ["get", "create", "patch", "update", "delete"], []),
        ("admin", ["get", "create", "patch", "update", "delete"], []),
    ],
)
def test_users_roles_reach_llmdeployments(
    pagemill: Cluster, namespace: str, role: str, may: list[str], may_not: list[str]
) -> None:
    pagemill.kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}er", "-n", namespace)

    def can(verb: str, *subresource: str) -> bool:
        asked = ("auth", "can-i", verb, "llmdeployments.pagemill.dev", *subresource, f"--as={role}er", "-n", namespace)
        try:
            return pagemill.kubectl(*asked).strip() == "yes"
        except CommandFailed:
            return False

    eventually("the aggregated role", lambda: can("get") or None)
    assert all(can(verb) for verb in may)
    assert not any(can(verb) for verb in may_not)
    assert can("get", "--subresource=status")
    assert not can("patch", "--subresource=status"), "it is the operator's word"
    assert can("patch", "--subresource=scale") == (role != "view")


def test_the_operator_reads_no_secret_and_gets_into_no_pod(pagemill: Cluster, namespace: str) -> None:
    as_operator = ("--as", f"system:serviceaccount:{NAMESPACE}:{OPERATOR}", "-n")
    pagemill.kubectl("create", "secret", "generic", "theirs", "--from-literal=a=b", "-n", namespace)
    for words in (("get", "secret", "theirs"), ("get", "secrets"), ("get", "namespaces"), ("get", "crds")):
        assert "forbidden" in pagemill.refused(*words, *as_operator, namespace)
    assert "forbidden" in pagemill.refused("get", "secrets", *as_operator, NAMESPACE)
    pagemill.kubectl("get", "secret", "pagemill-operator-key", *as_operator, NAMESPACE)
    for subresource in ("exec", "attach", "portforward"):
        asked = ("auth", "can-i", "create", "pods", f"--subresource={subresource}", *as_operator, namespace)
        pagemill.refused(*asked)  # "no" is said on stdout
