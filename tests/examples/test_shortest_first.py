"""examples/shortest_first.py as its docstring says to use it: found by its path, and fair enough to be let loose."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemill_server import cli
from tests.server.engine.policies.driving import Driven

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "shortest_first:ShortestFirst"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXAMPLES)
    yield
    sys.modules.pop("shortest_first", None)


def test_the_flag_finds_it() -> None:
    assert cli.parse(["org/name", "--scheduling-policy", NAME]).scheduler.policy == NAME


def test_the_cheapest_goes_first_and_prompts_count_too() -> None:
    driven = Driven(policy=NAME, num_blocks=256, max_num_seqs=1)
    driven.add("first", max_tokens=2)
    driven.step()
    driven.add("long answer", prompt=4, max_tokens=60)
    driven.add("long prompt", prompt=400, max_tokens=2)
    driven.add("short", prompt=4, max_tokens=2)
    driven.run()
    assert driven.order()[:2] == ["first", "short"]


def test_a_long_one_does_not_wait_for_ever() -> None:
    driven = Driven(policy=NAME, max_num_seqs=1)
    driven.add("short0", max_tokens=2)
    driven.step()
    driven.add("long", max_tokens=40)
    number = 1
    while "long" not in driven.first_token:
        if len(driven.engine.scheduler.roster.waiting) < 3:
            driven.add(f"short{number}", max_tokens=2)
            number += 1
        driven.step()
        assert driven.now < 5000
    assert number > 3, "short ones did go first"
    driven.run()


def test_the_docs_show_it_as_it_is() -> None:
    docs = (EXAMPLES.parent / "docs" / "scheduling.md").read_text()
    shown = docs.partition("```python\n")[2].partition("```")[0]
    assert shown
    assert (EXAMPLES / "shortest_first.py").read_text().endswith(shown)
