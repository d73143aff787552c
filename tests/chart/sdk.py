"""`helm template` and `helm lint` by Helm's own code as a library (PyPI: helm-python-sdk), for machines where helm is not built.

A process of its own, called by conftest as helm is: the library holds Go's runtime, which does not belong into pytest's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays values over values: mappings are merged, all else is replaced."""
    result = dict(below)
    for name, value in above.items():
        old = result.get(name)
        result[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def values(flags: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for file in flags.values:
        result = merged(result, yaml.safe_load(Path(file).read_text()) or {})
    for expression in flags.set:
        result = merged(result, helm_python.parse_set_string(expression))
    return result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["template", "lint"])
    parser.add_argument("words", nargs="+")  # template NAME CHART, lint CHART
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--values", action="append", default=[])
    flags = parser.parse_args()
    try:
        if flags.command == "template":
            name, chart = flags.words
            rendered = helm_python.Chart.load(chart).render(values(flags), name=name, namespace=flags.namespace)
            sys.stdout.write("\n---\n".join(rendered[path] for path in sorted(rendered)))
            return 0
        report = helm_python.lint(flags.words[0], values(flags), strict=flags.strict)
    except helm_python.HelmError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    sys.stdout.write("\n".join(str(message) for message in report["messages"]))
    return int(bool(report["errors"]) or any(message["severity"] >= 2 for message in report["messages"]))


if __name__ == "__main__":
    sys.exit(main())
