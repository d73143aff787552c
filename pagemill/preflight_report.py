"""What a preflight found, as one JSON line that its operator can read: the good half of what `failures` is the bad half of.

`pagemill preflight` writes it to the file that `PAGEMILL_TERMINATION_LOG` names; the operator reads it from the state of the
Job's container.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pagemill.capacity import read_capacity

_WORD = re.compile(r"[!-~]{1,2048}")  # a revision or a model's reference


@dataclass(frozen=True, slots=True)
class Report:
    """A model that may be served."""

    fit: Literal["Fits", "Unknown"]  # Unknown: nobody says how much memory the GPU has
    revision: str | None = None  # the hub's commit, where one is known
    pinned: str | None = None  # what is to be served in place of the reference that was given; None: that itself
    capacity: Mapping[str, int] | None = None  # what a replica will hold: the keys of /ready's capacity

    def body(self) -> dict[str, Any]:
        """As JSON has it; what is not known is left out."""
        found: dict[str, Any] = {"fit": self.fit, "revision": self.revision, "pinned": self.pinned}
        found["capacity"] = None if self.capacity is None else dict(self.capacity)
        return {name: value for name, value in found.items() if value is not None}

    def to_line(self) -> str:
        """One line, without its end."""
        return json.dumps({"passed": self.body()}, sort_keys=True)


def parse_report(text: str) -> Report | None:
    """The report in a termination message, or None when it holds none. The last line that is one counts."""
    for line in reversed(text.strip().splitlines()):
        try:
            return report_of(json.loads(line)["passed"])
        except (ValueError, KeyError, TypeError, RecursionError):  # any program may have written here
            continue
    return None


def report_of(body: Mapping[str, Any]) -> Report:
    """Raises ValueError, KeyError or TypeError for what is none."""
    if not isinstance(body, Mapping):
        raise TypeError(body)
    capacity = body.get("capacity")
    if body["fit"] not in ("Fits", "Unknown"):
        raise ValueError(body["fit"])
    return Report(
        fit=body["fit"],
        revision=_text(body.get("revision")),
        pinned=_text(body.get("pinned")),
        capacity=None if capacity is None else read_capacity(capacity),
    )


def _text(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _WORD.fullmatch(value)):
        raise ValueError(value)
    return value
