"""How a GGUF's byte-level BPE cuts text before merging: `tokenizer.ggml.pre` by name. Used by `gguf_tokenizer` only.

The name stands for regular expressions that llama.cpp keeps in its source (llama-vocab.cpp), applied one after another to what
the one before left. A name that is not here is refused: with the wrong cuts a model reads other tokens than it was taught.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CUTS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),  # each digit by itself
    "llama-bpe": (_LLAMA3,),
}
_ALIASES = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}

# Llama 3 takes a piece that is a token as it stands, without merging its way there, and starts texts with BOS unless told not to.
_WHOLE_PIECES_FIRST = frozenset({"llama-bpe"})


def canonical(name: str) -> str | None:
    """The name that the table has for `name`, or None."""
    name = _ALIASES.get(name, name)
    return name if name in _CUTS else None


def known() -> tuple[str, ...]:
    """The names that can be asked for."""
    return tuple(sorted((*_CUTS, *_ALIASES)))


def make(name: str) -> PreTokenizer:
    """The cuts of a canonical name, then each byte as a printable character."""
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _CUTS[name]]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def takes_whole_pieces_first(name: str) -> bool:
    """Whether merges are ignored for a piece that is a token already."""
    return name in _WHOLE_PIECES_FIRST


def starts_with_bos(name: str) -> bool:
    """What holds where the file does not say."""
    return name == "llama-bpe"
