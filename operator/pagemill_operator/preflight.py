"""What is known of a model before its pods start, and the Job that finds it out.

Pure: (resource, world, settings, now) → Preflight. Pods of a new template start when it has passed; what it found (the pinned
revision, what fits) is kept on the Deployment. A look that failed is taken again after a while. Called by `reconcile`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from pagemill import model_ref
from pagemill.preflight_report import Report
from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.gpu_memory import device_memory
from pagemill_operator.observe import World
from pagemill_operator.preflight_job import SUBJECT_ANNOTATION, Attempt, job, number_of, subject, trouble_before
from pagemill_operator.preflight_record import NOT_LOOKED, Record, model_of, read_record, template_of, written
from pagemill_operator.preflight_state import Failed, Passed, Stuck, Underway, state_of
from pagemill_operator.resource import Resource
from pagemill_operator.settings import Settings
from pagemill_operator.spec import LLMDeploymentSpec
from pagemill_operator.template_hash import template_hash
from pagemill_operator.waiting import Trouble

_PINNED = re.compile(r"hf://\S+@[0-9a-f]{40}")  # a model with its commit, as a preflight gives it
_FIRST_PAUSE, _LONGEST_PAUSE = 30, 600  # seconds between an attempt that failed and the next


@dataclass(frozen=True, slots=True)
class Preflight:
    """Where the look at the model stands."""

    passed: bool  # the pods of this template may start
    job: Manifest | None = None  # the Job that should exist now
    running: str | None = None  # while it is under way: a sentence for Progressing, with a percent where it downloads
    trouble: Trouble | None = None  # why it has not passed; a failed look is taken again, and the message says when
    model: str | None = None  # the model with its revision pinned, where the hub named one
    revision: str | None = None
    capacity: Mapping[str, int] | None = (
        None  # what a replica will hold (keys of /ready's capacity), where it was computed
    )
    fit: Literal["Fits", "Unknown"] | None = None  # Unknown: nobody says how much memory the GPU has
    record: str | None = None  # what the Deployment keeps of it (PREFLIGHT_ANNOTATION)
    again: float | None = None  # seconds until another look at it is worth it; None: an event will tell


PASSED = Preflight(passed=True)


def preflight(resource: Resource, world: World, settings: Settings, now: datetime) -> Preflight:
    """Passed at once where pods of this template run already, where none are wanted, and where nobody wants a look."""
    spec, live = resource.spec, world.child("Deployment")
    hashed, text = template_hash(spec), written(live)
    record = read_record(text)
    if template_of(live) == hashed and text != NOT_LOOKED and (record is None or record.template == hashed):
        return _as_it_runs(spec, live) if record is None else _passed(record.report, text)
    if not settings.preflight:
        return PASSED
    known = record.report if record is not None and record.model == spec.model else None
    if spec.suspend or spec.replicas == 0:
        return replace(_passed(known, text), record=NOT_LOOKED if record is None else text)
    return _look(resource, world, settings, now, None if known is None else known.revision)


def _look(resource: Resource, world: World, settings: Settings, now: datetime, revision: str | None) -> Preflight:
    attempt = Attempt(memory=device_memory(resource.spec, world.nodes), revision=revision)
    live = _newest_job(resource, world)
    if live is None:
        return Preflight(False, job(resource, settings, attempt), "the preflight of the model is being started")
    attempt = replace(attempt, number=number_of(live), before=trouble_before(live))
    present = job(resource, settings, attempt)
    match state_of(live, world, now):
        case Passed(report):
            record = Record(template_hash(resource.spec), resource.spec.model, report)
            return replace(_passed(report, record.to_text()), job=present)
        case Failed(trouble, ended):
            pause = min(_FIRST_PAUSE << min(attempt.number, 10), _LONGEST_PAUSE)
            told = replace(trouble, message=f"{trouble.message}; {_when(pause)}")
            left = pause - (now - ended).total_seconds()
            if left > 0:
                return Preflight(False, present, trouble=told, again=left)
            following = replace(attempt, number=attempt.number + 1, before=told)
            return Preflight(False, job(resource, settings, following), trouble=told)
        case Stuck(trouble):
            return Preflight(False, present, trouble=trouble, again=settings.refused_seconds)
        case Underway(message, moves):
            again = settings.look_again_seconds if moves else settings.settle_seconds
            if attempt.before is not None:  # what failed stays said until it is mended
                return Preflight(False, present, trouble=attempt.before, again=again)
            return Preflight(False, present, message, again=again)


def _as_it_runs(spec: LLMDeploymentSpec, live: Manifest | None) -> Preflight:
    """Without a record, which a hand may have taken away: the pods that run keep the commit that they were given."""
    name, wanted = model_of(live), model_ref.parse(spec.model)
    if wanted.kind != "hub" or not _PINNED.fullmatch(name):
        return PASSED
    found = model_ref.parse(name)
    same = (found.kind, found.location) == (wanted.kind, wanted.location)
    return replace(PASSED, model=name, revision=found.revision) if same and name != spec.model else PASSED


def _passed(report: Report | None, record: str | None) -> Preflight:
    if report is None:
        return PASSED
    return Preflight(
        passed=True,
        model=report.pinned,
        revision=report.revision,
        capacity=report.capacity,
        fit=report.fit,
        record=record,
    )


def _newest_job(resource: Resource, world: World) -> Manifest | None:
    """Of this very spec; others go."""
    about = subject(resource)
    jobs = [
        child
        for child in world.children
        if child["kind"] == "Job" and (child["metadata"].get("annotations") or {}).get(SUBJECT_ANNOTATION) == about
    ]
    staying = [child for child in jobs if "deletionTimestamp" not in child["metadata"]]
    return max(staying, key=number_of, default=None)


def _when(pause: int) -> str:
    return f"the next look is {pause} s after this one, and at once when the spec changes"
