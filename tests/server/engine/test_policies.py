import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import policies
from pagemill_server.engine.sequence import Sequence, draw_seed
from tests.server.engine.scripted import make_request


def test_fcfs_orders_by_arrival_and_takes_from_the_last_admitted() -> None:
    policy = policies.load(SchedulerConfig())
    early = Sequence(1, make_request(1, arrival=1.0), seed=0)
    late = Sequence(0, make_request(1, arrival=2.0), seed=0)
    assert policy.key(early) < policy.key(late)
    assert policy.victim([late, early], None) is early
    assert policy.admit(late, needed_blocks=9, free_blocks=0)


@pytest.mark.parametrize("name", ["priority", "fair", "deadline", "my_package.my_module:MyPolicy"])
def test_policies_to_come_are_named_as_such(name: str) -> None:
    with pytest.raises(PagemillError, match="not available yet") as error:
        policies.load(SchedulerConfig(policy=name))
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert name in error.value.failure.message


@pytest.mark.parametrize("name", ["", "FCFS", "lifo"])
def test_unknown_policies_are_refused(name: str) -> None:
    with pytest.raises(PagemillError, match="There is no scheduling policy") as error:
        policies.load(SchedulerConfig(policy=name))
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_drawn_seeds_depend_on_the_engine_and_on_the_request() -> None:
    seeds = [draw_seed(engine, counter) for engine in (0, 1) for counter in range(100)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert draw_seed(0, 5) == seeds[5]
