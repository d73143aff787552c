"""The model's tokenizer, from wherever the model keeps it: `tokenizer.json` beside safetensors, or a GGUF's metadata.

Called once at the server's start; used by `api` and `LLM` from the text threads (the backend may be shared between threads).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill_server.text import gguf_tokenizer


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """Text to token ids and back."""

    backend: Tokenizer
    bos_id: int | None
    eos_ids: tuple[int, ...]  # any of these ends a turn
    bos_token: str  # as chat templates write it; "" without one
    eos_token: str
    chat_template: str | None  # Jinja source
    tool_template: str | None = None  # a second one, for conversations with tools

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids; `add_special` puts BOS or EOS around them where the model wants it. Special tokens in the text count as such.

        Text is valid Unicode: a lone surrogate is the caller's to refuse.
        """
        ids: list[int] = self._encoding(text, add_special).ids
        return ids

    def encode_truncated(self, text: str, length: int) -> tuple[int, ...]:
        """At most `length` token ids: the text's first, within the special tokens that the model wants around them."""
        around = self.backend.num_special_tokens_to_add(False)
        encoding = self._encoding(text, False)
        encoding.truncate(max(0, length - around))
        return tuple(self.backend.post_process(encoding).ids[:length])

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids; ids that no token has are left out."""
        text: str = self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]
        return text

    def longest_token(self) -> int:
        """Bytes of text that one token can stand for at the most, or somewhat more."""
        return max(len(token.encode()) for token in self.backend.get_vocab(True))

    def _encoding(self, text: str, add_special: bool) -> Encoding:
        """By the batch's way: `encode` keeps the interpreter's lock, and for a long text the whole server would stand still."""
        return self.backend.encode_batch_fast([text], add_special_tokens=add_special)[0]


def load_tokenizer(files: ModelFiles) -> ModelTokenizer:
    """Read it; raises PagemillError (UnsupportedTokenizer, ModelInvalid)."""
    if files.format == "gguf":
        made = gguf_tokenizer.from_metadata(files.gguf_metadata, str(files.path))
        return _finish(files, made.backend, made.bos_id, made.eos_id, made.chat_template, made.tool_template)
    path = files.path / "tokenizer.json"
    if not path.is_file():
        raise PagemillError(
            FailureReason.UNSUPPORTED_TOKENIZER,
            f"{files.path} has no tokenizer.json: fetch it, or convert the tokenizer",
        )
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is damaged: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    settings = _settings(files.path / "tokenizer_config.json")
    bos, eos = (backend.token_to_id(_content(settings.get(name))) for name in ("bos_token", "eos_token"))
    return _finish(files, backend, bos, eos, *_chat_templates(files.path, settings))


def _finish(
    files: ModelFiles,
    backend: Tokenizer,
    bos: int | None,
    eos: int | None,
    template: str | None,
    tool_template: str | None,
) -> ModelTokenizer:
    bos = files.config.bos_token_id if bos is None else bos
    eos_ids = tuple(dict.fromkeys((*files.config.eos_token_ids, *(() if eos is None else (eos,)))))
    if eos is None and eos_ids:
        eos = eos_ids[0]
    names = ["" if token_id is None else backend.id_to_token(token_id) or "" for token_id in (bos, eos)]
    return ModelTokenizer(backend, bos, eos_ids, names[0], names[1], template, tool_template)


def _settings(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is not valid JSON: {error}") from None
    return body if isinstance(body, dict) else {}


def _content(token: Any) -> str:
    """A token is named by its text or by an object that holds it."""
    return str(token.get("content", "") if isinstance(token, dict) else token or "")


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The model's template and, where it has one, that for tools.

    Files of their own (what transformers writes today), else the entry in the settings, whose list form names several.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        for_tools = folder / "additional_chat_templates" / "tool_use.jinja"
        return _source(file), _source(for_tools) if for_tools.is_file() else None
    template = settings.get("chat_template")
    if not isinstance(template, list):
        return (template if isinstance(template, str) else None), None
    named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    named = {name: source for name, source in named.items() if isinstance(source, str)}
    return named.get("default") or next(iter(named.values()), None), named.get("tool_use")


def _source(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PagemillError(FailureReason.MODEL_INVALID, f"{file} can't be read: {error}") from None
