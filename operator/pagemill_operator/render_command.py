"""`pagemill render`: the manifests that an LLMDeployment becomes, as YAML, for whoever applies them without the operator."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import yaml

from pagemill_operator.manifest_file import load_manifests
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.settings import from_environ


class _Plain(yaml.SafeDumper):
    """Every value written out where it stands: what looks equal by chance is no alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def run(argv: list[str]) -> int:
    """Print every child of every LLMDeployment in the file; raises InvalidManifest."""
    parser = argparse.ArgumentParser(
        prog="pagemill render", description="Print the Kubernetes manifests that an LLMDeployment becomes."
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="LLMDeployments as YAML; - is standard input"
    )
    args = parser.parse_args(argv)
    settings = from_environ(os.environ)
    children = [child for manifest in load_manifests(args.file) for child in render(read(manifest), settings)]
    sys.stdout.write(as_yaml(children))
    return 0


def as_yaml(manifests: list[Any]) -> str:
    """Several documents, keys in the order in which they were rendered."""
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, explicit_start=True, width=120, allow_unicode=True)
