"""A gateway's objects: hardened as the models' pods, drained by its longest stream, keys where the gateway reads them."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from pagemill import __version__
from pagemill_operator.cluster.kinds import BY_KIND
from pagemill_operator.gateway import command
from pagemill_operator.gateway.route import GATEWAY_ADMIN_PORT, KEYS_FOLDER
from pagemill_operator.gateway_members import FIRST_PORT, PORTS, Member
from pagemill_operator.observe import GATEWAY_KINDS
from pagemill_operator.render_command import as_yaml
from pagemill_operator.render_namespace_gateway import RIGHTS, render_gateway
from pagemill_operator.settings import GATEWAY_IMAGE_ENV, Settings, from_environ
from pagemill_operator.way import GATEWAY_SELECTOR
from tests.operator.golden_cases import FOLDER, SETTINGS

CHAT = Member("chat", "uid-of-chat", "clients", 125)
CODE = Member("code", "uid-of-code", None, 600, ("pull",), pod_monitor=True, network_policy=True)


def rendered(*members: Member, settings: Settings = SETTINGS) -> dict[str, Any]:
    made = render_gateway("team", members, {member.name: FIRST_PORT for member in members}, settings)
    return {manifest["kind"]: manifest for manifest in made}


def test_golden(rewrite_golden: bool) -> None:
    text = as_yaml(list(render_gateway("team", (CHAT, CODE), {"chat": 20001, "code": 20002}, SETTINGS)))
    file = FOLDER / "gateway" / "two.yaml"
    if rewrite_golden:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.read_text(encoding="utf-8") == text, "look at the difference; if it is meant: make golden"


def test_the_operator_is_told_its_own_image() -> None:
    """By the chart; without, it is the release's."""
    told = from_environ({GATEWAY_IMAGE_ENV: "registry.example/own:1"})
    assert rendered(CHAT, settings=told)["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"] == (
        "registry.example/own:1"
    )
    assert from_environ({}).gateway_image == f"pagemill/operator:{__version__}"


def test_without_members_there_is_nothing() -> None:
    assert rendered() == {}


def test_all_kinds_are_known_to_the_stages_that_look_for_them_and_apply_them() -> None:
    made = rendered(CHAT, CODE)
    assert set(made) == set(GATEWAY_KINDS)
    assert {kind: found["apiVersion"] for kind, found in made.items()} == {
        kind: BY_KIND[kind].api_version for kind in made
    }
    assert list(made)[-1] == "Deployment", "its pods find their rights"
    assert set(RIGHTS) < set(made)


def test_monitor_and_policy_are_there_where_a_member_asks_for_them() -> None:
    assert not {"PodMonitor", "NetworkPolicy"} & set(rendered(CHAT))
    (rule,) = rendered(CODE)["NetworkPolicy"]["spec"]["ingress"]
    served, admin = rule["ports"]
    assert (served["port"], served["endPort"]) == (FIRST_PORT, FIRST_PORT + PORTS - 1)
    assert admin["port"] == GATEWAY_ADMIN_PORT
    assert "from" not in rule


def test_its_pods_meet_pod_securitys_restricted() -> None:
    spec = rendered(CHAT)["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["image"] == SETTINGS.gateway_image


def test_a_stop_is_as_long_as_the_longest_stream() -> None:
    spec = rendered(CHAT, CODE)["Deployment"]["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > 600
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    (container,) = spec["containers"]
    flags = command._parser().parse_args(container["args"])
    assert 600 < flags.grace_seconds < spec["terminationGracePeriodSeconds"]
    assert flags.admin_port == GATEWAY_ADMIN_PORT
    assert flags.keys_dir == KEYS_FOLDER
    assert container["command"] == ["pagemill", "gateway"]
    assert "gateway" in {entry.name for entry in entry_points(group="pagemill.commands")}


def test_keys_lie_where_the_gateway_reads_them_and_hold_up_nobody() -> None:
    spec = rendered(CHAT, CODE)["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] != "/tmp"}
    assert set(mounts) == {f"{KEYS_FOLDER}/chat"}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes[mounts[f"{KEYS_FOLDER}/chat"]]["secret"] == {"secretName": "clients", "optional": True}


def test_who_joins_without_keys_and_with_no_longer_streams_restarts_nothing() -> None:
    """A port is no part of the template."""
    alone, both = rendered(CHAT), rendered(CHAT, replace(CHAT, name="more", keys_secret=None))
    assert alone["Deployment"]["spec"] == both["Deployment"]["spec"]


def test_selectors_are_the_pods_own_labels() -> None:
    made = rendered(CHAT, CODE)
    labels = made["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= GATEWAY_SELECTOR.items()
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        assert made[kind]["spec"]["selector"] == {"matchLabels": GATEWAY_SELECTOR}
