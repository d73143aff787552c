"""What may change while the engine runs: every field of `SchedulerConfig`, what each may be, and a change as JSON spells it.

`check` is what the flags and a change must pass alike. Pure but for finding the policy. Used by `cli`, `loop` and
`api/management`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import policies

MOST = (1 << 31) - 1  # tokens, sequences: beyond any machine, and what every number format holds


class InvalidSetting(PagemillError):
    """`name` is the setting at fault."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(FailureReason.INVALID_CONFIGURATION, f"{name} {message}")
        self.name = name


def check(config: SchedulerConfig) -> None:
    """Raises PagemillError for a value that can't be, and for a policy that can't be had."""
    for name, value in as_json(config).items():
        _read(name, value)
    policies.load(config)


def changed(config: SchedulerConfig, changes: Mapping[str, Any]) -> SchedulerConfig:
    """`config` with the changes that JSON names. Raises PagemillError for an unknown name and a value that can't be; whether the
    policy can be had is for `check` to say."""
    for name in changes:
        if name not in _READERS:
            raise InvalidSetting(name, f"is not a setting that can change while the server runs: {', '.join(_READERS)}")
    return replace(config, **{name: _read(name, value) for name, value in changes.items()})


def check_memory(config: SchedulerConfig, start: SchedulerConfig) -> None:
    """Memory is divided once, for the widest step of the start: no later one may be wider. Raises InvalidSetting."""
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        asked, most = getattr(config, name), getattr(start, name)
        if asked > most:
            flag = "--" + name.replace("_", "-")
            raise InvalidSetting(
                name,
                f"can't be {asked}: the memory was divided for at most {most} when the server started with {flag}",
            )


def as_json(config: SchedulerConfig) -> dict[str, Any]:
    """What is in force, by the names that `changed` takes."""
    return asdict(config) | {"weights": dict(config.weights)}


def _read(name: str, value: object) -> Any:
    try:
        return _READERS[name](value)
    except ValueError as error:
        raise InvalidSetting(name, str(error)) from None


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"must be a whole number from 1 to {MOST}, not {_shown(value)}")
    return value


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)


def _number(least: float, exclusive: bool, most: float = math.inf) -> Callable[[object], float]:
    bounds = ("above" if exclusive else "from") + f" {least:g}" + (f" and below {most:g}" if most < math.inf else "")

    def number(value: object) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        if not (right and (least < value if exclusive else least <= value) and value < most):  # type: ignore[operator]
            raise ValueError(f"must be a number {bounds}, not {_shown(value)}")
        return float(value)  # type: ignore[arg-type]

    return number


_positive = _number(0, exclusive=True)
_from_zero = _number(0, exclusive=False)


def _weights(value: object) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping):
        raise ValueError(f"must give a number to each client that it names, not {_shown(value)}")
    pairs = []
    for client, weight in value.items():
        try:
            pairs.append((str(client), _positive(weight)))
        except ValueError as error:
            raise ValueError(f"of client {_shown(client)} {error}") from None
    return tuple(pairs)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be a name, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:60]


_READERS: dict[str, Callable[[object], object]] = {
    "policy": _text,
    "aging_seconds": _positive,
    "ttft_ms": _positive,
    "weights": _weights,
    "input_weight": _from_zero,
    "output_weight": _positive,
    "max_num_seqs": _whole,
    "max_num_batched_tokens": _whole,
    "watermark": _number(0, exclusive=False, most=1),
    "bypass_seconds": _from_zero,
    "max_num_queued_reqs": _whole_or_none,
    "max_num_queued_tokens": _whole_or_none,
}
NAMES = tuple(_READERS)
