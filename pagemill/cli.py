"""The `pagemill` command: finds its subcommands through entry points, so that each image carries only what it needs.

A subcommand is a function `(argv) -> exit code` in the group `pagemill.commands`. What a person did wrong ends as one line on
stderr and exit code 2 (a wrong call) or 1 (a failure); a traceback means that we have a bug.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

from pagemill import __version__, garbage
from pagemill.failures import PagemillError

GROUP = "pagemill.commands"
SUMMARIES = {
    "serve": "serve one model over an OpenAI-compatible API",
    "up": "run LLMDeployments of a file on this machine, as a cluster would",
    "plan": "say whether an LLMDeployment fits the memory, and what would",
    "render": "print the manifests that an LLMDeployment becomes",
    "pull": "fetch a model once, resumable and checked",
    "preflight": "look at a model before GPUs are taken for it",
    "gateway": "run the proxy before a namespace's deployments that sleep or are spread by us",
    "operator": "run the Kubernetes operator",
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    args = sys.argv[1:] if argv is None else argv
    commands = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage(commands))
        return 0 if args else 2
    if args[0] in ("-V", "--version", "version"):
        sys.stdout.write(f"pagemill {__version__}\n")
        return 0
    if args[0] not in commands:
        sys.stderr.write(f"pagemill: there is no command {args[0]!r}\n{_usage(commands)}")
        return 2
    return _run(commands[args[0]], args[1:])


def _run(entry: EntryPoint, argv: list[str]) -> int:
    # The kernel drops a SIGTERM that a container's first process has no handler for, and importing torch takes seconds:
    # without this, a pod that is stopped while it starts would load and serve until its grace period is over.
    signal.signal(signal.SIGTERM, _end)
    try:
        with garbage.staying():
            command = entry.load()
    except ModuleNotFoundError as error:
        part = {"pagemill_server": "[server]", "pagemill_operator": "[operator]"}.get(
            entry.module.partition(".")[0], ""
        )
        sys.stderr.write(
            f"pagemill: `{entry.name}` needs {error.name}, which is not installed: pip install 'pagemill{part}'\n"
        )
        return 1
    try:
        code = int(command(argv) or 0)
        sys.stdout.flush()  # here, where a reader that left can still be told from a failure
        return code
    except PagemillError as error:
        sys.stderr.write(f"pagemill {entry.name}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `pagemill render … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter's last flush fails again
        return 141


def _end(number: int, _: object) -> NoReturn:
    """Until a command has a handler of its own."""
    raise SystemExit(128 + number)


def _usage(commands: dict[str, EntryPoint]) -> str:
    lines = ["usage: pagemill COMMAND …    (pagemill COMMAND --help tells more)\n\n"]
    ordered = [name for name in SUMMARIES if name in commands] + sorted(set(commands) - set(SUMMARIES))
    lines += [f"  {name:<10}{SUMMARIES.get(name, '')}\n" for name in ordered]
    lines.append("\n  --version prints the version\n")
    return "".join(lines)
