"""/tokenize and /detokenize: the tokens that the endpoints themselves would compute, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.running import NAME, Running, serving
from tests.server.tiny_bert import MAX_LENGTH, write_tiny_encoder

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüezi"}]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def post(server: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    with server.client() as client:
        answer = client.post(path, json=body)
        assert answer.status_code == status, answer.text
        return answer.json() if status == 200 else answer.json()["error"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(write_tiny_encoder(tmp_path_factory.mktemp("encoder"))) as running:
        yield running


def test_a_prompt(server: Running) -> None:
    assert post(server, "/tokenize", {"model": NAME, "prompt": "aé"}) == {
        "count": 3,
        "max_model_len": 4096,
        "tokens": [97, 0xC3, 0xA9],
        "token_strs": None,
    }
    assert post(server, "/tokenize", {"prompt": ""})["count"] == 0


def test_how_tokens_are_spelled(server: Running) -> None:
    answer = post(server, "/tokenize", {"prompt": "a<|im_end|>", "return_token_strs": True})
    assert answer["token_strs"] == ["a", "<|im_end|>"]


def test_special_tokens_are_left_out_when_asked(encoder: Running) -> None:
    with_them = post(encoder, "/tokenize", {"prompt": "a cat", "return_token_strs": True})
    assert with_them["token_strs"] == ["[CLS]", "a", "c", "##a", "##t", "[SEP]"]
    assert with_them["max_model_len"] == MAX_LENGTH
    without = post(encoder, "/tokenize", {"prompt": "a cat", "add_special_tokens": False})
    assert without["tokens"] == with_them["tokens"][1:-1]


@pytest.mark.parametrize(
    "more",
    [{}, {"add_generation_prompt": False}, {"tools": [TOOL]}, {"temperature": 0.5, "max_tokens": 3}],
    ids=["plain", "closed", "tools", "with what changes no token"],
)
def test_a_conversation_is_the_prompt_that_chat_makes_of_it(idle_server: Running, more: dict[str, Any]) -> None:
    counted = post(idle_server, "/tokenize", CHAT | more)
    answered = post(idle_server, "/v1/chat/completions", {"model": NAME} | CHAT | {"max_tokens": 1} | more)
    assert counted["count"] == len(counted["tokens"]) == answered["usage"]["prompt_tokens"]
    opened = post(idle_server, "/detokenize", {"tokens": counted["tokens"]})["prompt"].endswith("assistant\n")
    assert opened == more.get("add_generation_prompt", True)


def test_there_and_back(server: Running, encoder: Running) -> None:
    for text in ("Grüezi mitenand 🎉\n", "<|im_start|>user\nhi<|im_end|>"):
        tokens = post(server, "/tokenize", {"prompt": text})["tokens"]
        assert post(server, "/detokenize", {"model": NAME, "tokens": tokens}) == {"prompt": text}
    assert post(server, "/detokenize", {"tokens": []}) == {"prompt": ""}
    tokens = post(encoder, "/tokenize", {"prompt": "a cat"})["tokens"]
    assert post(encoder, "/detokenize", {"tokens": tokens}) == {"prompt": "[CLS] a cat [SEP]"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", CHAT | {"return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", CHAT | {"unheard": 1}, "unheard"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [5, -1]}, "tokens"),
        ("/detokenize", {"tokens": [5, 2**62]}, "tokens"),
        ("/detokenize", {"tokens": [5], "skip_special_tokens": True}, "skip_special_tokens"),
    ],
)
def test_what_cannot_be(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    assert post(server, path, body, status=400)["param"] == param


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/tokenize", CHAT), ("/detokenize", {})])
def test_a_model_that_is_not_served(server: Running, path: str, body: dict[str, Any]) -> None:
    body = body or {"tokens": [1]}
    assert post(server, path, body | {"model": "other"}, status=404)["code"] == "model_not_found"


def test_a_model_that_embeds_has_no_conversations(encoder: Running) -> None:
    assert post(encoder, "/tokenize", CHAT, status=400)["code"] == "model_not_generative"


def test_a_full_queue_is_none_of_its_business(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*asked: object) -> None:
        raise AssertionError("the queue was asked")

    monkeypatch.setattr(server.service, "check_queue", full)
    assert post(server, "/tokenize", {"prompt": "a"})["count"] == 1
    assert post(server, "/detokenize", {"tokens": [97]}) == {"prompt": "a"}


def test_a_server_that_loads(tmp_path: Path) -> None:
    with serving(write_tiny_encoder(tmp_path), loaded=False) as running:
        assert post(running, "/tokenize", {"prompt": "a"}, status=503)["code"] == "model_loading"


def test_what_the_tokenizer_is(server: Running) -> None:
    with server.client() as client:
        info = client.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>"
    assert info["bos_token"] == "<|endoftext|>"
    assert "add_generation_prompt" in info["chat_template"]
