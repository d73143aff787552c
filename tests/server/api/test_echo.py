"""The prompt said again, and the log-probabilities of its tokens: what evaluations read, held against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from pagemill_server.api.echo import echo_of
from pagemill_server.engine.request import SampledToken
from pagemill_server.text.detokenizer import TokenBytes
from tests.server.api.running import Running
from tests.server.api.test_chat import MESSAGES, events
from tests.server.tiny import END_OF_TEXT, IM_END

PROMPT = "The cost is 5 € today."


def complete(server: Running, **body: Any) -> Any:
    with server.client() as client:
        response = client.post("/v1/completions", json={"temperature": 0, "max_tokens": 4, "ignore_eos": True} | body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture(scope="module")
def judge(tiny: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)


def expected(judge: Any, ids: list[int]) -> torch.Tensor:
    """[len(ids) - 1, vocab_size]: of each token from the second on."""
    with torch.inference_mode():
        return torch.Tensor(judge(torch.tensor([ids])).logits[0, :-1].log_softmax(-1))


@pytest.mark.parametrize("prompt", [PROMPT, list(PROMPT.encode())])
def test_the_prompt_stands_before_the_answer(idle_server: Running, prompt: Any) -> None:
    plain = complete(idle_server, prompt=prompt, cache_salt="plain")  # neither finds what the other left
    echoed = complete(idle_server, prompt=prompt, cache_salt="echoed", echo=True)
    assert echoed["choices"][0]["text"] == PROMPT + plain["choices"][0]["text"]
    assert echoed["usage"] == plain["usage"]
    assert echoed["choices"][0]["logprobs"] is None


def test_each_prompt_before_each_of_its_answers(idle_server: Running) -> None:
    body: dict[str, Any] = {"prompt": ["one", "two"], "n": 2, "temperature": 1, "seed": 1, "logprobs": 1}
    plain, echoed = complete(idle_server, **body)["choices"], complete(idle_server, **body, echo=True)["choices"]
    for index, (without, choice) in enumerate(zip(plain, echoed, strict=True)):
        assert choice["index"] == index
        assert choice["text"] == ("one", "two")[index // 2] + without["text"]
        assert choice["logprobs"]["tokens"][3:] == without["logprobs"]["tokens"]
        assert choice["logprobs"]["token_logprobs"][3:] == without["logprobs"]["token_logprobs"]
        assert choice["logprobs"]["text_offset"][3:] == [3 + offset for offset in without["logprobs"]["text_offset"]]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_prompt_and_answer(idle_server: Running, judge: Any, stream: bool) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 2, "stream": stream, "max_tokens": 6}
    if stream:
        with idle_server.client() as client:
            answered = client.post("/v1/completions", json=body | {"temperature": 0, "ignore_eos": True})
        choices = [chunk["choices"][0] for chunk in events(answered)]
    else:
        choices = complete(idle_server, **body)["choices"]
    text = "".join(choice["text"] for choice in choices)
    blocks = [choice["logprobs"] for choice in choices]
    listed = {key: [value for block in blocks for value in block[key]] for key in blocks[0]}
    prompt = list(PROMPT.encode())
    greedy = complete(idle_server, prompt=PROMPT, max_tokens=6, logprobs=0)["choices"][0]
    assert text == PROMPT + greedy["text"]
    assert len(listed["tokens"]) == len(prompt) + 6
    assert (listed["token_logprobs"][0], listed["top_logprobs"][0]) == (None, None)
    rows = expected(judge, prompt)
    own = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    assert listed["token_logprobs"][1 : len(prompt)] == pytest.approx(own, abs=1e-4)
    for place, row in enumerate(rows, start=1):
        top = listed["top_logprobs"][place]
        assert top[listed["tokens"][place]] == listed["token_logprobs"][place]
        assert sorted(top.values(), reverse=True)[:2] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)
    for name, offset in zip(listed["tokens"], listed["text_offset"], strict=True):
        if not name.startswith("bytes:"):
            assert text[offset : offset + len(name)] == name


def test_an_evaluations_request(idle_server: Running, judge: Any) -> None:
    """As lm-eval asks: one token more, and of the list what lies between the context's end and the last."""
    prompt, context = list(b"Question: why? Answer: because"), 15
    choice = complete(idle_server, prompt=prompt, max_tokens=1, logprobs=1, echo=True, seed=1234)["choices"][0]
    continuation = choice["logprobs"]["token_logprobs"][context:-1]
    rows = expected(judge, prompt)
    own = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
    assert continuation == pytest.approx(own[context - 1 :], abs=1e-4)
    tops = choice["logprobs"]["top_logprobs"][context:-1]
    greedy = [max(top.values()) == value for top, value in zip(tops, continuation, strict=True)]
    assert greedy == [int(row.argmax()) == t for row, t in zip(rows, prompt[1:], strict=True)][context - 1 :]


def test_an_answer_that_is_only_an_end_is_in_the_list(idle_server: Running) -> None:
    """Or who leaves out the list's last would leave out the prompt's."""
    body: dict[str, Any] = {"prompt": "abc", "max_tokens": 1, "logprobs": 1, "ignore_eos": False}
    bias = {"logit_bias": {str(IM_END): 100}}
    choice = complete(idle_server, **body, **bias, echo=True)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "stop")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "<|im_end|>"]
    assert complete(idle_server, **body, **bias)["choices"][0]["logprobs"]["tokens"] == []


@pytest.mark.parametrize("n", [1, 2])
def test_no_answer_at_all(idle_server: Running, n: int) -> None:
    body: dict[str, Any] = {"prompt": "abcd", "max_tokens": 0, "echo": True, "logprobs": 0, "n": n}
    answer = complete(idle_server, **body)
    one = complete(idle_server, **body | {"max_tokens": 1})["choices"][0]["logprobs"]
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 0,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert len(answer["choices"]) == n
    for choice in answer["choices"]:
        assert (choice["text"], choice["finish_reason"]) == ("abcd", "length")
        assert choice["logprobs"] == {key: values[:4] for key, values in one.items()}
    with idle_server.client() as client:
        chunks = events(client.post("/v1/completions", json=body | {"stream": True}))
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["abcd", ""] * n


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 200])
def test_around_a_blocks_end_and_in_chunks_with_a_warm_cache(idle_server: Running, judge: Any, length: int) -> None:
    """A step here takes 64 tokens, a block 16. What is in the cache already must not be left out, nor taken from it."""
    prompt = torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    complete(idle_server, prompt=prompt)
    for _ in range(2):
        choice = complete(idle_server, prompt=prompt, prompt_logprobs=0)["choices"][0]
        found = [next(iter(entry.values()))["logprob"] for entry in choice["prompt_logprobs"][1:]]
        rows = expected(judge, prompt)
        own = [float(row[token]) for row, token in zip(rows, prompt[1:], strict=True)]
        assert found == pytest.approx(own, abs=1e-4)


def test_prompt_logprobs_in_vllms_shape(idle_server: Running, judge: Any) -> None:
    answer = complete(idle_server, prompt=["abc", PROMPT], prompt_logprobs=2, n=2)
    assert len(answer["choices"]) == 4
    assert answer["choices"][2]["prompt_logprobs"] == answer["choices"][3]["prompt_logprobs"]
    listed = answer["choices"][3]["prompt_logprobs"]
    prompt = list(PROMPT.encode())
    assert listed[0] is None
    assert len(listed) == len(prompt)
    for entries, token, row in zip(listed[1:], prompt[1:], expected(judge, prompt), strict=True):
        first, second = row.topk(2).indices.tolist()
        assert set(entries) == {str(token), str(first), str(second)}
        assert entries[str(first)]["rank"] == 1
        assert entries[str(second)]["rank"] == 2
        assert entries[str(token)]["rank"] == int((row > row[token]).sum()) + 1
        assert entries[str(token)]["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in entries.values())
    assert listed[1][str(ord("h"))]["decoded_token"] == "h"


def test_prompt_logprobs_of_a_conversation(idle_server: Running) -> None:
    with idle_server.client() as client:
        body = {"model": "tiny/llama", "messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 0}
        answer = client.post("/v1/chat/completions", json=body).json()
        without = client.post("/v1/chat/completions", json=body | {"prompt_logprobs": None}).json()
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(entries) == 1 for entries in answer["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in without


def test_each_shows_as_many_as_it_asked_for(idle_server: Running) -> None:
    choice = complete(idle_server, prompt="abc", echo=True, logprobs=1, prompt_logprobs=4)["choices"][0]
    assert {len(entries) for entries in choice["prompt_logprobs"][1:]} <= {4, 5}
    assert {len(top) for top in choice["logprobs"]["top_logprobs"][1:]} <= {1, 2}


@pytest.fixture(scope="module")
def vocabulary(tiny: Path) -> TokenBytes:
    return TokenBytes(Tokenizer.from_file(str(tiny / "tokenizer.json")))


def test_ids_are_spelled_with_their_special_tokens(vocabulary: TokenBytes) -> None:
    echo = echo_of(vocabulary, (END_OF_TEXT, *b"h\xe2\x82\xaci"), None)
    assert echo.text == "<|endoftext|>h€i"
    assert echo.offsets == (0, 13, 14, 14, 14, 15)


def test_what_the_tokenizer_puts_in_front_is_not_said_again(vocabulary: TokenBytes) -> None:
    echo = echo_of(vocabulary, (END_OF_TEXT, *b"hi"), "hi")
    assert (echo.text, echo.offsets) == ("hi", (0, 0, 1))


def test_half_a_character_is_one_of_its_own(vocabulary: TokenBytes) -> None:
    echo = echo_of(vocabulary, (0xE2, 0x61, 0xE2), None)
    assert (echo.text, echo.offsets) == ("\ufffda\ufffd", (0, 1, 2))


def test_the_first_token_has_no_log_probability(vocabulary: TokenBytes) -> None:
    tokens = echo_of(vocabulary, (0x61, 0x62), "ab").tokens([SampledToken(0x62, -0.5)])
    assert [(token.sampled.token_id, token.sampled.logprob, token.offset) for token in tokens] == [
        (0x61, None, 0),
        (0x62, -0.5, 1),
    ]
