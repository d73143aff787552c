"""The webhook's templates: off unless asked for, open when it fails, a certificate by one of three ways."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagemill_operator.__main__ import _parser
from pagemill_operator.admission_server import PATH
from pagemill_operator.labels import GROUP, PLURAL, VERSION

Objects = list[dict[str, Any]]
Render = Callable[..., Objects]
NAME = "pagemill-operator-webhook"
KINDS = ("Secret", "Certificate", "Issuer", "ValidatingWebhookConfiguration")


def one(objects: Objects, kind: str, name: str = NAME) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def operator(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "Deployment", "pagemill-operator")["spec"]["template"]["spec"]
    return spec


def test_it_is_off_by_default(render: Render) -> None:
    objects = render()
    assert not [found for found in objects if found["kind"] in KINDS or found["metadata"]["name"] == NAME]
    assert "webhook" not in str(operator(objects))


def test_it_judges_what_changes_an_llmdeployment_and_holds_up_nobody(render: Render) -> None:
    configuration = one(render("webhook.enabled=true"), "ValidatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["sideEffects"] == "None"
    assert webhook["timeoutSeconds"] <= 5
    (rule,) = webhook["rules"]
    assert (rule["apiGroups"], rule["apiVersions"], rule["resources"]) == ([GROUP], [VERSION], [PLURAL])
    assert rule["operations"] == ["CREATE", "UPDATE"], "a deletion is never asked about"
    assert webhook["namespaceSelector"] == {}


def test_only_the_namespaces_that_are_served_are_judged(render: Render) -> None:
    configuration = one(
        render("webhook.enabled=true", "watchNamespaces={blue,green}"), "ValidatingWebhookConfiguration"
    )
    (expression,) = configuration["webhooks"][0]["namespaceSelector"]["matchExpressions"]
    assert expression == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["blue", "green"]}


@pytest.mark.parametrize("mode", ["helm", "certManager", "secret"])
def test_the_api_server_finds_the_operator_and_the_operator_its_certificate(mode: str, render: Render) -> None:
    values = ["webhook.enabled=true", f"webhook.certificate.mode={mode}"]
    objects = render(*values, *(["webhook.certificate.secretName=mine"] if mode == "secret" else []))
    called = one(objects, "ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"]
    assert called["path"] == PATH
    service = one(objects, "Service", called["name"])
    (port,) = [port for port in service["spec"]["ports"] if port["port"] == called["port"]]
    pod = operator(objects)
    (container,) = pod["containers"]
    (listening,) = [each for each in container["ports"] if each["name"] == port["targetPort"]]
    flags = _parser().parse_args(container["args"])
    assert flags.webhook_port == listening["containerPort"]
    (mount,) = [mount for mount in container["volumeMounts"] if flags.webhook_cert.startswith(mount["mountPath"])]
    assert flags.webhook_key.startswith(mount["mountPath"])
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    written = {"helm": NAME, "certManager": NAME, "secret": "mine"}[mode]
    assert volume["secret"] == {"secretName": written, "optional": True}, "the operator starts without it"


def test_helm_makes_a_certificate_for_the_services_name_that_its_authority_signed(
    render: Render, tmp_path: Path
) -> None:
    objects = render("webhook.enabled=true")
    secret, configuration = one(objects, "Secret"), one(objects, "ValidatingWebhookConfiguration")
    assert configuration["webhooks"][0]["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    for entry in ("ca.crt", "tls.crt"):
        (tmp_path / entry).write_bytes(base64.b64decode(secret["data"][entry]))
    checks = ["-CAfile", str(tmp_path / "ca.crt"), "-verify_hostname", f"{NAME}.system.svc", str(tmp_path / "tls.crt")]
    subprocess.run(["openssl", "verify", *checks], check=True, capture_output=True)


def test_cert_manager_makes_it_by_an_issuer_of_ours_or_theirs(render: Render) -> None:
    values = ("webhook.enabled=true", "webhook.certificate.mode=certManager")
    objects = render(*values)
    certificate = one(objects, "Certificate")
    assert certificate["spec"]["issuerRef"] == {"kind": "Issuer", "name": one(objects, "Issuer")["metadata"]["name"]}
    assert f"{NAME}.system.svc" in certificate["spec"]["dnsNames"]
    configuration = one(objects, "ValidatingWebhookConfiguration")
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": f"system/{NAME}"}
    assert not [found for found in objects if found["kind"] == "Secret"]
    theirs = render(
        *values, "webhook.certificate.issuerRef.kind=ClusterIssuer", "webhook.certificate.issuerRef.name=ca"
    )
    assert one(theirs, "Certificate")["spec"]["issuerRef"] == {"kind": "ClusterIssuer", "name": "ca"}
    assert not [found for found in theirs if found["kind"] == "Issuer"]


def test_a_secret_of_ones_own_brings_its_authority(render: Render) -> None:
    values = ("webhook.enabled=true", "webhook.certificate.mode=secret", "webhook.certificate.secretName=mine")
    objects = render(*values, "webhook.certificate.caBundle=QUJD")
    assert not [found for found in objects if found["kind"] in ("Secret", "Certificate", "Issuer")]
    called = one(objects, "ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    assert called["caBundle"] == "QUJD"
    called = one(render(*values), "ValidatingWebhookConfiguration")["webhooks"][0]["clientConfig"]
    assert "caBundle" not in called, "for whoever injects one"


def test_a_mode_without_its_secret_is_refused(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    chart = str(Path(__file__).resolve().parents[2] / "charts" / "pagemill")
    refused = helm("template", "pagemill", chart, "--set", "webhook.certificate.mode=secret")
    assert refused.returncode != 0
    assert "secretName" in refused.stderr
