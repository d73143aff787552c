"""What people know from vLLM's tutorials, word for word: the command, and openai's client with a key that is none."""

from __future__ import annotations

from typing import Any

import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.clients.conftest import served
from tests.server.real_model import NAME, real_model

pytestmark = pytest.mark.model

MESSAGES = [
    {"role": "system", "content": "你是一个有用的助手。"},
    {"role": "user", "content": "用中文介绍一下北京。"},
]


def test_a_command_and_a_client() -> None:
    real_model()
    flags = (
        "--gpu-memory-utilization 0.9 --max-model-len 1024 --trust-remote-code --enforce-eager --disable-log-requests"
    )
    with (
        served(NAME, *flags.split()) as url,
        OpenAI(base_url=f"{url}/v1", api_key="not-needed", http_client=DefaultHttpxClient(verify=False)) as client,
    ):
        assert [model.id for model in client.models.list()] == [NAME]
        asked: Any = {"model": NAME, "temperature": 0, "max_tokens": 32, "messages": MESSAGES}
        answer = client.chat.completions.create(**asked)
        said = answer.choices[0].message.content
        chunks = client.chat.completions.create(stream=True, **asked)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said
    assert "\N{REPLACEMENT CHARACTER}" not in said
    assert streamed == said
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 20
