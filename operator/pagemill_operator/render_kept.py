"""The pod template that replicas run, kept while nothing that restarts has changed: a later operator renders pods its own way, and
must restart nobody for it.

Pure. The Deployment itself carries the template as it was rendered, so that what a hand does to the live one is still put right.
Called by `render`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.hot_settings import settings_of
from pagemill_operator.labels import TEMPLATE_ANNOTATION, TEMPLATE_HASH_ANNOTATION
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.template_hash import template_hash

_SETTINGS_FLAG = "--settings-file"


def kept_template(spec: LLMDeploymentSpec, live: Manifest | None) -> dict[str, Any] | None:
    """The template of the live Deployment, if it was made from the same restart fields; None: render anew."""
    if live is None or template_annotation(live) != template_hash(spec):
        return None
    written = _written(live)
    template = written if written is not None else dict(live["spec"]["template"])  # of a release that wrote none
    if settings_of(spec) != _UNSAID and not _reads_settings(template):
        return None  # a server of a release that took these by its command line would never hear of them
    return template


def as_annotation(template: Mapping[str, Any]) -> str:
    """The same text for the same template."""
    return json.dumps(template, sort_keys=True, separators=(",", ":"))


def template_annotation(manifest: Manifest) -> str | None:
    """The template hash that a Deployment carries on its template."""
    return _hash_on(manifest["spec"]["template"])


def _written(live: Manifest) -> dict[str, Any] | None:
    """None where there is none, or a hand has spoilt it."""
    annotations: Mapping[str, str] = live["metadata"].get("annotations") or {}
    try:
        found = json.loads(annotations.get(TEMPLATE_ANNOTATION, ""))
        containers = found["spec"]["containers"]
        whole = _hash_on(found) == template_annotation(live) and bool(containers[0]["image"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return found if whole else None


def _hash_on(template: Mapping[str, Any]) -> str | None:
    annotations: Mapping[str, str] = template["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE_HASH_ANNOTATION)


def _reads_settings(template: Mapping[str, Any]) -> bool:
    return any(_SETTINGS_FLAG in (container.get("args") or ()) for container in template["spec"]["containers"])


_UNSAID = settings_of(LLMDeploymentSpec.model_validate({"model": "org/name"}))
