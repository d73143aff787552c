"""One server whose answers are read for calls in the Hermes format and for reasoning as Qwen3 marks it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from pagemill_server.config import ChatOptions
from tests.server.api.running import Running, serving, settings_for


@pytest.fixture(scope="session")
def talking_server(tiny: Path) -> Iterator[Running]:
    chat = ChatOptions(tool_call_parser="hermes", reasoning_parser="qwen3")
    with serving(tiny, settings=replace(settings_for(tiny), chat=chat)) as running:
        yield running


@pytest.fixture
def talker(talking_server: Running) -> Iterator[Running]:
    """The shared server, which must hold nothing once the test is over."""
    yield talking_server
    talking_server.wait_idle()


@pytest.fixture
def strict(talker: Running) -> Iterator[openai.OpenAI]:
    with _strict(talker) as client:
        yield client


@pytest.fixture
def strict_plain(idle_server: Running) -> Iterator[openai.OpenAI]:
    """The same to a model without reasoning."""
    with _strict(idle_server) as client:
        yield client


@contextmanager
def _strict(server: Running) -> Iterator[openai.OpenAI]:
    """openai's client, which raises at a field that its types don't know so."""
    http = openai.DefaultHttpxClient(verify=False, timeout=60)
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="not-needed",
        max_retries=0,
        http_client=http,
        _strict_response_validation=True,
    ) as client:
        yield client
