"""`pagemill pull`: fetch a model once, with progress that a person and a log can both read."""

from __future__ import annotations

import argparse
import os
import sys
import time

from pagemill import hub, model_ref
from pagemill.endpoints import MODELS_ENV
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import inspect
from pagemill.sizes import format_size


def pull(argv: list[str]) -> int:
    """Fetch MODEL into the models folder and say where it lies and what it is."""
    parser = argparse.ArgumentParser(prog="pagemill pull", description="Fetch a model once, resumable and checked.")
    parser.add_argument("model", help="org/name or hf://org/name@revision")
    parser.add_argument(
        "--models", metavar="DIR", help=f"the models folder (default: ${MODELS_ENV} or the cache folder)"
    )
    args = parser.parse_args(argv)
    ref = model_ref.parse(args.model)
    if ref.kind != "hub":
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION, f"{args.model} is not on a hub: pull fetches org/name or hf://org/name"
        )
    environ = {**os.environ, MODELS_ENV: args.models} if args.models else os.environ
    bar = ProgressBar(args.model)
    folder = hub.pull(ref, bar, environ)
    bar.close()
    files = inspect(folder)
    sys.stdout.write(f"{folder}: {files.config.architecture}, {format_size(files.weights_bytes)} of weights\n")
    return 0


class ProgressBar:
    """Byte progress on stderr: one line that moves on a terminal, a line for each tenth in a log."""

    def __init__(self, label: str) -> None:
        self._label, self._tty = label, sys.stderr.isatty()
        self._shown, self._at = -1, 0.0

    def __call__(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        step = percent if self._tty else percent // 10 * 10
        now = time.monotonic()
        if step == self._shown or (self._tty and now - self._at < 0.1 and done < total):
            return
        self._shown, self._at = step, now
        text = f"{self._label}: {percent:3d}%  {format_size(done)} of {format_size(total)}"
        sys.stderr.write(f"\r{text:<79}" if self._tty else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End the moving line."""
        if self._tty and self._shown >= 0:
            sys.stderr.write("\n")
