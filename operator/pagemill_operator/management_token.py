"""The token of each deployment's management port, from one key of the operator's own: nothing to store, nothing to look up.

Pure. `render` puts it into the deployment's Secret, `cluster.kubernetes` asks with it. Who can read one deployment's Secret can
manage that deployment and no other.
"""

from __future__ import annotations

import hashlib
import hmac

from pagemill_operator.cluster.interface import Key

SECRET_KEY = "token"


def management_token(operator_key: bytes, key: Key) -> str:
    """64 hexadecimal digits: HMAC-SHA256 over namespace and name."""
    return hmac.new(operator_key, f"{key.namespace}/{key.name}".encode(), hashlib.sha256).hexdigest()


def secret_name(name: str) -> str:
    """The Secret of the deployment `name`."""
    return f"{name}-management"
