"""Random bodies at both endpoints of a real server: an answer or a 4xx with the error object, and a server that lives on."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.api.asking import error_of
from tests.server.api.running import NAME, Running

ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
IDS = st.lists(st.integers(-1, 270), max_size=6)
TEXT = st.text(max_size=12)
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": TEXT})
MESSAGE = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"]) | ANYTHING,
        "content": TEXT | st.none() | st.lists(PART, max_size=2) | ANYTHING,
        "name": st.none() | TEXT,
        "tool_calls": st.none()
        | st.lists(
            st.fixed_dictionaries({"id": TEXT, "function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})})
        )
        | ANYTHING,
        "tool_call_id": st.none() | TEXT,
        "reasoning": st.none() | TEXT,
    },
)
FUNCTION = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "a b"])},
    optional={"parameters": st.just({"type": "object"}) | ANYTHING, "strict": st.booleans(), "description": TEXT},
)
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
NAMED = {"type": "function", "function": {"name": "a"}}
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from([NAME, "alias", "other", None]),
    "temperature": st.sampled_from([0, 0.5, 1, 2, -1, None]),
    "top_p": st.sampled_from([1, 0.5, 1e-9, 0, None]),
    "top_k": st.sampled_from([-1, 0, 1, 5, 1000, -2, None]),
    "seed": st.integers(-(2**63), 2**64 - 1) | st.none(),
    "max_tokens": st.integers(-1, 8) | st.sampled_from([None, 10**9]),
    "max_completion_tokens": st.integers(0, 8) | st.none(),
    "stop": TEXT | st.lists(TEXT, max_size=3) | st.none(),
    "ignore_eos": st.booleans(),
    "logprobs": st.booleans() | st.integers(-1, 22) | st.none(),
    "top_logprobs": st.integers(-1, 22) | st.none(),
    "stream": st.booleans(),
    "stream_options": st.none() | st.fixed_dictionaries({"include_usage": st.booleans()}) | ANYTHING,
    "n": st.sampled_from([1, 2, 3, 0, 10**6, None]),
    "best_of": st.sampled_from([1, 2, None]),
    "min_p": st.sampled_from([0, 0.2, 1, -1, None]),
    "frequency_penalty": st.sampled_from([-2, 0, 0.5, 2, 3, None]),
    "presence_penalty": st.sampled_from([-2, 0, 0.5, 2, -3, None]),
    "repetition_penalty": st.sampled_from([1e-300, 0.5, 1, 1.3, 10, 0, None]),
    "min_tokens": st.integers(-1, 5) | st.none(),
    "stop_token_ids": st.lists(st.integers(-1, 270), max_size=3) | st.none(),
    "prompt_logprobs": st.integers(-1, 22) | st.none(),
    "echo": st.booleans(),
    "priority": st.integers(-(2**32), 2**32) | st.none(),
    "deadline_ms": st.sampled_from([0, 1, 1e9, None]),
    "cache_salt": TEXT,
    "user": TEXT | ANYTHING,
    "metadata": st.none() | ANYTHING,
    "logit_bias": st.dictionaries(st.integers(-1, 270).map(str), st.integers(-101, 101), max_size=3) | st.none(),
    "tools": st.lists(TOOL, max_size=2) | ANYTHING,
    "tool_choice": st.sampled_from(["none", "auto", "required", "x", None]) | st.just(NAMED) | ANYTHING,
    "parallel_tool_calls": st.booleans() | st.none(),
    "functions": st.lists(FUNCTION, max_size=2) | st.none(),
    "function_call": st.sampled_from(["none", "auto", {"name": "a"}, None]),
    "chat_template_kwargs": st.none() | st.dictionaries(st.sampled_from(["enable_thinking", "tools", "x"]), ANYTHING),
    "reasoning_effort": st.sampled_from(["none", "medium", "x", None]),
    "add_generation_prompt": st.booleans(),
    "continue_final_message": st.booleans(),
    "include_reasoning": st.booleans(),
    "messages": st.lists(MESSAGE, max_size=3) | ANYTHING,
    "prompt": TEXT | IDS | st.lists(TEXT | IDS, max_size=3) | ANYTHING,
}
# Half of the bodies hold what their endpoint needs, so that many of them are answered; the other half hold anything.
GOOD_CHAT = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "a"}]), "max_tokens": st.integers(1, 4)},
    optional={
        k: v for k, v in FIELDS.items() if k not in ("messages", "prompt", "max_tokens", "max_completion_tokens")
    },
)
GOOD_COMPLETION = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["a", ["a", "b"], [1, 2]]), "max_tokens": st.integers(1, 4)},
    optional={k: v for k, v in FIELDS.items() if k not in ("messages", "prompt", "max_tokens", "top_logprobs")},
)
ANY_FIELDS = st.fixed_dictionaries({}, optional=FIELDS)
WITH_STRANGE_KEYS = st.builds(lambda body, more: more | body, ANY_FIELDS, st.dictionaries(TEXT, ANYTHING, max_size=2))


def check(server: Running, client: httpx.Client, path: str, content: bytes) -> int:
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 200 or 400 <= response.status_code < 500, (response.status_code, response.text)
    if response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '{"error"' not in response.text
    elif response.status_code == 200:
        assert response.json()["choices"]
    else:
        error_of(response)
    return response.status_code


def fuzz(server: Running, path: str, bodies: st.SearchStrategy[Any]) -> set[int]:
    """The statuses that came; the server then answers an ordinary request and holds nothing."""
    seen: set[int] = set()
    with server.client() as client:

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(bodies)
        def run(body: Any) -> None:
            seen.add(check(server, client, path, body if isinstance(body, bytes) else orjson.dumps(body)))

        run()
        assert check(server, client, "/v1/completions", b'{"prompt": "a", "max_tokens": 1}') == 200
    server.wait_idle()
    return seen


def test_chat(idle_server: Running) -> None:
    assert fuzz(idle_server, "/v1/chat/completions", GOOD_CHAT | WITH_STRANGE_KEYS) >= {200, 400}


def test_completions(idle_server: Running) -> None:
    assert fuzz(idle_server, "/v1/completions", GOOD_COMPLETION | WITH_STRANGE_KEYS) >= {200, 400}


def test_bytes(idle_server: Running) -> None:
    assert fuzz(idle_server, "/v1/completions", st.binary(max_size=60) | ANYTHING.map(orjson.dumps)) == {400}
