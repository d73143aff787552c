"""Finding a policy by its name or its path, and the one line that says why one can't be had."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.config import SchedulerConfig
from pagemill_server.engine import policies
from pagemill_server.engine.policies.guarded import Guarded
from pagemill_server.engine.sequence import Sequence, draw_seed
from tests.server.engine.scripted import make_request

MINE = """
from pagemill_server.engine.policies import Policy

class Shortest(Policy):
    def key(self, sequence):
        return (sequence.num_tokens,)

class Broken(Policy):
    def __init__(self, config):
        raise ValueError("no such share: 7")

class Lines(Policy):
    def __init__(self, config):
        raise ValueError("one line\\nand another")

class Leaving(Policy):
    def __init__(self, config):
        raise SystemExit(3)

class Timeless(Policy):
    clock = property(lambda self: None)

class Other(Policy):
    def __new__(cls, config):
        return 5

class Careless(Policy):
    def __init__(self, config):
        pass

class Stranger:
    pass

instance = Shortest
number = 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mine_of_test.py").write_text(MINE)
    (tmp_path / "broken_of_test.py").write_text("import no_module_of_this_name")
    (tmp_path / "wrong_of_test.py").write_text("1 / 0")
    (tmp_path / "leaving_of_test.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("mine_of_test", "broken_of_test", "wrong_of_test", "leaving_of_test"):
        sys.modules.pop(name, None)


def test_fcfs_orders_by_arrival_and_takes_from_the_last_admitted() -> None:
    policy = policies.load(SchedulerConfig())
    early = Sequence(1, make_request(1, arrival=1.0), seed=0)
    late = Sequence(0, make_request(1, arrival=2.0), seed=0)
    assert policy.key(early) < policy.key(late)
    assert policy.turn(early) == policy.key(early)
    assert policy.victim([late, early], None) is early
    assert policy.victim([late, early], early) is None
    assert policy.admit(late, needed_blocks=9, free_blocks=0)


@pytest.mark.parametrize("name", ["fcfs", "priority", "fair", "deadline"])
def test_ours_go_by_their_names_and_have_the_engines_clock(name: str) -> None:
    policy = policies.load(SchedulerConfig(policy=name), clock=lambda: 7.0)
    inner = policy.inner if isinstance(policy, Guarded) else policy
    assert inner.clock() == 7.0


@pytest.mark.usefixtures("mine")
def test_a_class_of_the_users_own() -> None:
    policy = policies.load(SchedulerConfig(policy="mine_of_test:Shortest"))
    assert policy.key(Sequence(0, make_request(5), seed=0)) == (5.0,)


@pytest.mark.usefixtures("mine")
def test_one_that_forgets_to_make_its_base_has_the_settings_all_the_same() -> None:
    config = SchedulerConfig(policy="mine_of_test:Careless")
    policy = policies.load(config)
    assert policy.config is config
    assert isinstance(policy, Guarded)
    assert policy.inner.config is config


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "it is fcfs, priority, fair, deadline, or a class of your own"),
        ("FCFS", 'There is no scheduling policy "FCFS"'),
        ("lifo", 'There is no scheduling policy "lifo"'),
        ("mine_of_test", "There is no scheduling policy"),
        (":Shortest", "There is no scheduling policy"),
        ("mine_of_test:", "There is no scheduling policy"),
        (".mine_of_test:Shortest", "There is no scheduling policy"),
        ("mine_of_test:Shortest()", "There is no scheduling policy"),
        ("no_such_of_test:Shortest", "there is no module no_such_of_test; PYTHONPATH must name the folder"),
        ("no_such_of_test.deep:Shortest", "there is no module no_such_of_test;"),
        ("mine_of_test.deep:Shortest", "there is no module mine_of_test.deep;"),
        ("mine_of_test:Longest", "mine_of_test has no Longest"),
        ("mine_of_test:Stranger", "must be a class derived from pagemill_server.engine.policies.interface:Policy"),
        ("mine_of_test:number", "must be a class derived from"),
        ("mine_of_test:Broken", "could not be made: ValueError: no such share: 7"),
        ("mine_of_test:Lines", "could not be made: ValueError: one line and another"),
        ("mine_of_test:Leaving", "could not be made: SystemExit: 3"),
        ("mine_of_test:Timeless", "could not be made: AttributeError"),
        ("mine_of_test:Other", "could not be made: AttributeError"),
        ("leaving_of_test:Any", "could not be imported: SystemExit: 3"),
        ("broken_of_test:Any", "could not be imported: ModuleNotFoundError: No module named 'no_module_of_this_name'"),
        ("wrong_of_test:Any", "could not be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_what_cannot_be_had_is_one_line(name: str, message: str) -> None:
    with pytest.raises(PagemillError) as error:
        policies.load(SchedulerConfig(policy=name))
    assert error.value.failure.reason is FailureReason.INVALID_CONFIGURATION
    assert message in error.value.failure.message
    assert "\n" not in error.value.failure.message


def test_drawn_seeds_depend_on_the_engine_and_on_the_request() -> None:
    seeds = [draw_seed(engine, counter) for engine in (0, 1) for counter in range(100)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert draw_seed(0, 5) == seeds[5]
