"""What a Deployment keeps of the preflight of its template: an annotation, so that nobody looks twice at the same model.

Pure. Written and read by `preflight` alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pagemill.preflight_report import Report, report_of
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.labels import PREFLIGHT_ANNOTATION, TEMPLATE_HASH_ANNOTATION
from pagemill_operator.render_pod import CONTAINER

# On a Deployment without replicas: its template was let in without a look, which is due when it wakes.
NOT_LOOKED = json.dumps({"template": ""})


@dataclass(frozen=True, slots=True)
class Record:
    """The preflight that a template has passed."""

    template: str  # the template's hash
    model: str  # as the spec names it
    report: Report

    def to_text(self) -> str:
        """The same record gives the same text."""
        return json.dumps({"template": self.template, "model": self.model, **self.report.body()}, sort_keys=True)


def written(deployment: Manifest | None) -> str | None:
    """The annotation as it is."""
    if deployment is None:
        return None
    text = (deployment["metadata"].get("annotations") or {}).get(PREFLIGHT_ANNOTATION)
    return None if text is None else str(text)


def read_record(text: str | None) -> Record | None:
    """None for what is no record of a passed preflight."""
    try:
        body = json.loads(text or "")
        return Record(str(body["template"]), str(body["model"]), report_of(body))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def template_of(deployment: Manifest | None) -> str | None:
    """The hash that a Deployment carries on its template."""
    if deployment is None:
        return None
    annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
    return annotations.get(TEMPLATE_HASH_ANNOTATION)


def model_of(deployment: Manifest | None) -> str:
    """What its replicas are told to serve; empty where it doesn't say."""
    containers = () if deployment is None else deployment["spec"]["template"]["spec"]["containers"]
    command = next((one.get("command") for one in containers if one.get("name") == CONTAINER), None)
    return str(command[-1]) if command else ""
