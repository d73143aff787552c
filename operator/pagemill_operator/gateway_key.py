"""The key under which the queue and the cache hold a namespace's gateway. Pure.

Its objects carry the same label as an LLMDeployment's children, with a value that none can have for a name (a dot is in it).
"""

from __future__ import annotations

from collections.abc import Iterable

from pagemill_operator.cluster.interface import Key
from pagemill_operator.labels import GATEWAY_LABEL_VALUE


def gateway_key(namespace: str) -> Key:
    """What stands for the gateway of a namespace."""
    return Key(namespace, GATEWAY_LABEL_VALUE)


def is_gateway(key: Key) -> bool:
    """Whether a key stands for a gateway and not for an LLMDeployment."""
    return key.name == GATEWAY_LABEL_VALUE


def with_gateways(keys: Iterable[Key]) -> tuple[Key, ...]:
    """The same, and each of their namespaces' gateway."""
    known = set(keys)
    return tuple(sorted(known | {gateway_key(key.namespace) for key in known}))
