"""What a client can ask of sampling, through openai's own client where it has a word for it: n, penalties, biases, seeds."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.server.api.running import NAME, Running
from tests.server.api.test_chat import MESSAGES, events

ENDLESS: Any = {"ignore_eos": True}


def chat(server: Running, **body: Any) -> Any:
    """Through openai's client; what it has no word for goes into `extra_body`."""
    extra = ENDLESS | body.pop("extra_body", {})
    return server.openai.chat.completions.create(model=NAME, messages=MESSAGES, extra_body=extra, **body)


def complete(server: Running, **body: Any) -> Any:
    with server.client() as client:
        response = client.post("/v1/completions", json={"max_tokens": 12} | ENDLESS | body)
    assert response.status_code == 200, response.text
    return response.json()


def texts(answer: Any) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def contents(answer: Any) -> list[str]:
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.message.content for choice in answer.choices]


def test_n_choices_differ_and_come_again_with_the_seed(idle_server: Running) -> None:
    answer = chat(idle_server, n=4, seed=7, max_tokens=20)
    said = contents(answer)
    assert len(set(said)) == 4
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 4
    assert contents(chat(idle_server, n=4, seed=7, max_tokens=20)) == said
    assert contents(chat(idle_server, n=1, seed=7, max_tokens=20)) == said[:1]
    assert contents(chat(idle_server, n=4, seed=8, max_tokens=20)) != said


def test_usage_has_the_prompt_once_and_every_choices_tokens(idle_server: Running) -> None:
    prompt = "usage of several choices, longer than two blocks of the cache are, so that they share some " * 2
    one, four = (complete(idle_server, prompt=f"{n} {prompt}", n=n, max_tokens=5)["usage"] for n in (1, 4))
    assert four["prompt_tokens"] == one["prompt_tokens"] == len(prompt) + 2
    assert (one["completion_tokens"], four["completion_tokens"]) == (5, 20)
    assert four["total_tokens"] == four["prompt_tokens"] + 20
    # What the choices have of each other is no cache hit of the request.
    assert one["prompt_tokens_details"] == four["prompt_tokens_details"] == {"cached_tokens": 0}
    again = complete(idle_server, prompt=f"4 {prompt}", n=4, max_tokens=5)["usage"]
    assert 0 < again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_n_choices_streamed(idle_server: Running) -> None:
    whole = contents(chat(idle_server, n=3, seed=2, max_tokens=15))
    stream = chat(idle_server, n=3, seed=2, max_tokens=15, stream=True, stream_options={"include_usage": True})
    *chunks, usage = list(stream)
    said, roles, ends = ["", "", ""], Counter[int](), Counter[int]()
    for chunk in chunks:
        (choice,) = chunk.choices
        assert not ends[choice.index], "a choice went on after its end"
        assert roles[choice.index] or choice.delta.role, "text before the role"
        roles[choice.index] += choice.delta.role is not None
        said[choice.index] += choice.delta.content or ""
        ends[choice.index] += choice.finish_reason is not None
    assert said == whole
    assert roles == ends == {0: 1, 1: 1, 2: 1}
    assert usage.usage.completion_tokens == 45


def test_several_prompts_have_n_neighbours_each(idle_server: Running) -> None:
    body = {"seed": 3, "n": 2}
    alone = [text for prompt in ("one", "two", "three") for text in texts(complete(idle_server, prompt=prompt, **body))]
    assert len(set(alone)) == 6
    assert texts(complete(idle_server, prompt=["one", "two", "three"], **body)) == alone


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_its_own_choice_only(idle_server: Running, stream: bool) -> None:
    body: dict[str, Any] = {"prompt": "stop one", "n": 4, "seed": 5, "max_tokens": 80}
    free = texts(complete(idle_server, **body))
    stop = next(
        free[2][at : at + 3] for at in range(10, 70) if not any(free[2][at : at + 3] in free[i] for i in (0, 1, 3))
    )
    expected = [text if place != 2 else text[: text.index(stop)] for place, text in enumerate(free)]
    if stream:
        with idle_server.client() as client:
            made = events(client.post("/v1/completions", json=body | ENDLESS | {"stop": stop, "stream": True}))
        said, ends = [""] * 4, [""] * 4
        for chunk in made:
            (choice,) = chunk["choices"]
            said[choice["index"]] += choice["text"]
            ends[choice["index"]] += choice["finish_reason"] or ""
    else:
        answer = complete(idle_server, **body, stop=stop)
        said, ends = texts(answer), [choice["finish_reason"] for choice in answer["choices"]]
        assert 240 < answer["usage"]["completion_tokens"] < 320
    assert said == expected
    assert ends == ["length", "length", "stop", "length"]


def test_what_a_stop_string_ended_is_computed_no_further(idle_server: Running) -> None:
    body: dict[str, Any] = {"prompt": "further", "n": 3, "seed": 5, "max_tokens": 120}
    free = texts(complete(idle_server, **body))
    stop = next(free[1][at : at + 4] for at in range(5, 60) if free[1][at : at + 4] not in free[0] + "|" + free[2])
    before = idle_server.stats.generation_tokens
    device = idle_server.unhurried()  # or it may be far beyond the stop string before anybody has read that
    complete(idle_server, **body, stop=stop)
    device.hurry.set()
    assert 2 * 120 < idle_server.stats.generation_tokens - before < 3 * 120 - 20


def test_stop_strings_may_end_all_of_them(idle_server: Running) -> None:
    answer = complete(idle_server, prompt="all", n=3, seed=1, max_tokens=4000, logit_bias={"65": 100}, stop="AAAA")
    assert texts(answer) == [""] * 3
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    idle_server.wait_idle()


def test_best_of_n_is_all_of_them(idle_server: Running) -> None:
    assert len(complete(idle_server, prompt="a", n=2, best_of=2)["choices"]) == 2
    assert len(complete(idle_server, prompt="a", best_of=1)["choices"]) == 1


@pytest.mark.parametrize("penalty", [0.8, 1.3])
def test_repetition_penalty_gives_transformers_tokens(idle_server: Running, tiny: Path, penalty: float) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    prompt = list(b"once upon a time")
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=30,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :]
    answer = complete(idle_server, prompt=prompt, temperature=0, max_tokens=30, repetition_penalty=penalty)
    assert texts(answer) == [idle_server.model.tokenizer.decode(expected.tolist())]
    assert texts(answer) != texts(complete(idle_server, prompt=prompt, temperature=0, max_tokens=30))


def test_frequency_and_presence_look_at_the_answer(idle_server: Running) -> None:
    """A bias makes one letter certain; each one said makes it less likely by the penalty, until another is."""
    body = {"prompt": "AAAAAAAA", "temperature": 0, "max_tokens": 40, "logit_bias": {"65": 100, "66": 97}}
    assert texts(complete(idle_server, **body)) == ["A" * 40]
    (frequency,) = texts(complete(idle_server, **body, frequency_penalty=2))
    assert frequency[0] == "A"
    assert set(frequency) == {"A", "B"}  # they take turns
    assert abs(frequency.count("A") - frequency.count("B")) < 20
    (presence,) = texts(complete(idle_server, **body, presence_penalty=2))
    assert presence[:2] == "AB"  # said once, it costs once
    assert set(presence) == {"A", "B"}
    rewarded = complete(idle_server, **body, frequency_penalty=-2)
    assert texts(rewarded) == ["A" * 40]


def test_a_bias_bans_or_forces_a_token(idle_server: Running) -> None:
    answer = chat(idle_server, logit_bias={"90": 100}, max_tokens=5)
    assert contents(answer) == ["ZZZZZ"]
    free = contents(chat(idle_server, temperature=0, max_tokens=30))[0]
    banned = {str(byte): -100 for byte in free.encode()[:1]}
    assert free[0] not in contents(chat(idle_server, temperature=0, max_tokens=30, logit_bias=banned))[0]


def test_min_p_of_one_is_greedy(idle_server: Running) -> None:
    greedy = texts(complete(idle_server, prompt="x", temperature=0))
    assert texts(complete(idle_server, prompt="x", temperature=2, seed=1, min_p=1)) == greedy
    assert texts(complete(idle_server, prompt="x", temperature=2, seed=1)) != greedy


def test_a_stop_token_ends_it_and_is_not_shown(idle_server: Running) -> None:
    free = complete(idle_server, prompt="stop token", temperature=0, max_tokens=60, logprobs=0)["choices"][0]
    text = free["text"]
    byte = next(ord(c) for c in text[10:] if c.isascii())
    answer = complete(idle_server, prompt="stop token", temperature=0, max_tokens=60, stop_token_ids=[byte])
    choice = answer["choices"][0]
    assert choice["text"] == text[: text.index(chr(byte))]
    assert choice["finish_reason"] == "stop"


def test_before_the_minimum_neither_stop_tokens_nor_stop_strings_end_it(idle_server: Running) -> None:
    body = {"prompt": "min", "logit_bias": {"65": 100}, "max_tokens": 30, "stop": ["AAA", "B"]}
    assert texts(complete(idle_server, **body)) == [""]
    (text,) = texts(complete(idle_server, **body, min_tokens=10))
    assert text == "A" * 8  # the eleventh token completes a stop string
    end = complete(idle_server, **body | {"stop": None}, stop_token_ids=[65], min_tokens=10)
    assert end["usage"]["completion_tokens"] == 11
    assert end["choices"][0]["finish_reason"] == "stop"
    assert "A" not in texts(end)[0]


def test_no_eos_before_the_minimum(idle_server: Running) -> None:
    """The bias makes the EOS certain."""
    body = {"prompt": "x", "logit_bias": {"258": 100}, "ignore_eos": False, "max_tokens": 50}
    assert complete(idle_server, **body)["usage"]["completion_tokens"] == 1
    assert complete(idle_server, **body, min_tokens=20)["usage"]["completion_tokens"] == 21


def test_a_seeds_answer_does_not_depend_on_the_company(idle_server: Running) -> None:
    """Some have no seed, some have penalties: each alone, then all at once."""
    bodies: list[dict[str, Any]] = [
        {"prompt": f"prompt {i}", "seed": i % 3, "n": 1 + i % 2, "max_tokens": 20, "logprobs": 2, "top_p": 0.9}
        | ({"frequency_penalty": 0.5} if i % 3 == 0 else {})
        | ({"logit_bias": {"70": 3}} if i % 4 == 0 else {})
        for i in range(12)
    ]
    alone = [complete(idle_server, **body)["choices"] for body in bodies]
    unseeded = [{"prompt": "noise", "max_tokens": 30, "repetition_penalty": 1.2}] * 4
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: complete(idle_server, **body)["choices"], [*bodies, *unseeded]))
    assert together[:12] == alone


def test_a_salt_keeps_requests_apart(idle_server: Running) -> None:
    def cached(salt: str | None) -> int:
        body = {"prompt": "a prompt of more than a block, which is thirty-two tokens here", "cache_salt": salt}
        return int(complete(idle_server, **body)["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert (cached("one"), cached("two"), cached(None)) == (0, 0, 0)
    assert min(cached("one"), cached("two"), cached(None)) > 0


def test_openais_client_is_told_what_is_wrong(idle_server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        chat(idle_server, logit_bias={"264": 1})
    assert error.value.param == "logit_bias"
    assert "0 to 263" in error.value.message


def test_priorities_deadlines_and_users_are_taken(idle_server: Running) -> None:
    body = {"priority": -3, "deadline_ms": 250.5, "user": "me", "prompt": "a"}
    assert len(texts(complete(idle_server, **body))) == 1


def test_a_client_that_leaves_frees_all_its_sequences(idle_server: Running) -> None:
    body = {"prompt": "abc", "n": 5, "max_tokens": 4000, "stream": True} | ENDLESS
    with idle_server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert next(response.iter_lines()).startswith("data: ")
    idle_server.wait_idle()


def test_more_choices_than_a_step_holds(idle_server: Running) -> None:
    answer = complete(idle_server, prompt=["a", "b"], n=20, seed=1, max_tokens=3)
    assert len(answer["choices"]) == 40
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"]["completion_tokens"] == 120
