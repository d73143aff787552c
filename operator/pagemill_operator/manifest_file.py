"""Reads LLMDeployments from a YAML file or standard input, and refuses what an API server would refuse.

The one door for `up`, `render` and `plan`: every problem of the whole file is found at once, a line each, with the field's path.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import yaml

from pagemill_operator.cluster.interface import Manifest
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.resource import read
from pagemill_operator.supported import unsupported


def load_manifests(path: str) -> tuple[Manifest, ...]:
    """The file's LLMDeployments, at least one. `-` is standard input. Raises InvalidManifest."""
    documents = _documents(path)
    if not documents:
        raise InvalidManifest((f"{_shown(path)}: holds no LLMDeployment",))
    problems = []
    for number, document in enumerate(documents, start=1):
        where = _shown(path) if len(documents) == 1 else f"{_shown(path)} document {number}"
        problems += [f"{where}: {problem}" for problem in _problems(document)]
    if not problems:
        problems += [f"{_shown(path)}: metadata.name: {name!r} is there twice" for name in _twice(documents)]
    if problems:
        raise InvalidManifest(tuple(problems))
    return tuple(documents)


def load_manifest(path: str) -> Manifest:
    """The one LLMDeployment of a file; raises InvalidManifest where there are more."""
    manifests = load_manifests(path)
    if len(manifests) > 1:
        raise InvalidManifest((f"{_shown(path)}: holds {len(manifests)} LLMDeployments, one is wanted",))
    return manifests[0]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a key that is there twice is a mistake, and a date is text."""


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise yaml.MarkedYAMLError(None, None, f"{key!r} is there twice", node.value[index][0].start_mark)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _marked(kind: str) -> Callable[[_Loader, yaml.ScalarNode], Any]:
    """The standard constructor of a scalar, whose plain ValueError and KeyError (`!!int x`, `!!bool x`) get the place."""
    construct = yaml.SafeLoader.yaml_constructors[kind]

    def scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, KeyError):
            problem = f"{node.value[:60]!r} can't be read as {kind.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from None

    return scalar


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)
for _kind in ("int", "float", "bool"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _marked(f"tag:yaml.org,2002:{_kind}"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)


def _documents(path: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except OSError as error:
        raise InvalidManifest((f"{path}: {(error.strerror or str(error)).lower()}",)) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest((f"{_shown(path)}: is not text in UTF-8",)) from error
    except RecursionError as error:
        raise InvalidManifest((f"{_shown(path)}: is nested too deeply",)) from error
    except yaml.YAMLError as error:
        raise InvalidManifest((f"{_shown(path)}: is not YAML: {_yaml_problem(error)}",)) from error


def _problems(document: Any) -> Iterator[str]:
    if not isinstance(document, dict):
        yield "must be a mapping with apiVersion, kind, metadata and spec"
        return
    try:
        resource = read(document)
    except InvalidManifest as error:
        yield from error.problems
        return
    yield from unsupported(resource.spec)


def _twice(documents: list[dict[str, Any]]) -> list[str]:
    names = [(document["metadata"].get("namespace"), document["metadata"]["name"]) for document in documents]
    return sorted({name for namespace, name in names if names.count((namespace, name)) > 1})


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _shown(path: str) -> str:
    return "standard input" if path == "-" else path
