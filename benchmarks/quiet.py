"""Waits until nobody else works on this machine, and says how much others did while something was measured.

A figure of a busy machine is noise; a figure that does not say how busy the machine was can't be told from one.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass

from benchmarks import processes

LOOK = 1.5  # seconds that one look takes
BUSY = 0.05  # cores in use: below that the machine is quiet
PATIENCE = 60.0  # seconds; then it is measured all the same, and the noise is in the result


@dataclass(frozen=True, slots=True)
class Noise:
    """Cores that were busy on average during a measurement."""

    others: float  # by processes that are not of this measurement
    host: float  # taken away by the machine's own host
    ours: float  # by the measurement, its servers included


class Watch:
    """From its making to `noise()`."""

    def __init__(self) -> None:
        self._at, self._before = time.monotonic(), _snap()

    def noise(self) -> Noise:
        seconds = max(1e-3, time.monotonic() - self._at)
        all_, host, ours = (now - then for now, then in zip(_snap(), self._before, strict=True))
        return Noise(max(0.0, all_ - ours) / seconds, host / seconds, ours / seconds)


def wait(look: float = LOOK, patience: float = PATIENCE) -> Noise:
    """Until less than BUSY cores are used, by others or by what we started, which should only wait now; returns what the last look
    saw."""
    began = time.monotonic()
    told = False
    while True:
        watch = Watch()
        time.sleep(look)
        noise = watch.noise()
        busy = noise.others + noise.host + noise.ours
        if busy < BUSY or time.monotonic() - began >= patience:
            return noise
        if not told:
            told = True
            sys.stderr.write(
                f"{busy:.2f} cores are busy, {noise.ours:.2f} of them with what we started: waiting for quiet\n"
            )


def _snap() -> tuple[float, float, float]:
    """Processor seconds so far: of everybody, of the host, of this process and what it started."""
    busy, steal = processes.machine_seconds()
    return busy, steal, processes.cpu_seconds(os.getpid())
