"""What the API server's refusals become. The calls themselves are tested against a real one: tests/cluster."""

from __future__ import annotations

import json

import pytest

from pagemill_operator.cluster.api import NoCluster, connect, refusal


def status(message: str) -> bytes:
    return json.dumps({"kind": "Status", "message": message}).encode()


@pytest.mark.parametrize(
    ("code", "text", "retry_after", "words", "refused", "seconds"),
    [
        (403, status("pods is forbidden"), None, "403: pods is forbidden", True, 0),
        (422, status("spec.x: Invalid value"), None, "422: spec.x: Invalid value", True, 0),
        (400, status("bad request"), None, "400: bad request", True, 0),
        (409, status("conflict"), None, "409: conflict", False, 0),
        (429, status("too many requests"), "7", "429: too many requests", False, 7),
        (429, status("too many requests"), "Wed, 21 Oct 2026 07:28:00 GMT", "429: too many", False, 0),
        (500, status("failed to create typed patch object (x): .spec.y"), None, "500: failed to create", True, 0),
        (500, b"<html>oh", None, "500: <html>oh", False, 0),
        (503, b"[]", None, "503: []", False, 0),
    ],
)
def test_refusal(code: int, text: bytes, retry_after: str | None, words: str, refused: bool, seconds: float) -> None:
    error = refusal("PATCH", "/api/v1/x", code, text, retry_after)
    assert str(error).startswith(f"PATCH /api/v1/x: {words}")
    assert (error.refused, error.retry_after) == (refused, seconds)


async def test_no_kubeconfig_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "pagemill_operator.cluster.api.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config"
    )
    with pytest.raises(NoCluster, match=r"^no cluster: not in a pod, and no usable kubeconfig"):
        await connect()
