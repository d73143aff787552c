"""Reads an LLMDeployment's manifest into a frozen resource, and says in a person's words what is wrong with one.

Pure. The API server has checked what comes from it, but an object may have been written past an older CRD, and a
file that `up`, `render` and `plan` read was checked by nobody: so every manifest goes through here. Called by `reconcile` and
`manifest_file`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pagemill_operator.cluster.interface import Key, Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.labels import API_VERSION, COPIED_LABELS, KIND
from pagemill_operator.spec import LLMDeploymentSpec

NAME_LIMIT = 50  # characters: children and their pods' labels must stay within 63


@dataclass(frozen=True, slots=True)
class Owner:
    """Who the children belong to. `uid` is empty for a manifest from a file, `namespace` where the file names none."""

    key: Key
    uid: str
    generation: int
    labels: Mapping[str, str] = field(default_factory=dict)  # of its own, those that its children take over


@dataclass(frozen=True, slots=True)
class Resource:
    """An LLMDeployment whose spec is what the types allow."""

    owner: Owner
    spec: LLMDeploymentSpec


def owner_of(manifest: Manifest) -> Owner:
    """The identity of a manifest, which even an invalid one has."""
    metadata = manifest["metadata"]
    key = Key(metadata.get("namespace") or "", metadata["name"])
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name in COPIED_LABELS}
    return Owner(key, str(metadata.get("uid") or ""), int(metadata.get("generation") or 1), labels)


def deleting(manifest: Manifest) -> bool:
    """Whether it is on its way out: garbage collection removes the children, and nothing may make them anew."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def read(manifest: Manifest) -> Resource:
    """The typed resource; raises InvalidManifest with every problem at once."""
    problems = tuple(_shape_problems(manifest))
    if problems:
        raise InvalidManifest(problems)
    try:
        # As JSON: strict types then still take a list for a tuple, and a YAML date is the text that Kubernetes makes of it.
        spec = LLMDeploymentSpec.model_validate_json(json.dumps(manifest["spec"], default=str))
    except ValidationError as error:
        raise InvalidManifest(tuple(_line(item) for item in error.errors())) from error
    return Resource(owner_of(manifest), spec)


def _shape_problems(manifest: Manifest) -> Iterator[str]:
    if manifest.get("apiVersion") != API_VERSION or manifest.get("kind") != KIND:
        yield f"apiVersion and kind: must be {API_VERSION} and {KIND}"
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        yield "metadata.name: is missing"
    elif len(name) > NAME_LIMIT:
        yield f"metadata.name: has {len(name)} characters, at most {NAME_LIMIT} are allowed"
    elif not _is_dns_label(name):
        yield f"metadata.name: {name!r} must be lower-case letters, digits and '-', beginning with a letter"
    if isinstance(metadata, Mapping):
        yield from _metadata_problems(metadata)
    for unknown in sorted(str(key) for key in set(manifest) - {"apiVersion", "kind", "metadata", "spec", "status"}):
        yield f"{unknown}: unknown field"
    if not isinstance(manifest.get("spec"), Mapping):
        yield "spec: is missing"


def _metadata_problems(metadata: Mapping[Any, Any]) -> Iterator[str]:
    """Of what is read here beside the name. null is as good as absent."""
    namespace = metadata.get("namespace")
    if namespace is not None and not (isinstance(namespace, str) and namespace):
        yield f"metadata.namespace: must be a name, not {_shown(namespace)}"
    for name in ("labels", "annotations"):
        found = metadata.get(name)
        if found is not None and not (
            isinstance(found, Mapping) and all(isinstance(text, str) for pair in found.items() for text in pair)
        ):
            yield f"metadata.{name}: must be a mapping of strings to strings (put values in quotes)"
    generation = metadata.get("generation")
    if generation is not None and type(generation) is not int:
        yield f"metadata.generation: must be an integer, not {_shown(generation)}"


def _is_dns_label(name: str) -> bool:
    """A Service's name is an RFC 1035 label, stricter than what the resource's own name could be."""
    letters = name.replace("-", "")
    return name[0].isalpha() and name[-1] != "-" and letters.isalnum() and name.isascii() and name == name.lower()


_WORDS = {
    "extra_forbidden": "unknown field",
    "missing": "is missing",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be a string (put it in quotes)",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


def _line(error: Mapping[str, Any]) -> str:
    path = "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    context = error.get("ctx", {})
    kind = error["type"]
    if kind == "value_error":
        return f"{path}: {context['error']}"
    if kind == "literal_error":
        return f"{path}: must be one of {context['expected']}, not {_shown(error['input'])}"
    if kind == "string_pattern_mismatch":
        return f"{path}: {_shown(error['input'])} does not match {context['pattern']}"
    if kind in _WORDS:
        found = "" if kind in ("extra_forbidden", "missing") else f", not {_shown(error['input'])}"
        return f"{path}: {_WORDS[kind]}{found}"
    reason = str(error["msg"]).replace("Input should", "must")
    return f"{path}: {reason[0].lower()}{reason[1:]}, not {_shown(error['input'])}"


def _shown(value: object) -> str:
    shown = json.dumps(value, default=str)
    return shown if len(shown) <= 60 else shown[:57] + "..."
