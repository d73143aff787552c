"""Asks a model that is deployed: a short answer, and a long one that is read beside the test. Called by test_argocd."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import openai
from testbed.deployments import Deployed

PATIENCE = 600  # seconds without a byte: a pod gets little of a busy machine


def client(model: Deployed) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{model.address()}/v1", api_key="none", max_retries=0, timeout=PATIENCE)


def ask(model: Deployed) -> str:
    with client(model) as asked:
        name = asked.models.list().data[0].id
        answer = asked.completions.create(model=name, prompt="The capital of France is", max_tokens=8, temperature=0)
    return answer.choices[0].text


@dataclass
class Stream:
    """A long answer that is read beside the test."""

    model: Deployed
    tokens: int
    received: int = 0  # tokens, by the usage at its end
    ended: str | None = None  # its finish_reason
    failed: str | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    reader: threading.Thread = field(init=False)

    def start(self) -> None:
        """Ask, and return when the answer has begun."""
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        assert self.begun.wait(PATIENCE)
        assert self.failed is None, self.failed

    def outcome(self, seconds: float = 600) -> tuple[str | None, int]:
        """How it ended, and how many tokens came."""
        self.reader.join(seconds)
        assert self.failed is None, self.failed
        return self.ended, self.received

    def _read(self) -> None:
        try:
            with client(self.model) as asked:
                stream = asked.completions.create(
                    model=asked.models.list().data[0].id,
                    prompt="Once upon a time",
                    max_tokens=self.tokens,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True},
                )
                for chunk in stream:
                    self.begun.set()
                    self.received = chunk.usage.completion_tokens if chunk.usage else 0
                    self.ended = next((choice.finish_reason for choice in chunk.choices), self.ended)
        except openai.OpenAIError as error:
            self.failed = str(error)
        finally:
            self.begun.set()
