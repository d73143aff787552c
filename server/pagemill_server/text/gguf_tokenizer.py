"""A tokenizer from GGUF metadata: the file's own vocabulary, merges or scores, and cuts. Called by `tokenizer.load_tokenizer`.

Two kinds: byte-level BPE ("gpt2": SmolLM2, Llama 3) and SentencePiece BPE with byte fallback ("llama": Llama 2, Mistral). Keys:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from pagemill.failures import FailureReason, PagemillError
from pagemill_server.text import pre_tokenizers

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_SPACE = "\u2581"  # how SentencePiece writes a space


@dataclass(frozen=True, slots=True)
class GGUFTokenizer:
    """What the metadata says."""

    backend: Tokenizer
    bos_id: int | None
    eos_id: int | None
    chat_template: str | None
    tool_template: str | None


def from_metadata(metadata: Mapping[str, Any], where: str) -> GGUFTokenizer:
    """Build it; raises PagemillError (UnsupportedTokenizer for another kind, ModelInvalid for metadata that contradict)."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise PagemillError(
            FailureReason.UNSUPPORTED_TOKENIZER, f"{where}: tokenizer kind {kind} is not supported (gpt2 and llama are)"
        )
    try:
        vocabulary = _Vocabulary(metadata)
        backend, adds_bos = (
            _byte_level(metadata, vocabulary, where) if kind == "gpt2" else _pieces(metadata, vocabulary)
        )
        vocabulary.add_special_tokens(backend)
        _add_ends(backend, metadata, vocabulary, adds_bos)
    except PagemillError:
        raise
    except Exception as error:  # noqa: BLE001  the tokenizers library raises plain Exception for a vocabulary that contradicts itself
        raise PagemillError(FailureReason.MODEL_INVALID, f"{where}: its tokenizer is damaged: {error!r}") from None
    templates = [_text(metadata, f"tokenizer.chat_template{name}") for name in ("", ".tool_use")]
    return GGUFTokenizer(backend, vocabulary.bos_id, vocabulary.eos_id, *templates)


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    return None if value is None else str(value)


class _Vocabulary:
    """The tokens, checked."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
        self.types: Sequence[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.types)} token types")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        self.bos_id = self._id(metadata, "bos")
        self.eos_id = self._id(metadata, "eos")
        self.unknown_id = self._id(metadata, "unknown")

    def add_special_tokens(self, backend: Tokenizer) -> None:
        """Control tokens are special; user-defined ones are ordinary text, but found before anything is cut."""
        backend.add_special_tokens(
            [AddedToken(token, special=True, normalized=False) for token in self._of_type(_CONTROL)]
        )
        backend.add_tokens(
            [AddedToken(token, special=False, normalized=False) for token in self._of_type(_USER_DEFINED)]
        )

    def _of_type(self, wanted: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind == wanted and token]

    def _id(self, metadata: Mapping[str, Any], name: str) -> int | None:
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token_id is None:
            return None
        if not 0 <= int(token_id) < len(self.tokens):
            raise ValueError(f"{name}_token_id {token_id} of {len(self.tokens)} tokens")
        return int(token_id)


def _byte_level(metadata: Mapping[str, Any], vocabulary: _Vocabulary, where: str) -> tuple[Tokenizer, bool]:
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    pre = pre_tokenizers.canonical(name)
    if pre is None:
        raise PagemillError(
            FailureReason.UNSUPPORTED_TOKENIZER,
            f"{where}: tokenizer.ggml.pre {name!r} is not supported (these are: {', '.join(pre_tokenizers.known())})",
        )
    # A merge is "left right"; neither holds a space, which byte-level vocabularies write as another character.
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(
        models.BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=pre_tokenizers.takes_whole_pieces_first(pre))
    )
    backend.pre_tokenizer = pre_tokenizers.make(pre)
    backend.decoder = decoders.ByteLevel()
    return backend, pre_tokenizers.starts_with_bos(pre)


def _pieces(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    merges = _merges_of_scores(vocabulary, metadata["tokenizer.ggml.scores"])
    unknown = "<unk>" if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    backend = Tokenizer(
        models.BPE(vocab=vocabulary.ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    strip: list[Any] = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend, True


def _merges_of_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose joint piece has the highest score: as merges, each way to split each piece."""
    ids = vocabulary.ids
    if len(scores) != len(vocabulary.tokens):
        raise ValueError(f"{len(vocabulary.tokens)} tokens but {len(scores)} scores")
    ranked = []
    for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind != 1:  # only normal pieces are made by joining
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[token_id], token_id, ids[left], ids[right], left, right))
    return [entry[-2:] for entry in sorted(ranked)]


def _add_ends(backend: Tokenizer, metadata: Mapping[str, Any], vocabulary: _Vocabulary, adds_bos: bool) -> None:
    """BOS before and EOS after a text, where the file asks for them (`encode` with add_special)."""
    bos, eos = vocabulary.bos_id, vocabulary.eos_id
    before = bos if bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)) else None
    after = eos if bool(metadata.get("tokenizer.ggml.add_eos_token", False)) else None
    ends = {token_id: vocabulary.tokens[token_id] for token_id in (before, after) if token_id is not None}
    if not ends:
        return
    template = [*([f"{ends[before]}:0"] if before is not None else []), "$A:0"]
    template += [f"{ends[after]}:0"] if after is not None else []
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, token_id) for token_id, token in ends.items()]
    )
