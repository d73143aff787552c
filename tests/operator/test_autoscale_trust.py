"""What of a look is believed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pagemill_operator.autoscale_trust import is_stale, sound
from tests.operator.scaling_worlds import NOW, ago, look, replica

NAN, INF = float("nan"), float("inf")


def test_what_is_sound_stays_as_it_is() -> None:
    samples = look(replica(1, 2, 0.3, None), replica(0, 8, 1.0000001, 4), ttft_p95=0.5, missing=("chat-9 is silent",))
    assert sound(samples) == samples


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1.0])
@pytest.mark.parametrize("field", ["kv_cache_usage", "waiting", "running", "max_running", "preemptions_per_second"])
def test_what_is_no_number_is_missing_and_not_zero(field: str, value: float) -> None:
    broken: dict[str, Any] = {field: value}
    samples = look(replica(1), replica(2))
    samples = replace(samples, replicas=(replace(samples.replicas[0], **broken), samples.replicas[1]))
    found = sound(samples)
    assert [one.pod for one in found.replicas] == ["chat-1"]
    assert [line.partition(" ")[0] for line in found.missing] == ["chat-0"]
    assert f"{value:g}" in found.missing[0]


@pytest.mark.parametrize(("field", "value"), [("kv_cache_usage", 93.0), ("max_running", 0.0)])
def test_neither_is_a_fraction_above_one_nor_a_step_that_holds_nothing(field: str, value: float) -> None:
    changes: dict[str, Any] = {field: value}
    samples = look(replica())
    assert sound(replace(samples, replicas=(replace(samples.replicas[0], **changes),))).replicas == ()


@pytest.mark.parametrize("value", [NAN, INF, -1.0])
def test_a_ttft_that_is_no_number_is_missing(value: float) -> None:
    found = sound(look(replica(), ttft_p95=value))
    assert found.ttft_p95 is None
    assert found.missing == (f"the time to the first token is {value:g}",)


def test_missing_pods_are_in_the_order_of_their_names() -> None:
    found = sound(look(replica(waiting=NAN), missing=("chat-1 is silent", "a is silent")))
    assert [line.partition(" ")[0] for line in found.missing] == ["a", "chat-0", "chat-1"]


@pytest.mark.parametrize(("seconds", "stale"), [(0, False), (30, False), (31, True), (-30, False), (-31, True)])
def test_a_look_from_another_time_is_none(seconds: float, stale: bool) -> None:
    assert is_stale(look(time=ago(seconds)), NOW) is stale
