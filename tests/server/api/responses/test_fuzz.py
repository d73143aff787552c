"""Random bodies at /v1/responses of a real server: an answer or a 4xx that names what is wrong, and a server that lives on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.api.asking import error_of
from tests.server.api.running import NAME, Running
from tests.server.api.test_fuzz import ANYTHING, FIELDS, TEXT

PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image"])},
    optional={"text": TEXT, "refusal": TEXT, "annotations": ANYTHING, "x": ANYTHING},
)
KINDS = ["message", "function_call", "function_call_output", "reasoning", "item_reference", "web_search_call"]
TOLD = st.fixed_dictionaries({"type": st.sampled_from(["summary_text", "reasoning_text"]), "text": TEXT})
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS) | ANYTHING},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | ANYTHING,
        "content": TEXT | st.lists(PART, max_size=2) | st.lists(TOLD, max_size=2) | ANYTHING,
        "summary": st.lists(TOLD, max_size=2) | ANYTHING,
        "call_id": st.sampled_from(["a", "b", ""]),
        "name": TEXT,
        "arguments": st.sampled_from(["{}", '{"a": [1]}', "[]", "", "{"]) | ANYTHING,
        "output": TEXT | st.lists(PART, max_size=2) | ANYTHING,
        "id": TEXT | st.none(),
        "status": st.sampled_from(["completed", "incomplete", None]),
        "encrypted_content": TEXT | st.none(),
    },
)
CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
GOOD_ITEMS = st.lists(
    st.sampled_from(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "c"}]},
            CALL,
        ]
    ),
    min_size=1,
    max_size=4,
).map(lambda items: [*items, CALL, {"type": "function_call_output", "call_id": "a", "output": "d"}])
FUNCTION = {"type": "function", "name": "f"}
SHARED = ["temperature", "top_p", "top_k", "min_p", "seed", "stop", "priority", "deadline_ms", "user", "stream"]
RESPONSE_FIELDS: dict[str, st.SearchStrategy[Any]] = {name: FIELDS[name] for name in SHARED} | {
    "instructions": TEXT | st.none(),
    "top_logprobs": st.integers(-1, 22) | st.none(),
    "include": st.lists(st.sampled_from(["message.output_text.logprobs", "reasoning.encrypted_content", "x"])) | st.none(),
    "tools": st.lists(st.just(FUNCTION) | st.just({"type": "web_search"}), max_size=2) | ANYTHING,
    "tool_choice": st.sampled_from(["none", "auto", None, "x"])
    | st.just({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION]})
    | ANYTHING,
    "parallel_tool_calls": st.booleans() | st.none(),
    "text": st.sampled_from([None, {}, {"format": {"type": "text"}}, {"verbosity": "medium"}]) | ANYTHING,
    "reasoning": st.sampled_from([None, {}, {"effort": "medium"}, {"summary": "auto"}]) | ANYTHING,
    "metadata": st.dictionaries(TEXT, TEXT, max_size=2) | ANYTHING,
    "store": st.booleans() | st.none(),
    "background": st.booleans() | st.none(),
    "previous_response_id": st.none() | TEXT,
    "truncation": st.sampled_from(["disabled", "auto", None]),
}  # fmt: skip
GOOD = st.fixed_dictionaries(
    {"model": st.just(NAME), "input": TEXT | GOOD_ITEMS, "max_output_tokens": st.integers(1, 4)},
    optional={name: field for name, field in RESPONSE_FIELDS.items() if name not in ("background", "previous_response_id")},
)  # fmt: skip
ANY = st.fixed_dictionaries(
    {"model": st.just(NAME), "input": st.lists(ITEM, max_size=3) | ANYTHING, "max_output_tokens": st.integers(0, 4)},
    optional=RESPONSE_FIELDS,
)


def check(client: httpx.Client, body: Any) -> int:
    response = client.post("/v1/responses", content=orjson.dumps(body))
    assert response.status_code == 200 or 400 <= response.status_code < 500, (response.status_code, response.text)
    if response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"):
        last = json.loads(response.text.split("data: ")[-1])
        assert last["type"] in ("response.completed", "response.incomplete")
    elif response.status_code == 200:
        assert response.json()["output"]
    else:
        assert error_of(response)["param"]
    return response.status_code


def test_bodies(talker: Running) -> None:
    seen: set[int] = set()
    with talker.client() as client:

        @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
        @given(GOOD | ANY)
        def run(body: Any) -> None:
            seen.add(check(client, body))

        run()
        assert check(client, {"model": NAME, "input": "a", "max_output_tokens": 1}) == 200
    talker.wait_idle()
    assert seen >= {200, 400}
