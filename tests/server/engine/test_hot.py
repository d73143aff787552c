"""What a change of the running engine may say, and that flags and changes are held to the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pagemill.failures import PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import hot


def test_every_field_is_hot() -> None:
    assert set(hot.NAMES) == {field.name for field in fields(SchedulerConfig)}
    hot.check(SchedulerConfig())


def test_a_change_leaves_the_rest() -> None:
    config = SchedulerConfig(max_num_seqs=7, weights=(("a", 2.0),))
    assert hot.changed(config, {}) == config
    made = hot.changed(config, {"policy": "fair", "weights": {"key1": 3, "b": 0.5}, "max_num_queued_reqs": 5})
    assert (made.policy, made.weights, made.max_num_queued_reqs) == ("fair", (("key1", 3.0), ("b", 0.5)), 5)
    assert made.max_num_seqs == 7
    assert hot.changed(made, {"max_num_queued_reqs": None}).max_num_queued_reqs is None


def test_what_is_shown_is_taken_back() -> None:
    config = SchedulerConfig(policy="priority", weights=(("a", 2.0), ("b", 1.5)), max_num_queued_tokens=9)
    assert hot.as_json(config)["weights"] == {"a": 2.0, "b": 1.5}
    assert hot.changed(SchedulerConfig(), hot.as_json(config)) == config


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("block_size", 4, "block_size is not a setting that can change while the server runs: policy, aging_seconds"),
        ("max_num_seqs", 0, "max_num_seqs must be a whole number from 1 to 2147483647, not 0"),
        ("max_num_seqs", True, "not True"),
        ("max_num_seqs", 1.0, "not 1.0"),
        ("max_num_seqs", None, "not None"),
        ("max_num_seqs", 1 << 40, "from 1 to"),
        ("max_num_batched_tokens", "512", "not '512'"),
        ("max_num_queued_reqs", 0, "max_num_queued_reqs must be a whole number"),
        ("aging_seconds", 0, "aging_seconds must be a number above 0, not 0"),
        ("aging_seconds", float("nan"), "not nan"),
        ("aging_seconds", float("inf"), "not inf"),
        ("aging_seconds", 10**400, "must be a number"),
        ("ttft_ms", -1, "ttft_ms must be a number above 0"),
        ("ttft_ms", True, "not True"),
        ("watermark", 1, "watermark must be a number from 0 and below 1, not 1"),
        ("bypass_seconds", -0.1, "from 0, not"),
        ("output_weight", 0, "above 0"),
        ("weights", [["a", 1]], "must give a number to each client"),
        ("weights", {"a": 0}, "weights of client 'a' must be a number above 0"),
        ("weights", {"a": "2"}, "weights of client 'a'"),
        ("policy", 5, "policy must be a name, not 5"),
    ],
)
def test_what_cannot_be_names_itself(name: str, value: Any, message: str) -> None:
    with pytest.raises(hot.InvalidSetting) as error:
        hot.changed(SchedulerConfig(), {"max_num_seqs": 3, name: value})
    assert error.value.name == name
    assert message in error.value.failure.message


def test_a_check_finds_the_policy_too() -> None:
    with pytest.raises(PagemillError, match="There is no scheduling policy"):
        hot.check(hot.changed(SchedulerConfig(), {"policy": "lifo"}))
    with pytest.raises(hot.InvalidSetting, match="ttft_ms"):
        hot.check(SchedulerConfig(ttft_ms=0))
