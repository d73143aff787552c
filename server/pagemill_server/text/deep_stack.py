"""Runs what calls itself as often as its input is nested: on a thread whose stack holds the most that the input's bounds allow.

llguidance's parsers do, and a stack that overflows ends the process. Used by `text/grammar/compiler`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# 128 Ki characters at 10 a level and 8 KiB a level, and twice that. Pages that are never touched are never there.
STACK_BYTES = 256 << 20
_starting = threading.Lock()


def on_deep_stack(function: Callable[[], T]) -> T:
    """What it returns or raises."""
    future: Future[T] = Future()
    thread = threading.Thread(target=_run, args=(function, future), name="deep-stack", daemon=True)
    with _starting:  # the size is the process's: whoever starts a thread in between gets a larger one, no more
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return future.result()


def _run(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001  it is raised where it is waited for; llguidance's panics are of this kind
        future.set_exception(error)
