"""reasoning_effort and chat_template_kwargs, as far as a template heeds them."""

from __future__ import annotations

from typing import Any

import pytest

from pagemill_server.api.effort import template_kwargs
from pagemill_server.errors import BadRequest


def kwargs(variables: str, thinks: bool, given: Any = None, effort: str | None = None) -> dict[str, Any]:
    return template_kwargs(variables.split(), thinks=thinks, given=given, effort=effort)


@pytest.mark.parametrize(
    ("variables", "thinks", "effort", "made"),
    [
        ("messages reasoning_effort enable_thinking", True, "low", {"reasoning_effort": "low"}),
        ("messages enable_thinking", True, "none", {"enable_thinking": False}),
        ("messages enable_thinking", True, "minimal", {"enable_thinking": True}),
        ("messages thinking", True, "high", {"thinking": True}),
        ("messages", True, "medium", {}),
        ("messages", False, "none", {}),
        ("messages", False, None, {}),
    ],
)
def test_effort(variables: str, thinks: bool, effort: str | None, made: dict[str, Any]) -> None:
    assert kwargs(variables, thinks, effort=effort) == made


@pytest.mark.parametrize(("thinks", "effort"), [(True, "none"), (True, "high"), (False, "medium"), (False, "low")])
def test_effort_that_nothing_heeds(thinks: bool, effort: str) -> None:
    with pytest.raises(BadRequest) as error:
        kwargs("messages", thinks, effort=effort)
    assert error.value.param == "reasoning_effort"


def test_what_is_said_outright_goes_before() -> None:
    assert kwargs("enable_thinking", True, {"enable_thinking": True}, "none") == {"enable_thinking": True}


def test_a_variable_that_the_template_reads_is_handed_on() -> None:
    assert kwargs("enable_thinking city", True, {"city": {"a": [1]}}) == {"city": {"a": [1]}}


def test_no_thoughts_asked_of_a_model_without_any() -> None:
    assert kwargs("messages", False, {"enable_thinking": False}) == {}


@pytest.mark.parametrize(("thinks", "given"), [(False, {"enable_thinking": True}), (True, {"enable_thinking": False})])
def test_a_variable_that_nothing_reads(thinks: bool, given: Any) -> None:
    with pytest.raises(BadRequest) as error:
        kwargs("messages", thinks, given)
    assert error.value.param == "chat_template_kwargs.enable_thinking"
