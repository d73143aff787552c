"""Structured output through a real server: every way to ask, on both endpoints, and every way to ask wrongly."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from tests.server.api.running import NAME, Running
from tests.server.api.test_chat import events

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICE = {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}}
SQL = 'root ::= "SELECT " column " FROM t"\ncolumn ::= "a" | "b"'
# After forty letters more rules are open at once than the parser takes.
BREAKING = f'start: "{"b" * 40}" ' + "x? " * 1200 + '\nx: "y"'
LONG = {"prompt": "x", "max_tokens": 3000, "stream": True, "structured_outputs": {"regex": "[a-z]+"}}


def schema(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": body, "strict": True}}}


def is_person(text: str) -> bool:
    person = json.loads(text)
    return person.keys() == {"name", "age"} and len(person["name"]) <= 8 and 0 <= person["age"] <= 120


def is_json(text: str) -> bool:
    json.loads(text)
    return True


ASKED: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json_schema": (schema(PERSON), is_person),
    "choice": (CHOICE, lambda text: text in ("yes", "no", "perhaps")),
    "regex": ({"structured_outputs": {"regex": r"\d{3}-[a-z]+"}}, lambda text: bool(re.fullmatch(r"\d{3}-[a-z]+", text))),
    "json": ({"structured_outputs": {"json": PERSON}}, is_person),
    "json as a string": ({"structured_outputs": {"json": json.dumps(PERSON)}}, is_person),
    "any json": ({"structured_outputs": {"json": True}}, is_json),
    "gbnf": ({"structured_outputs": {"grammar": SQL}}, lambda text: text in ("SELECT a FROM t", "SELECT b FROM t")),
    "lark": ({"structured_outputs": {"grammar": 'start: "a"+ "!"'}}, lambda text: bool(re.fullmatch("a+!", text))),
    "guided_choice": ({"guided_choice": ["é", "日本"]}, lambda text: text in ("é", "日本")),
    "guided_regex": ({"guided_regex": "^a?b$"}, lambda text: text in ("b", "ab")),
    "guided_json": ({"guided_json": {"enum": [1, None]}}, lambda text: text in ("1", "null")),
    "guided_grammar": ({"guided_grammar": SQL}, lambda text: text.endswith(" FROM t")),
    "a special token's name": ({"guided_choice": ["<|im_end|> is a name"]}, lambda text: text == "<|im_end|> is a name"),
}  # fmt: skip


def post(server: Running, path: str, **body: Any) -> httpx.Response:
    said = (
        {"prompt": "once"}
        if path == "completions"
        else {"model": "tiny/llama", "messages": [{"role": "user", "content": "once"}]}
    )
    with server.client() as client:
        return client.post(f"/v1/{path}", json=said | {"max_tokens": 200} | body)


def answers(server: Running, path: str, **body: Any) -> list[tuple[str, str]]:
    """(text, finish_reason) of each choice."""
    response = post(server, path, **body)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    return [(c["text"] if "text" in c else c["message"]["content"], c["finish_reason"]) for c in choices]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("kind", ASKED)
def test_what_is_asked_for_is_what_comes(idle_server: Running, path: str, kind: str) -> None:
    """A random model says nothing of the kind by itself. Where it runs out of tokens, what there is may go on so."""
    asked, holds = ASKED[kind]
    found = answers(idle_server, path, n=6, seed=1, temperature=1.2, **asked)
    assert {reason for _, reason in found} <= {"stop", "length"}
    complete = [text for text, reason in found if reason == "stop"]
    assert complete
    assert [text for text in complete if not holds(text)] == []


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_any_object(idle_server: Running, path: str) -> None:
    """A random model seldom comes to its end."""
    for text, reason in answers(idle_server, path, n=8, seed=3, response_format={"type": "json_object"}):
        assert text.startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_streamed_as_unstreamed(idle_server: Running, path: str) -> None:
    asked = {"seed": 4, "temperature": 1.1, **schema(PERSON)}
    ((whole, reason),) = answers(idle_server, path, **asked)
    choices = [chunk["choices"][0] for chunk in events(post(idle_server, path, stream=True, **asked))]
    assert "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices) == whole
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == [reason]


def test_too_few_tokens_cut_the_answer(idle_server: Running) -> None:
    (found,) = answers(idle_server, "completions", max_tokens=5, guided_choice=["abcdefgh"])
    assert found == ("abcde", "length")


def test_stop_strings_stop_tokens_and_a_minimum(idle_server: Running) -> None:
    forced = {"guided_choice": ["abcdefgh"]}
    assert answers(idle_server, "completions", stop=["de"], **forced) == [("abc", "stop")]
    assert answers(idle_server, "completions", stop_token_ids=[ord("c")], **forced) == [("ab", "stop")]
    assert answers(idle_server, "completions", min_tokens=50, **forced) == [("abcdefgh", "stop")]
    found = answers(idle_server, "completions", min_tokens=20, seed=1, structured_outputs={"regex": "[a-f]+"})
    assert len(found[0][0]) >= 20


def test_biases_and_penalties_choose_among_what_the_grammar_allows(idle_server: Running) -> None:
    asked = {"guided_choice": ["a", "b", "c"], "n": 5, "logit_bias": {str(ord("b")): 100, str(ord("x")): 100}}
    assert answers(idle_server, "completions", **asked) == [("b", "stop")] * 5


def test_log_probabilities_are_of_the_raw_distribution(idle_server: Running) -> None:
    body = {"prompt": "once", "temperature": 0, "max_tokens": 1, "logprobs": 3}
    free = post(idle_server, "completions", **body).json()["choices"][0]["logprobs"]
    held = post(idle_server, "completions", guided_choice=["\x07"], **body).json()["choices"][0]["logprobs"]
    assert free["top_logprobs"] == [{t: p for t, p in held["top_logprobs"][0].items() if t in free["top_logprobs"][0]}]
    assert held["tokens"] == ["\x07"]
    assert held["token_logprobs"][0] < free["token_logprobs"][0]


def test_neighbours_without_a_form_are_answered_as_ever(idle_server: Running) -> None:
    body = {"prompt": ["one", "two"], "seed": 2, "max_tokens": 20, "logprobs": 0, "ignore_eos": True}
    alone = post(idle_server, "completions", **body).json()["choices"]
    with idle_server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as held:
        next(held.iter_lines())
        assert post(idle_server, "completions", **body).json()["choices"] == alone


def test_a_client_that_leaves_takes_its_grammar_along(idle_server: Running) -> None:
    with idle_server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as held:
        next(held.iter_lines())
    idle_server.wait_idle()


def test_a_grammar_that_runs_into_a_limit_ends_its_own_answer_with_an_error(idle_server: Running) -> None:
    asked = {"structured_outputs": {"grammar": BREAKING}}
    with idle_server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as held:
        lines = held.iter_lines()
        next(lines)
        failed = post(idle_server, "completions", **asked)
        assert failed.status_code == 500
        assert "grammar can't be followed any further" in failed.json()["error"]["message"]
        assert json.loads(next(line for line in lines if line)[6:])["choices"]
    *_, error = events(post(idle_server, "completions", stream=True, **asked))
    assert "grammar" in error["error"]["message"]


def test_the_default_form_is_any_text(idle_server: Running) -> None:
    body = {"seed": 1, "max_tokens": 8}
    assert answers(idle_server, "completions", response_format={"type": "text"}, **body) == answers(
        idle_server, "completions", response_format=None, structured_outputs=None, guided_json=None, **body
    )


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        (schema({"not": {}}), "response_format.json_schema.schema", "invalid_grammar"),
        (schema({"type": "array", "uniqueItems": True}), "response_format.json_schema.schema", "invalid_grammar"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
         "response_format.json_schema.name", "missing_required_parameter"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": [], "strict": True}}},
         "response_format.json_schema.schema", "invalid_value"),
        ({"response_format": {"type": "json_object", "extra": 1}}, "response_format.extra", "unknown_parameter"),
        ({"response_format": {"type": "grammar"}}, "response_format.type", "invalid_value"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"choice": ["a"], "regex": "b"}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "invalid_grammar"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice", "invalid_grammar"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "invalid_value"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "invalid_grammar"),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "invalid_grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "invalid_grammar"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json", "invalid_grammar"),
        ({"structured_outputs": {"json": False}}, "structured_outputs.json", "invalid_grammar"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json", "invalid_grammar"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "invalid_value"),
        ({"structured_outputs": {"grammar": "hello"}}, "structured_outputs.grammar", "invalid_grammar"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " *"}},
         "structured_outputs.whitespace_pattern", "invalid_value"),
        ({"structured_outputs": {"json": {}, "unheard_of": 1}}, "structured_outputs.unheard_of", "unknown_parameter"),
        ({"guided_regex": "(", "seed": 1}, "guided_regex", "invalid_grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "invalid_value"),
        (CHOICE | {"response_format": {"type": "json_object"}}, "response_format", "invalid_value"),
        (CHOICE | {"ignore_eos": True}, "ignore_eos", "invalid_value"),
    ],
)  # fmt: skip
def test_what_is_asked_wrongly_is_a_400_with_its_name(
    idle_server: Running, path: str, asked: dict[str, Any], param: str, code: str
) -> None:
    response = post(idle_server, path, **asked)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert len(error["message"]) < 500


def test_openais_client_parses(idle_server: Running) -> None:
    answer = idle_server.openai.chat.completions.create(
        model=NAME,
        messages=[{"role": "user", "content": "Who?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        extra_body={"repetition_penalty": 1.1},
    )
    assert is_person(answer.choices[0].message.content or "")
