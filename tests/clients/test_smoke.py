"""Libraries that people have between their code and a server: each does chat, stream, tools, schema and what else it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import Run
from tests.server.real_model import ENCODER, NAME

pytestmark = [pytest.mark.clients, pytest.mark.model]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("library", ["litellm", "langchain"])
def test_all_of_it(run: Run, generating: str, embedding: str, library: str) -> None:
    said = run("python", str(PROGRAMS / f"{library}_program.py"), generating, NAME, embedding, ENCODER)
    assert said.split()[-5:] == ["chat", "stream", "tools", "schema", "embeddings"], said


def test_agents(run: Run, generating: str) -> None:
    said = run("python", str(PROGRAMS / "agents_program.py"), generating, NAME)
    assert said.split()[-8:] == [
        *("OpenAIChatCompletionsModel", "run", "OpenAIChatCompletionsModel", "stream"),
        *("OpenAIResponsesModel", "run", "OpenAIResponsesModel", "stream"),
    ], said


def test_instructor(run: Run, generating: str) -> None:
    said = run("python", str(PROGRAMS / "instructor_program.py"), generating, NAME)
    assert said.split()[-8:] == [
        "TOOLS",
        "whole",
        "TOOLS",
        "stream",
        *("JSON_SCHEMA", "whole", "JSON_SCHEMA", "stream"),
    ], said
