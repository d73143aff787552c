"""/v1/completions: prompts in every form, its chunks, its log-probabilities."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.api.running import NAME, Running
from tests.server.api.test_chat import events


def ask(server: Running, **body: Any) -> httpx.Response:
    with server.client() as client:
        return client.post("/v1/completions", json={"temperature": 0, "max_tokens": 12, "ignore_eos": True} | body)


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] for choice in choices]


def test_openais_client(idle_server: Running) -> None:
    answer = idle_server.openai.completions.create(model=NAME, prompt="once", max_tokens=5, temperature=0)
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "length")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 5)


def test_text_and_its_ids_are_the_same_prompt(idle_server: Running) -> None:
    ids = list(b"once")
    assert texts(ask(idle_server, prompt="once")) == texts(ask(idle_server, prompt=ids))
    assert texts(ask(idle_server, prompt=["once"])) == texts(ask(idle_server, prompt=[ids]))


def test_several_prompts_are_answered_each_at_its_place(idle_server: Running) -> None:
    prompts = ["one", "two", "three", "four"]
    alone = [texts(ask(idle_server, prompt=prompt))[0] for prompt in prompts]
    assert len(set(alone)) == 4
    together = ask(idle_server, prompt=prompts)
    assert texts(together) == alone
    assert together.json()["usage"]["completion_tokens"] == 48
    mixed = ask(idle_server, prompt=["one", list(b"two")])
    assert texts(mixed) == alone[:2]


def test_several_prompts_streamed(idle_server: Running) -> None:
    prompts = ["one", "two", "three"]
    chunks = events(ask(idle_server, prompt=prompts, stream=True, stream_options={"include_usage": True}))
    *chunks, usage = chunks
    said = ["", "", ""]
    ends: list[Any] = [None] * 3
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert ends[choice["index"]] is None
        said[choice["index"]] += choice["text"]
        ends[choice["index"]] = choice["finish_reason"]
    assert said == texts(ask(idle_server, prompt=prompts))
    assert ends == ["length"] * 3
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 36


def test_sixteen_tokens_unless_told(idle_server: Running) -> None:
    with idle_server.client() as client:
        body = {"prompt": "a", "ignore_eos": True}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(idle_server: Running, stream: bool) -> None:
    response = ask(idle_server, prompt="once", logprobs=3, seed=2, temperature=1, max_tokens=30, stream=stream)
    choices = [chunk["choices"][0] for chunk in events(response)] if stream else response.json()["choices"]
    text = "".join(choice["text"] for choice in choices)
    blocks = [choice["logprobs"] for choice in choices]
    names = [name for block in blocks for name in block["tokens"]]
    offsets = [offset for block in blocks for offset in block["text_offset"]]
    assert len(names) == len(offsets) == 30
    for block in blocks:
        for name, value, top in zip(block["tokens"], block["token_logprobs"], block["top_logprobs"], strict=True):
            assert top[name] == value
            assert len(top) in (3, 4)
    assert offsets == sorted(offsets)
    for name, offset in zip(names, offsets, strict=True):
        if not name.startswith("bytes:"):
            assert text[offset : offset + len(name)] == name


def stop_case(server: Running) -> tuple[str, str]:
    """A greedy text and a piece from its middle."""
    text = texts(ask(server, prompt="stop here", max_tokens=60))[0]
    return text, text[20:24]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_stop_strings_are_cut_and_never_shown(idle_server: Running, stream: bool, as_list: bool) -> None:
    text, stop = stop_case(idle_server)
    body = {"prompt": "stop here", "max_tokens": 60, "stream": stream, "stop": [stop, "never"] if as_list else stop}
    response = ask(idle_server, **body)
    choices = [chunk["choices"][0] for chunk in events(response)] if stream else response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == text[: text.index(stop)]
    assert choices[-1]["finish_reason"] == "stop"
    idle_server.wait_idle()  # what the engine still computed for it was aborted


def test_logprobs_end_with_the_text_that_a_stop_cut(idle_server: Running) -> None:
    _, stop = stop_case(idle_server)
    choice = ask(idle_server, prompt="stop here", max_tokens=60, stop=stop, logprobs=0).json()["choices"][0]
    assert choice["logprobs"]["text_offset"][-1] < len(choice["text"])


def test_eos_ends_an_answer_unless_ignored(idle_server: Running) -> None:
    """Some seed samples the EOS within the length; the same seed goes on when told to ignore it."""
    for seed in range(40):
        body = {"prompt": "x", "seed": seed, "temperature": 2, "max_tokens": 100}
        ended = ask(idle_server, **body, ignore_eos=False).json()
        if ended["choices"][0]["finish_reason"] == "stop":
            ignored = ask(idle_server, **body).json()
            assert ended["usage"]["completion_tokens"] < 100
            assert ignored["usage"]["completion_tokens"] == 100
            assert ignored["choices"][0]["text"].startswith(ended["choices"][0]["text"].rstrip("�"))
            return
    pytest.fail("no seed sampled the EOS")
