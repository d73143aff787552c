"""What the policy is told of the keys' weights, at the start and when they change."""

from __future__ import annotations

import pytest

from pagemill_server.api.key_weights import merged_weights


@pytest.mark.parametrize(
    ("in_force", "old", "new", "flags", "wanted"),
    [
        ({"x": 1}, {}, {"a": 2}, {"x": 1}, {"x": 1, "a": 2}),  # at the start
        ({"a": 5}, {}, {"a": 2}, {"a": 5}, {"a": 2}),  # a key's own goes before the flags'
        ({"a": 2}, {"a": 2}, {}, {"a": 5}, {"a": 5}),  # and when it is gone the flags' is back
        ({"a": 2}, {"a": 2}, {}, {}, {}),
        ({"a": 7}, {"a": 2}, {}, {"a": 5}, {"a": 7}),  # somebody set it meanwhile
        ({"a": 7}, {"a": 2}, {"a": 3}, {}, {"a": 3}),  # until the file says otherwise
        ({"x": 1}, {"a": 2}, {"a": 2, "b": 1}, {}, {"x": 1, "a": 2, "b": 1}),
    ],
)
def test_weights(
    in_force: dict[str, float],
    old: dict[str, float],
    new: dict[str, float],
    flags: dict[str, float],
    wanted: dict[str, float],
) -> None:
    assert merged_weights(in_force, old, new, flags) == wanted
