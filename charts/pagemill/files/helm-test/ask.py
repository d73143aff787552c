"""What `helm test` runs: makes a tiny LLMDeployment, waits until it is Ready, asks it one question over its Service, removes it.

Standard library only; it talks to the API server as the pod's own account. Fails with what the deployment's status says. The
Service is reached by its address, so that a cluster's DNS has no part in this.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
NAMESPACE, NAME, MODEL = os.environ["TEST_NAMESPACE"], os.environ["TEST_NAME"], os.environ["TEST_MODEL"]
SECONDS = int(os.environ["TEST_SECONDS"])
RESOURCES = json.loads(os.environ["TEST_RESOURCES"])
DEPLOYMENTS = f"/apis/pagemill.dev/v1alpha1/namespaces/{NAMESPACE}/llmdeployments"
TRUSTED = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")


class Failed(Exception):
    """The test's verdict, in a sentence."""


def bracketed(host: str) -> str:
    """An IPv6 address as a URL has it."""
    return f"[{host}]" if ":" in host else host


def api(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call to the API server; HTTPError where it says no."""
    host, port = bracketed(os.environ["KUBERNETES_SERVICE_HOST"]), os.environ["KUBERNETES_SERVICE_PORT"]
    with open(f"{ACCOUNT}/token", encoding="utf-8") as token:
        headers = {"Authorization": f"Bearer {token.read()}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{host}:{port}{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=10, context=TRUSTED) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def remove() -> None:
    """The deployment, if it is there, and its pods with it."""
    try:
        api("DELETE", f"{DEPLOYMENTS}/{NAME}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise


def make(until: float) -> None:
    """The deployment, anew: one that a former run left behind says nothing of this release."""
    small = {"accelerator": "cpu", "maxModelLen": 512, "engine": {"kvCacheGiB": 0.05}}
    spec = {"model": MODEL, **small, "resources": RESOURCES}
    manifest = {
        "apiVersion": "pagemill.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": NAME},
        "spec": spec,
    }
    remove()
    while True:
        try:
            api("POST", DEPLOYMENTS, manifest)
            return
        except urllib.error.HTTPError as error:
            if error.code != 409 or time.monotonic() > until:
                raise
        time.sleep(1)


def await_ready(until: float) -> None:
    """Says each new state once; Failed when the time is over."""
    said = ""
    while True:
        status = api("GET", f"{DEPLOYMENTS}/{NAME}").get("status") or {}
        conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
        ready = conditions.get(
            "Ready", {"status": "Unknown", "reason": "NoStatus", "message": "no operator has looked at it"}
        )
        state = f"Ready={ready['status']} {ready['reason']}: {ready['message']}"
        if state != said:
            print(state, flush=True)
            said = state
        if ready["status"] == "True":
            return
        if time.monotonic() > until:
            raise Failed(f"not ready after {SECONDS} s: {state}")
        time.sleep(1)


def ask(until: float) -> str:
    """The answer's text. Again while the address is not spread over the nodes yet."""
    spec = api("GET", f"/api/v1/namespaces/{NAMESPACE}/services/{NAME}")["spec"]
    url = f"http://{bracketed(spec['clusterIP'])}:{spec['ports'][0]['port']}/v1/completions"
    body = json.dumps({"model": MODEL, "prompt": "One question:", "max_tokens": 8, "ignore_eos": True}).encode()
    while True:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                reply = json.load(answer)
            if reply["usage"]["completion_tokens"] != 8:
                raise Failed(f"8 tokens were asked for, the model said {reply}")
            return str(reply["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            raise Failed(f"{url} answered {error.code}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            if time.monotonic() > until:
                raise Failed(f"{url} can't be reached: {error}") from error
        time.sleep(1)


def main() -> int:
    """0 when the model answered."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    until = time.monotonic() + SECONDS
    try:
        make(until)
        await_ready(until)
        print(f"it answers: {ask(until)!r}", flush=True)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    except urllib.error.HTTPError as error:
        print(f"{error.url} answered {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    finally:
        remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
