"""The operator's part of the `pagemill` command: four thin doors, each to a module of its own.

What is wrong with a FILE ends here as one line a problem and exit code 2; every other error is `pagemill.cli`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pagemill_operator import plan_command, render_command, up_command
from pagemill_operator.errors import InvalidManifest


def up(argv: list[str]) -> int:
    """Run the LLMDeployments of a file on this machine."""
    return _checked("up", up_command.run, argv)


def render(argv: list[str]) -> int:
    """Print the manifests that an LLMDeployment becomes."""
    return _checked("render", render_command.run, argv)


def plan(argv: list[str]) -> int:
    """Say whether an LLMDeployment fits the memory, and what would."""
    return _checked("plan", plan_command.run, argv)


def operator(argv: list[str]) -> int:
    """Run the Kubernetes operator."""
    from pagemill_operator.__main__ import main  # here: kopf and the Kubernetes client take half a second to import

    return main(argv)


def _checked(name: str, command: Callable[[list[str]], int], argv: list[str]) -> int:
    try:
        return command(argv)
    except InvalidManifest as error:
        for problem in error.problems:
            sys.stderr.write(f"pagemill {name}: {problem}\n")
        return 2
