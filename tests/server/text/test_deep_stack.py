"""A thread with a large stack: what comes back from it, and that no other thread has one for it."""

from __future__ import annotations

import threading

import pytest

from pagemill_server.text.deep_stack import on_deep_stack


def test_what_is_returned_or_raised_comes_back() -> None:
    assert on_deep_stack(threading.current_thread) is not threading.current_thread()
    with pytest.raises(KeyError, match="gone"):
        on_deep_stack(lambda: {}["gone"])


def test_the_usual_size_stays_as_it_was() -> None:
    before = threading.stack_size()
    on_deep_stack(lambda: None)
    assert threading.stack_size() == before
