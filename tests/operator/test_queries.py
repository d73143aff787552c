"""The queries' shape: whose pods they match, and which of them a deployment's targets bring."""

from __future__ import annotations

import re

import pytest

from pagemill_operator.queries import COMPARED, GAUGES, PREEMPTIONS, SCRAPED, TTFT, keda_queries, signal_queries
from pagemill_operator.resource import NAME_LIMIT
from pagemill_operator.spec_scaling import Targets

HASH, RANDOM = "7d9f6b54c8", "x2k9z"


def generated(name: str, hashed: str = HASH) -> str:
    """A pod's name as Kubernetes makes it: what is generated is cut to 58 characters, then five random ones follow."""
    return f"{name}-{hashed}-"[:58] + RANDOM


def pattern(name: str) -> str:
    (found,) = set(re.findall(r'pod=~"([^"]*)"', "\n".join(signal_queries("team", name).values())))
    return str(found)


@pytest.mark.parametrize("length", range(1, NAME_LIMIT + 1))
@pytest.mark.parametrize("digits", [1, 6, 7, 9, 10])
def test_pods_of_a_name_of_any_length_are_found(length: int, digits: int) -> None:
    name = "n" * length
    assert re.fullmatch(pattern(name), generated(name, HASH[:digits]))


NEIGHBOURS = [
    (name, name + more)
    for name in ("a", "chat", *("n" * length for length in range(40, NAME_LIMIT)))
    for more in ("-b", "-5", "-x2k9z", "-7d9f6b5-x", "-7d9f6b54c8", "b", "bb", ".b")
    if len(name + more) <= NAME_LIMIT
]


@pytest.mark.parametrize(("name", "other"), NEIGHBOURS)
def test_pods_of_another_deployment_are_not(name: str, other: str) -> None:
    for digits in range(1, 11):
        assert not re.fullmatch(pattern(name), generated(other, HASH[:digits]))
        assert not re.fullmatch(pattern(other), generated(name, HASH[:digits]))


def test_a_dot_in_a_name_is_a_dot() -> None:
    assert re.fullmatch(pattern("a.b"), generated("a.b"))
    assert not re.fullmatch(pattern("a.b"), generated("axb"))


def test_every_query_is_about_one_namespace() -> None:
    asked = signal_queries("team", "chat") | keda_queries(
        "team", "chat", Targets.model_validate({"ttftSeconds": 1, "preemptionsPerSecond": 1})
    )
    for query in asked.values():
        assert query.count('namespace="team"') == query.count("pod=~") > 0


def test_signals_are_asked_for_whatever_the_targets() -> None:
    assert set(signal_queries("team", "chat")) == {*GAUGES, SCRAPED, PREEMPTIONS, TTFT}


def test_keda_is_given_a_query_for_each_target_by_its_name_in_the_spec() -> None:
    always = {"kvCacheUsage", "waitingRequests", "runningRatio"}
    assert set(keda_queries("team", "chat", Targets())) == always
    everything = Targets.model_validate({"ttftSeconds": 1, "preemptionsPerSecond": 1})
    assert set(keda_queries("team", "chat", everything)) == set(everything.model_dump(by_alias=True))
    assert set(everything.model_dump(by_alias=True)) > COMPARED
