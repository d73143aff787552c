"""What of a spec rolls the pods, as one short hash on the pod template.

Made from the fields that are tagged `restart` or `immutable` and differ from their defaults: neither a new version of the operator
nor a default that someone writes out changes it. Pods that carry the wanted hash are the newest generation. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pagemill_operator.fields import Group, tag_of
from pagemill_operator.spec import LLMDeploymentSpec


def template_fields(spec: LLMDeploymentSpec) -> dict[str, str]:
    """A hash of eight hexadecimal digits of each such field, by its path: a pod that carries it tells later what has changed."""
    return {path: _hash(value)[:8] for path, value in sorted(_template_fields(spec, ""))}


def template_hash(spec: LLMDeploymentSpec) -> str:
    """16 hexadecimal digits."""
    return _hash(dict(_template_fields(spec, "")))[:16]


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _template_fields(part: Group, path: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of every such field that was changed from its default."""
    dumped = part.model_dump(mode="json", by_alias=True)
    for name, field in type(part).model_fields.items():
        value, alias = getattr(part, name), field.alias or name
        tag = tag_of(field.description)
        if isinstance(value, Group):
            yield from _template_fields(value, f"{path}{alias}.")
        elif value != field.get_default(call_default_factory=True) and tag not in ("hot", "operator"):
            yield f"{path}{alias}", dumped[alias]  # untagged: a list of groups, whose leaves are tagged alike
