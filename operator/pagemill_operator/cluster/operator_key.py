"""The operator's own key, from which every deployment's management token is derived: a Secret in its namespace, made once.

It outlives the chart's release, or an operator that is installed anew could not manage the models that still run. Needs `create` on
Secrets and `get` on this one by its name. Called by `__main__`.
"""

from __future__ import annotations

import base64
import secrets

from pagemill_operator.cluster.api import Api
from pagemill_operator.cluster.interface import ClusterError
from pagemill_operator.labels import FIELD_MANAGER, MANAGED_BY_LABEL

KEY_SECRET = "pagemill-operator-key"
_ENTRY = "key"


async def operator_key(api: Api, namespace: str) -> bytes:
    """Read, or made where there is none; two operators that start at once get the same. Raises ClusterError."""
    path = f"/api/v1/namespaces/{namespace}/secrets"
    for _ in range(2):
        found = await api.call("GET", f"{path}/{KEY_SECRET}")
        if found is not None:
            return _read(found)
        try:
            made = await api.call("POST", path, body=_new(namespace))
        except ClusterError as error:
            if not error.exists:
                raise
            continue  # another operator was faster
        if made is None:
            raise ClusterError(f"there is no namespace {namespace}: --lease-namespace must name the operator's own")
        return _read(made)
    raise ClusterError(f"Secret {namespace}/{KEY_SECRET} comes and goes")


def _new(namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": KEY_SECRET, "namespace": namespace, "labels": {MANAGED_BY_LABEL: FIELD_MANAGER}},
        "type": "Opaque",
        "data": {_ENTRY: base64.b64encode(secrets.token_bytes(32)).decode()},
    }


def _read(secret: dict[str, object]) -> bytes:
    data = secret.get("data")
    value = data.get(_ENTRY) if isinstance(data, dict) else None
    key = base64.b64decode(value) if isinstance(value, str) else b""
    if len(key) < 16:
        raise ClusterError(f"Secret {KEY_SECRET} has no {_ENTRY} of 16 bytes or more: delete it, and a new one is made")
    return key
