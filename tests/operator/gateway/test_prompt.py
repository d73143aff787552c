"""What a prompt begins with: alike for the turns of one conversation, whatever their spelling, and never an error."""

from __future__ import annotations

import json

import pytest

from pagemill_operator.gateway.prompt import BLOCKS, BYTES_PER_TOKEN, MOST_PARSED, prefix_key, wants_stream

BLOCK = 16
MOST = BLOCKS * BLOCK * BYTES_PER_TOKEN


def key(**fields: object) -> bytes | None:
    return prefix_key(json.dumps(fields).encode(), BLOCK)


SYSTEM = {"role": "system", "content": "Be kind."}
HELLO = {"role": "user", "content": "Hello"}
LATER = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Tell me more"}]


def test_the_turns_of_a_conversation_begin_alike() -> None:
    first = key(messages=[SYSTEM, HELLO])
    assert first is not None
    assert key(model="x", temperature=1, messages=[SYSTEM, HELLO, *LATER]) == first
    parts = {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}
    assert key(messages=[SYSTEM, parts]) == first
    assert prefix_key(json.dumps({"messages": [SYSTEM, HELLO]}, indent=8).encode(), BLOCK) == first


def test_other_conversations_do_not() -> None:
    keys = [
        key(messages=[SYSTEM, HELLO]),
        key(messages=[HELLO]),
        key(messages=[{**SYSTEM, "role": "user"}]),
        key(prompt="Hello"),
    ]
    assert len({*keys, None}) == 5


def test_a_long_system_message_is_all_that_counts() -> None:
    long = {"role": "system", "content": "x" * MOST}
    assert key(messages=[long, HELLO]) == key(messages=[long, LATER[1]])
    short = {"role": "system", "content": "x" * (MOST - 20)}
    assert key(messages=[short, HELLO]) != key(messages=[short, LATER[1]])


@pytest.mark.parametrize("field", ["prompt", "input"])
def test_prompts_of_every_kind(field: str) -> None:
    assert key(**{field: "a" * MOST + "b"}) == key(**{field: "a" * MOST + "c"})
    assert key(**{field: "a" * (MOST - 1) + "b"}) != key(**{field: "a" * (MOST - 1) + "c"})
    tokens = list(range(BLOCKS * BLOCK))
    assert key(**{field: [*tokens, 1]}) == key(**{field: [*tokens, 2]}) == key(**{field: [tokens, [7]]})
    assert key(**{field: tokens[:-1]}) != key(**{field: tokens})
    assert key(**{field: ["a", "b"]}) == key(**{field: "a"})


def test_responses_begin_with_their_instructions() -> None:
    assert key(input="Hello", instructions="Be kind.") == key(input="Hello", instructions="Be kind.")
    assert key(input="Hello", instructions="Be kind.") != key(input="Hello")
    assert key(input=[HELLO], instructions="Be kind.") == key(input=[HELLO, *LATER], instructions="Be kind.")


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_a_body_that_is_too_long_to_parse_goes_by_its_text(field: str) -> None:
    whole = json.dumps({"model": "x", field: "a" * MOST_PARSED}).encode()
    assert prefix_key(whole, BLOCK) == prefix_key(whole.replace(b'"}', b'b"}'), BLOCK) is not None
    assert prefix_key(b'{"x": "' + b"a" * MOST_PARSED + b'"}', BLOCK) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"3",
        b"{}",
        b'{"messages": []}',
        b'{"messages": 3}',
        b'{"messages": [3.5]}',
        b'{"messages": [null]}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": [[]]}',
    ],
)
def test_what_is_no_prompt_has_no_key(body: bytes) -> None:
    assert prefix_key(body, BLOCK) is None
    assert not wants_stream(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [{"role": 3, "content": 4}]}',
        b'{"messages": [{}, null]}',
        b'{"messages": [{"content": [null, {"text": 3}]}]}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": [1, "a", null]}',
    ],
)
def test_odd_prompts_are_no_error(body: bytes) -> None:
    assert prefix_key(body, BLOCK) is not None


def test_who_wants_a_stream() -> None:
    assert wants_stream(b'{"stream": true}')
    assert not wants_stream(b'{"stream": false}')
    assert not wants_stream(b'{"messages": "\\"stream\\": true"}')
