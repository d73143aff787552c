"""Progress and phases, on a clock of the test's own."""

from __future__ import annotations

from pagemill_server.lifecycle import Lifecycle, Phase


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_new_bytes_and_new_phases_are_progress() -> None:
    clock = Clock()
    lifecycle = Lifecycle(100, clock)
    clock.now += 5
    assert lifecycle.stuck_for() == 5
    lifecycle.enter(Phase.LOADING_WEIGHTS)
    assert lifecycle.stuck_for() == 0
    clock.now += 3
    lifecycle.progress(0, 100)
    assert lifecycle.stuck_for() == 3
    lifecycle.progress(50, 100)
    assert (lifecycle.stuck_for(), lifecycle.percent) == (0, 50)


def test_once_serving_it_is_never_stuck_and_wholly_loaded() -> None:
    clock = Clock()
    lifecycle = Lifecycle(100, clock)
    lifecycle.enter(Phase.SERVING)
    clock.now += 1000
    assert (lifecycle.stuck_for(), lifecycle.percent, lifecycle.ready, lifecycle.loading) == (0, 100, True, False)
    lifecycle.enter(Phase.DRAINING)
    assert (lifecycle.ready, lifecycle.loading) == (False, False)


def test_a_model_of_unknown_size() -> None:
    assert Lifecycle().percent == 0
