"""Who may do what: the operator no more than its code does, and users as much as their own roles say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pagemill_operator import rbac
from pagemill_operator.cluster.kinds import CLUSTER_RULES, RULES, Rule
from pagemill_operator.cluster.leases import LEASE_NAME, LEASE_RULE
from pagemill_operator.cluster.operator_key import KEY_SECRET
from pagemill_operator.gateway_members import Member
from pagemill_operator.render_namespace_gateway import render_gateway
from pagemill_operator.settings import Settings

Render = Callable[..., list[dict[str, Any]]]
Granted = set[tuple[str, str, str]]


def named(objects: list[dict[str, Any]], kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    wanted = (kind, name, namespace)
    (found,) = [
        one for one in objects if (one["kind"], one["metadata"]["name"], one["metadata"].get("namespace")) == wanted
    ]
    return found


def granted(role: dict[str, Any]) -> Granted:
    """(group, resource, verb); a right over named objects only has the names after the resource."""
    return {
        (group, "/".join([resource, *rule.get("resourceNames", [])]), verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(rules: tuple[Rule, ...]) -> Granted:
    return {(rule.group, rule.resource, verb) for rule in rules for verb in rule.verbs}


def test_the_file_of_rights_is_what_the_code_uses() -> None:
    assert rbac.main(["--check"]) == 0, "run `make crds`"


def test_rights_are_those_that_the_operator_uses(render: Render) -> None:
    role = named(render(), "ClusterRole", "pagemill-operator")
    assert granted(role) == used(RULES) | used(CLUSTER_RULES)


@pytest.mark.parametrize(("watched", "kind"), [((), "ClusterRole"), (("team",), "Role")])
def test_secrets_are_got_only_where_prometheus_tokens_are_allowed(
    render: Render, watched: tuple[str, ...], kind: str
) -> None:
    spaces = [f"watchNamespaces[{number}]={name}" for number, name in enumerate(watched)]
    objects = render("autoscaling.prometheusTokens=true", *spaces)
    rights = granted(named(objects, kind, "pagemill-operator", *watched))
    assert {verb for _, resource, verb in rights if resource == "secrets"} == {"create", "patch", "get"}


def test_no_secret_is_read_and_nothing_gets_into_a_pod(render: Render) -> None:
    rights = granted(named(render(), "ClusterRole", "pagemill-operator"))
    assert not {verb for _, resource, verb in rights if resource == "secrets"} & {"get", "list", "watch"}
    touched = {resource for _, resource, _ in rights}
    assert not touched & {"pods/exec", "pods/attach", "pods/portforward", "*", "clusterroles", "namespaces"}
    # Roles for gateways, which Kubernetes holds to what the operator itself may do: it has neither `escalate` nor `bind`.
    assert not {verb for _, _, verb in rights} & {"*", "escalate", "bind", "impersonate", "deletecollection"}


def test_it_may_do_what_it_grants_to_a_gateway() -> None:
    """Or Kubernetes refuses the Role: attempting to grant RBAC permissions not currently held."""
    member = Member("chat", "uid")
    made = {found["kind"]: found for found in render_gateway("team", (member,), {"chat": 20000}, Settings())}
    assert granted(dict(made["Role"])) <= used(RULES)
    assert granted(dict(made["Role"])) == {
        (group, resource, verb)
        for group, resource in (("", "services"), ("discovery.k8s.io", "endpointslices"))
        for verb in ("list", "watch")
    }


def test_in_its_own_namespace_it_has_its_lease_and_its_key(render: Render) -> None:
    assert granted(named(render(), "Role", "pagemill-operator-own", "system")) == {
        (LEASE_RULE.group, LEASE_RULE.resource, "create"),  # which Kubernetes can't bind to a name
        *((LEASE_RULE.group, f"leases/{LEASE_NAME}", verb) for verb in set(LEASE_RULE.verbs) - {"create"}),
        ("", "secrets", "create"),
        ("", f"secrets/{KEY_SECRET}", "get"),
    }


def test_named_namespaces_get_a_role_each_and_the_operator_nothing_cluster_wide(render: Render) -> None:
    objects = render("watchNamespaces={blue,green}")
    assert not [found for found in objects if found["kind"] == "ClusterRoleBinding"]
    for namespace in ("blue", "green"):
        assert granted(named(objects, "Role", "pagemill-operator", namespace)) == used(RULES)
        binding = named(objects, "RoleBinding", "pagemill-operator", namespace)
        assert binding["roleRef"]["kind"] == "Role"
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pagemill-operator", "namespace": "system"}]
    cluster_roles = {found["metadata"]["name"] for found in objects if found["kind"] == "ClusterRole"}
    assert cluster_roles == {"pagemill-operator-view", "pagemill-operator-edit"}, "rights of users, bound to nobody"


AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


@pytest.mark.parametrize(
    ("user", "verbs"),
    [
        ("view", {"get", "list", "watch"}),
        ("edit", {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}),
        ("admin", {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}),
    ],
)
def test_users_roles_reach_llmdeployments(render: Render, user: str, verbs: set[str]) -> None:
    roles = [
        found
        for found in render()
        if found["kind"] == "ClusterRole" and found["metadata"]["labels"].get(AGGREGATE + user) == "true"
    ]
    rights = {right for role in roles for right in granted(role)}
    assert {verb for _, resource, verb in rights if resource == "llmdeployments"} == verbs
    assert {verb for _, resource, verb in rights if resource == "llmdeployments/status"} == {"get", "list", "watch"}


def test_users_roles_can_be_left_alone(render: Render) -> None:
    names = {found["metadata"]["name"] for found in render("rbac.aggregate=false") if found["kind"] == "ClusterRole"}
    assert names == {"pagemill-operator"}
