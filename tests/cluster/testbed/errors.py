"""What the testbed cannot do, said so that a person can act on it.

TestbedError
├── NotPossibleHere   this user or machine can't run a cluster; `str()` ends with the line that would
└── NotReady          something that was started did not come up; `str()` names it and its log
"""

from __future__ import annotations


class TestbedError(Exception):
    """The root of what the testbed raises on purpose."""

    __test__ = False  # pytest would take the name for a test class


class NotPossibleHere(TestbedError):
    """A missing right or system package; tests skip with this text."""


class NotReady(TestbedError):
    """A process ended or did not answer in time; the text names its log file."""
