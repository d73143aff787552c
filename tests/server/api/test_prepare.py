"""From a body to the engine's messages: what the scheduler is told of a request, and how its sampling is filled in."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

import pytest

from pagemill_server.api.auth import CLIENT
from pagemill_server.api.chat import ChatCompletions
from pagemill_server.api.completions import Completions
from pagemill_server.api.endpoint import _client
from pagemill_server.api.generation import Generation
from pagemill_server.api.prepare import Job, Origin
from pagemill_server.api.responses.endpoint import Responses
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.errors import BadRequest
from tests.server.api.running import NAME, Running
from tests.server.tiny import IM_END

ORIGIN = Origin(arrival=100.0, client="")


def job_of(server: Running, body: dict[str, Any], origin: Origin = ORIGIN) -> Job:
    loaded = server.service.loaded
    assert loaded is not None
    kind = ChatCompletions if "messages" in body else Responses if "input" in body else Completions
    endpoint: Generation = kind(server.service)
    return endpoint.prepare(loaded, body, origin)


def request_of(server: Running, body: dict[str, Any], origin: Origin = ORIGIN) -> AddRequest:
    (request,) = job_of(server, {"prompt": "abc"} | body, origin).requests
    return request


def test_an_ordinary_request_is_the_defaults(server: Running) -> None:
    request = request_of(server, {})
    assert request == AddRequest(
        request.request_id, tuple(b"abc"), SamplingParams(max_tokens=16, stop_token_ids=(IM_END,)), arrival=100.0
    )


FIELDS: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "frequency_penalty": 1,
    "presence_penalty": -1,
    "repetition_penalty": 1.5,
    "logit_bias": {"7": 2, "3": -4.5},
    "seed": -9,
    "min_tokens": 4,
    "stop": "end",
    "stop_token_ids": [9, IM_END],
}
ARRIVED = SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=40,
    min_p=0.1,
    frequency_penalty=1.0,
    presence_penalty=-1.0,
    repetition_penalty=1.5,
    logit_bias=((3, -4.5), (7, 2.0)),
    seed=-9,
    n=3,
    max_tokens=20,
    min_tokens=4,
    stop=("end",),
    stop_token_ids=(9, IM_END),
    logprobs=2,
    prompt_logprobs=5,
)
CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "hi"}]}
RESPONSE: dict[str, Any] = {"model": NAME, "input": "hi", "include": ["message.output_text.logprobs"]}
NOT_OF_A_RESPONSE: dict[str, Any] = {"n": 1, "prompt_logprobs": None}


@pytest.mark.parametrize(
    ("body", "arrived"),
    [
        ({"prompt": "abc", "n": 3, "max_tokens": 20, "logprobs": 2, "prompt_logprobs": 5}, ARRIVED),
        (
            CHAT | {"n": 3, "max_tokens": 20, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 5},
            ARRIVED,
        ),
        (RESPONSE | {"max_output_tokens": 20, "top_logprobs": 2}, replace(ARRIVED, **NOT_OF_A_RESPONSE)),
    ],
    ids=["completions", "chat", "responses"],
)
def test_every_field_arrives(server: Running, body: dict[str, Any], arrived: SamplingParams) -> None:
    """None of the values is the default's, so that one that is left out is missed."""
    (request,) = job_of(server, FIELDS | body).requests
    assert request.sampling == arrived


def test_of_what_is_tested_nothing_is_the_default() -> None:
    default = SamplingParams()
    read_elsewhere = {"ignore_eos", "structured_outputs", "grammar"}
    same = {f.name for f in fields(SamplingParams) if getattr(ARRIVED, f.name) == getattr(default, f.name)}
    assert same == read_elsewhere


def test_null_is_the_default(server: Running) -> None:
    fields = ("temperature", "n", "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "repetition_penalty")
    assert request_of(server, dict.fromkeys(fields)).sampling == request_of(server, {}).sampling


def test_what_ignores_eos_ends_by_the_clients_ids_alone(server: Running) -> None:
    assert request_of(server, {"ignore_eos": True, "stop_token_ids": [5]}).sampling.stop_token_ids == (5,)


def test_a_chat_answer_may_fill_the_context(server: Running) -> None:
    (request,) = job_of(server, {"model": "tiny/llama", "messages": [{"role": "user", "content": "a"}]}).requests
    assert request.sampling.max_tokens == 4096 - len(request.prompt_token_ids)


def test_echo_asks_for_the_prompts_log_probabilities(server: Running) -> None:
    assert request_of(server, {"echo": True}).sampling.prompt_logprobs is None
    assert request_of(server, {"echo": True, "logprobs": 3}).sampling.prompt_logprobs == 3
    assert request_of(server, {"echo": True, "logprobs": 1, "prompt_logprobs": 4}).sampling.prompt_logprobs == 4
    assert request_of(server, {"logprobs": 3}).sampling.prompt_logprobs is None


def test_what_the_scheduler_is_told(server: Running) -> None:
    request = request_of(server, {"priority": -2, "deadline_ms": 250, "cache_salt": "pepper", "user": "me"})
    assert (request.priority, request.deadline, request.cache_salt) == (-2, 100.25, "pepper")


def test_several_prompts_are_told_apart(server: Running) -> None:
    requests = job_of(server, {"prompt": ["a", "b"], "n": 2}).requests
    assert [request.sampling.n for request in requests] == [2, 2]
    assert len({request.request_id for request in requests}) == 2


@pytest.mark.parametrize(
    ("origin", "user", "client"),
    [
        ("", None, ""),
        ("", "me", "me"),
        ("key1", None, "key1"),
        ("key1", "", "key1"),
        ("key1", "me", "key1/me"),
        ("", "u" * 64, "u" * 64),
        ("key2", "u" * 65, "key2/" + hashlib.sha256(b"u" * 65).hexdigest()),
    ],
)
def test_a_user_is_below_the_client_that_names_it(server: Running, origin: str, user: str | None, client: str) -> None:
    assert request_of(server, {"user": user}, Origin(0.0, origin)).client == client


@pytest.mark.parametrize(
    ("scope", "client"),
    [
        ({"headers": []}, ""),
        ({"headers": [(b"x-client-id", b" team-a ")]}, "team-a"),
        ({"headers": [(b"x-client-id", b"x" * 1000)]}, "x" * 64),
        ({"headers": [(b"x-client-id", b"team-a")], CLIENT: "key1"}, "key1"),
    ],
)
def test_the_key_says_who_asks_before_a_header_does(scope: dict[str, Any], client: str) -> None:
    assert _client(scope) == client


@pytest.mark.parametrize(
    ("body", "numbers"),
    [({"min_tokens": 20}, ("20", "16")), ({"min_tokens": 5000, "max_tokens": 4000}, ("5000", "4000"))],
)
def test_a_minimum_beyond_what_may_come_names_both(server: Running, body: dict[str, Any], numbers: Any) -> None:
    with pytest.raises(BadRequest) as error:
        request_of(server, body)
    assert error.value.param == "min_tokens"
    assert all(number in error.value.message for number in numbers)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt_logprobs": 20, "n": 128}, "prompt_logprobs"),
        ({"echo": True, "logprobs": 20, "n": 128}, "echo"),
        ({"echo": True, "n": 128}, None),
        ({"prompt_logprobs": 20, "n": 3}, None),
    ],
)
def test_a_small_body_does_not_ask_for_gigabytes(server: Running, body: dict[str, Any], param: str | None) -> None:
    """Three prompts of 2,000 tokens, all said again before each choice, with twenty alternatives a token."""
    body |= {"prompt": [[65] * 2000] * 3}
    if param is None:
        job_of(server, body)
        return
    with pytest.raises(BadRequest) as error:
        job_of(server, body)
    assert error.value.param == param
    assert "4000000" in error.value.message


def test_a_chat_field_is_named_as_it_was_spelled(server: Running) -> None:
    hi = {"model": "tiny/llama", "messages": [{"role": "user", "content": "a"}]}
    for body, param in (
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
    ):
        with pytest.raises(BadRequest) as error:
            job_of(server, hi | body)
        assert error.value.param == param
        assert error.value.message.startswith(f"{param} ")
