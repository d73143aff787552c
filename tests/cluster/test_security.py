"""Who can do what, on the real cluster: the management token, Pod Security's `restricted`, least rights, no root."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.images import Images
from testbed.ready import eventually
from testbed.release import NAMESPACE, OPERATOR, restrict

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny"  # which every server image carries
HOME = "guarded"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{OPERATOR}"
RESTRICTED = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
ASK = """
import json, sys, urllib.error, urllib.request
def ask(url, token):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return type(error).__name__
print(json.dumps([ask(url, token) for url, token in json.loads(sys.argv[1])]))
"""
Question = tuple[str, str | None]  # a URL and a token


@pytest.fixture(scope="module")
def model(pagemill: Cluster) -> Iterator[Deployed]:
    """A model in a namespace that refuses every pod which is not `restricted`: the preflight's, too."""
    restrict(pagemill, HOME)
    deployed = deploy(pagemill, HOME, "model", model=MODEL, maxModelLen=None)
    deployed.await_condition("Ready", "True", seconds=600)
    yield deployed
    pagemill.kubectl("delete", "namespace", HOME, "--wait=false")


def ask_from(cluster: Cluster, images: Images, namespace: str, *questions: Question) -> list[int | str]:
    """What a pod of the namespace is answered: HTTP's status, or the name of the error."""
    name = f"asker-{secrets.token_hex(3)}"
    container = {
        "name": "asker",
        "image": images.server,
        "imagePullPolicy": "Never",
        "command": ["python", "-c", ASK, json.dumps(questions)],
        "securityContext": CONTAINED,
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": RESTRICTED,
        "containers": [container],
    }
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace)

    def answers() -> list[int | str]:
        phase = cluster.get("pod", name, "-n", namespace)["status"].get("phase")
        if phase != "Succeeded":
            raise LookupError(str(phase))
        found: list[int | str] = json.loads(cluster.kubectl("logs", name, "-n", namespace))
        return found

    return eventually(f"{name}'s answers", answers)


def management(deployed: Deployed) -> str:
    (pod,) = deployed.pods()
    return f"http://{pod['status']['podIP']}:8001/config"


def token(cluster: Cluster, namespace: str, name: str) -> str:
    data = eventually("its token", lambda: cluster.get("secret", f"{name}-management", "-n", namespace))["data"]
    return base64.b64decode(data["token"]).decode()


def test_a_deployment_serves_where_only_restricted_pods_are_let_in(model: Deployed) -> None:
    assert model.condition("Degraded")["status"] == "False"
    events = model.cluster.kubectl("get", "events", "-n", HOME, "-o", "json")
    assert "violates PodSecurity" not in events


def test_the_management_port_holds_off_pods_without_the_token(model: Deployed, images: Images, namespace: str) -> None:
    cluster, url = model.cluster, management(model)
    strangers = (url, None), (url, "wrong"), (url, token(cluster, HOME, "model")[:-1] + "x")
    assert ask_from(cluster, images, namespace, *strangers) == [401, 401, 401]
    assert ask_from(cluster, images, HOME, *strangers) == [401, 401, 401]
    assert ask_from(cluster, images, HOME, (url, token(cluster, HOME, "model"))) == [200], "the port is the right one"


def test_one_deployments_token_is_no_others(model: Deployed, images: Images, namespace: str) -> None:
    """Also of the same name: the namespace is part of what it is derived from."""
    cluster = model.cluster
    deploy(cluster, namespace, "model", model=MODEL, suspend=True)
    eventually("its Deployment", lambda: cluster.get("deployment", "model", "-n", namespace))
    other = token(cluster, namespace, "model")
    assert other != token(cluster, HOME, "model")
    assert ask_from(cluster, images, namespace, (management(model), other)) == [401]


def test_the_service_does_not_lead_to_the_management_port(model: Deployed, images: Images) -> None:
    service = model.cluster.get("service", "model", "-n", HOME)["spec"]
    assert [port["port"] for port in service["ports"]] == [8000]
    right = token(model.cluster, HOME, "model")
    answers = ask_from(
        model.cluster,
        images,
        HOME,
        (f"http://{service['clusterIP']}:8001/config", right),
        (f"http://{service['clusterIP']}:8000/config", right),
        (f"http://{service['clusterIP']}:8000/health", None),
    )
    assert answers[0] not in range(600), answers
    assert answers[1:] == [404, 200]


@pytest.mark.parametrize("who", ["model", "operator"])
def test_pods_are_no_root_and_write_nothing_on_their_image(who: str, model: Deployed) -> None:
    cluster = model.cluster
    namespace = HOME if who == "model" else NAMESPACE
    label = "pagemill.dev/deployment=model" if who == "model" else "app.kubernetes.io/name=pagemill-operator"
    pod = cluster.get("pods", "-n", namespace, "-l", label)["items"][0]
    script = (
        "import json, os, pathlib\n"
        "def writable(path):\n"
        "    try:\n"
        "        (pathlib.Path(path) / 'probe').write_text('x')\n"
        "    except OSError as error:\n"
        "        return error.errno\n"
        "    return 0\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines() if ':' in line)\n"
        "print(json.dumps([os.getuid(), os.getgid(), status['CapEff'].strip(), status['NoNewPrivs'].strip(), "
        "os.path.exists('/var/run/secrets/kubernetes.io'), *map(writable, ('/', '/usr', '/etc'))]))\n"
    )
    said = cluster.kubectl("exec", pod["metadata"]["name"], "-n", namespace, "--", "python", "-c", script)
    user, group, capabilities, no_new_privileges, account, *writes = json.loads(said)
    assert (user, group) == (65532, 65532)
    assert int(capabilities, 16) == 0
    assert no_new_privileges == "1"
    assert account is (who == "operator"), "a model's pod has no way to the API server"
    read_only = 30
    assert writes == [read_only] * 3


MAY_NOT: tuple[tuple[str, ...], ...] = (
    *((verb, "secrets", "-n", "default") for verb in ("get", "list", "watch", "delete")),
    *((verb, "secrets", "-n", HOME) for verb in ("get", "list", "watch")),
    ("list", "secrets", "-n", NAMESPACE),
    ("get", "secrets/any-other", "-n", NAMESPACE),
    ("create", "pods/exec", "-n", HOME),
    ("get", "pods/log", "-n", HOME),
    ("create", "pods", "-n", HOME),
    ("delete", "pods", "-n", HOME),
    *((verb, "llmdeployments.pagemill.dev", "-n", HOME) for verb in ("create", "update", "patch", "delete")),
    *((verb, "nodes") for verb in ("patch", "update", "delete")),
    ("list", "namespaces"),
    ("list", "customresourcedefinitions.apiextensions.k8s.io"),
    *((verb, "roles.rbac.authorization.k8s.io", "-n", HOME) for verb in ("bind", "escalate")),
    ("bind", "rolebindings.rbac.authorization.k8s.io", "-n", HOME),
    *((verb, "clusterroles.rbac.authorization.k8s.io") for verb in ("create", "bind", "escalate")),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    ("impersonate", "users"),
    ("create", "serviceaccounts/token", "-n", HOME),
    ("delete", "validatingwebhookconfigurations.admissionregistration.k8s.io"),
)


def may(cluster: Cluster, *question: str) -> bool:
    """As `kubectl auth can-i` asks, for the operator's account."""
    verb, resource, *where = question
    group, _, rest = resource.partition(".")
    named, _, name = group.partition("/")
    attributes: dict[str, Any] = {"verb": verb, "resource": named, "group": rest}
    if name and named in ("pods", "serviceaccounts"):
        attributes["subresource"] = name
    elif name:
        attributes["name"] = name
    if where:
        attributes["namespace"] = where[1]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"]}
        | {"resourceAttributes": attributes},
    }
    answer = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("question", MAY_NOT, ids=" ".join)
def test_what_the_operator_may_not(question: tuple[str, ...], pagemill: Cluster) -> None:
    assert not may(pagemill, *question)


@pytest.mark.usefixtures("model")
def test_the_roles_that_it_makes_for_gateways_give_nothing_that_it_has_not(pagemill: Cluster) -> None:
    """It may make Roles and bind them; Kubernetes holds those to its own rights."""
    as_operator = ("-n", HOME, "--dry-run=server", f"--as={ACCOUNT}")
    refused = pagemill.refused("create", "role", "all", "--verb=get", "--resource=secrets", *as_operator)
    assert "attempting to grant RBAC permissions not currently held" in refused
    refused = pagemill.refused("create", "rolebinding", "all", "--clusterrole=admin", "--user=anybody", *as_operator)
    assert "attempting to grant RBAC permissions not currently held" in refused


@pytest.mark.parametrize(
    "question",
    [
        ("list", "llmdeployments.pagemill.dev", "-n", HOME),
        ("create", "deployments.apps", "-n", HOME),
        ("patch", "secrets", "-n", HOME),
        ("get", "secrets/pagemill-operator-key", "-n", NAMESPACE),
    ],
    ids=" ".join,
)
def test_what_it_may(question: tuple[str, ...], pagemill: Cluster) -> None:
    """Or the answers above would be worth nothing."""
    assert may(pagemill, *question)
