"""Servers of tiny models whose templates know tools and thoughts, and a way to make a random model say a given text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from pagemill_server.api import conversation
from pagemill_server.api.chat import ChatCompletions
from pagemill_server.api.prepare import Job, Origin
from pagemill_server.text import grammar
from tests.server.api.running import Running, serving
from tests.server.tiny import write_tiny_llama

# Qwen3's in small: tools as JSON lines, calls and thoughts of earlier turns as the model writes them.
QWEN = (
    "{%- if tools %}{{ '<|im_start|>system\\n<tools>' }}"
    "{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{%- endfor %}{{ '\\n</tools><|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}"
    "{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ (call.function.arguments | tojson) + '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
MISTRAL = (  # its markers are tokens of their own
    "{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{%- for message in messages %}{{ '[INST]' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + call.function.name }}{%- endfor %}{{ '[/INST]' }}"
    "{%- endfor %}"
)
OPENED = (  # the prompt opens the thoughts, as DeepSeek's and QwQ's do
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)


def write_model(folder: Path, template: str, special: Sequence[str] = ()) -> Path:
    """A context of 4096 tokens, so that a long tool list fits. `special` are tokens of the tokenizer beside the bytes."""
    write_tiny_llama(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@contextmanager
def serving_template(folder: Path, template: str, special: Sequence[str] = ()) -> Iterator[Running]:
    with serving(write_model(folder, template, special)) as running:
        yield running


def says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Whatever is asked of the model by chat, it says this: a grammar of one text, in place of any."""
    monkeypatch.setattr(conversation, "_grammar", lambda *_: grammar.compile(grammar.literal(text)))


def job_of(server: Running, body: dict[str, Any]) -> Job:
    loaded = server.service.loaded
    assert loaded is not None
    return ChatCompletions(server.service).prepare(loaded, body, Origin(0.0, ""))


def prompt_of(server: Running, **body: Any) -> str:
    """What the model is shown."""
    (request,) = job_of(
        server, {"model": "tiny/llama", "messages": [{"role": "user", "content": "hi"}]} | body
    ).requests
    assert server.service.loaded is not None
    return server.service.loaded.tokenizer.decode(request.prompt_token_ids, skip_special=False)
