"""The rolling update as a pure function, by tables and by playing whole rollouts through."""

from __future__ import annotations

import itertools

import pytest

from pagemill_operator.cluster.local.rollout import Revision, Strategy, next_counts, read_strategy

REPLACE = Strategy(recreate=False, max_surge=0, max_unavailable=1)
SURGE = Strategy(recreate=False, max_surge=1, max_unavailable=0)
RECREATE = Strategy(recreate=True, max_surge=0, max_unavailable=3)


def rolling(surge: int | str, unavailable: int | str) -> dict[str, object]:
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}


@pytest.mark.parametrize(
    ("spec", "replicas", "expected"),
    [
        (rolling(0, 1), 3, REPLACE),
        (rolling(1, 0), 3, SURGE),
        ({"strategy": {"type": "Recreate"}}, 3, RECREATE),
        ({}, 4, Strategy(False, 1, 1)),  # 25% each
        (rolling("25%", "25%"), 3, Strategy(False, 1, 0)),  # surge rounds up, unavailability down
        (rolling(0, 0), 2, Strategy(False, 0, 1)),  # both 0 could never move
        (rolling(0, 5), 2, Strategy(False, 0, 2)),
    ],
)
def test_read_strategy(spec: dict[str, object], replicas: int, expected: Strategy) -> None:
    assert read_strategy(spec, replicas) == expected


@pytest.mark.parametrize(
    ("name", "desired", "strategy", "new", "old", "expected"),
    [
        ("first pods", 2, REPLACE, Revision("n", 0, 0, 0), [], {"n": 2}),
        ("nothing to do", 2, REPLACE, Revision("n", 2, 2, 2), [], {"n": 2}),
        ("scale down", 1, REPLACE, Revision("n", 2, 2, 2), [], {"n": 1}),
        ("scale to zero", 0, REPLACE, Revision("n", 2, 2, 2), [], {"n": 0}),
        (
            "replace: an old one goes first",
            2,
            REPLACE,
            Revision("n", 0, 0, 0),
            [Revision("o", 2, 2, 2)],
            {"n": 0, "o": 1},
        ),
        (
            "replace: then a new one comes",
            2,
            REPLACE,
            Revision("n", 0, 0, 0),
            [Revision("o", 1, 1, 1)],
            {"n": 1, "o": 1},
        ),
        (
            "replace: waits for it to be ready",
            2,
            REPLACE,
            Revision("n", 1, 1, 0),
            [Revision("o", 1, 1, 1)],
            {"n": 1, "o": 1},
        ),
        ("replace: and goes on", 2, REPLACE, Revision("n", 1, 1, 1), [Revision("o", 1, 1, 1)], {"n": 1, "o": 0}),
        ("surge: a new one comes first", 2, SURGE, Revision("n", 0, 0, 0), [Revision("o", 2, 2, 2)], {"n": 1, "o": 2}),
        (
            "surge: the old stay until it is ready",
            2,
            SURGE,
            Revision("n", 1, 1, 0),
            [Revision("o", 2, 2, 2)],
            {"n": 1, "o": 2},
        ),
        ("surge: one for one", 2, SURGE, Revision("n", 1, 1, 1), [Revision("o", 2, 2, 2)], {"n": 1, "o": 1}),
        (
            "a broken old pod goes before one that serves",
            2,
            REPLACE,
            Revision("n", 0, 0, 0),
            [Revision("o", 1, 1, 0), Revision("p", 1, 1, 1)],
            {"n": 0, "o": 0, "p": 1},
        ),
        (
            "surge: even a broken old one stays until the new is ready",
            1,
            SURGE,
            Revision("n", 1, 1, 0),
            [Revision("o", 1, 1, 0)],
            {"n": 1, "o": 1},
        ),
        ("recreate: all old ones go", 2, RECREATE, Revision("n", 0, 0, 0), [Revision("o", 2, 2, 2)], {"n": 0, "o": 0}),
        (
            "recreate: to the last process",
            2,
            RECREATE,
            Revision("n", 0, 0, 0),
            [Revision("o", 0, 0, 0, 1)],
            {"n": 0, "o": 0},
        ),
        ("recreate: then the new", 2, RECREATE, Revision("n", 0, 0, 0), [Revision("o", 0, 0, 0)], {"n": 2, "o": 0}),
    ],
)
def test_next_counts(
    name: str, desired: int, strategy: Strategy, new: Revision, old: list[Revision], expected: dict[str, int]
) -> None:
    assert next_counts(desired, strategy, new, old) == expected, name


@pytest.mark.parametrize("strategy", [REPLACE, SURGE, Strategy(False, 1, 1), Strategy(False, 3, 0)])
@pytest.mark.parametrize("desired", [1, 2, 5])
def test_a_rollout_ends_within_its_bounds(strategy: Strategy, desired: int) -> None:
    """Pods are ready one round after they were made; in no round are there too many or too few."""
    counts, ready = {"o": desired, "n": 0}, {"o": desired, "n": 0}
    for _ in range(10 * desired):
        new, old = (Revision(name, counts[name], counts[name], ready[name]) for name in ("n", "o"))
        counts = next_counts(desired, strategy, new, [old])
        ready = {name: min(ready[name], counts[name]) for name in counts}
        assert sum(counts.values()) <= desired + strategy.max_surge
        assert sum(ready.values()) >= desired - strategy.max_unavailable
        ready = dict(counts)
        if counts == {"o": 0, "n": desired}:
            return
    pytest.fail(f"still {counts}")


@pytest.mark.parametrize("strategy", [REPLACE, SURGE])
def test_a_new_revision_that_never_gets_ready_leaves_the_rest_serving(strategy: Strategy) -> None:
    counts = {"o": 3, "n": 0}
    for _ in range(20):
        new, old = Revision("n", counts["n"], counts["n"], 0), Revision("o", counts["o"], counts["o"], counts["o"])
        counts = next_counts(3, strategy, new, [old])
    assert counts["o"] == 3 - strategy.max_unavailable
    assert counts["n"] == 1


def test_every_small_state_moves_towards_the_end() -> None:
    """Whatever a controller finds at its start, it never asks for less than nothing or more than may be."""
    for desired, new, new_ready, old, old_ready in itertools.product(range(4), repeat=5):
        if new_ready > new or old_ready > old:
            continue
        for strategy in (REPLACE, SURGE):
            counts = next_counts(
                desired, strategy, Revision("n", new, new, new_ready), [Revision("o", old, old, old_ready)]
            )
            assert 0 <= counts["n"] <= max(desired, new)
            assert 0 <= counts["o"] <= old
