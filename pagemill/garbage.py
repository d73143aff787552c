"""Python's search for garbage, kept off what stays for good. A full search goes through every object while no thread runs: after
torch has been imported that is a tenth of a second in which no stream gets a token, three of them while it is imported.

Called where much is made that stays: by the command line, by what imports torch, and once a model has been loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects made and not freed between two searches of the newest; of those, between two of what they left; of those, between two of
# all. With 200 streams to go through a search of all takes 12 ms, in which no thread runs: with Python's own numbers there was one
# every 40,000 tokens. Little waits for it: what a request leaves is freed without a search.
SELDOM = (2_000, 5, 500)


@contextmanager
def unsearched() -> Iterator[None]:
    """Nothing is searched while the block runs."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def staying() -> Iterator[None]:
    """The same, and what the block made (imports: modules, classes, functions) is never looked at again. Nor is what else
    there is at its end: for processes of our own, not for a program that imports us."""
    with unsearched():
        try:
            yield
        finally:
            gc.freeze()


def settle() -> None:
    """Collect what is garbage, let the rest stay, and search seldom from now on: for the moment when a server has all that it will
    have."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
