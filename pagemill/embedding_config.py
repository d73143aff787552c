"""How a model makes one vector of a text, as its sentence-transformers files say: pooling, normalisation, length, prompt.

`modules.json` lists the steps, `1_Pooling/config.json` names the pooling, `sentence_bert_config.json` bounds the length
(https://sbert.net/docs/sentence_transformer/usage/custom_models.html). Read by `model_files.inspect`; a step that we don't compute
is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pagemill.failures import FailureReason, PagemillError
from pagemill.json_file import read_list, read_object

Pooling = Literal["cls", "mean", "max", "lasttoken"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
MODULES = "modules.json"
_OLD_SPELLING = {  # one true or false each, before `pooling_mode` named one
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """From a text's last hidden states to its vector."""

    pooling: Pooling
    normalize: bool = True  # to length 1
    max_length: int | None = None  # tokens of a text, special ones included; None: what the model allows
    lower_case: bool = False  # before the tokenizer, whatever that does itself
    prompt: str = ""  # put before every text
    size: int = 0  # numbers of a vector; 0: not known yet
    shorter: frozenset[int] = frozenset()  # sizes that it may be cut to, as it was trained to bear (Matryoshka)

    def prepared(self, text: str) -> str:
        """What the tokenizer gets."""
        text = self.prompt + text
        return text.lower() if self.lower_case else text

    def sized(self, hidden_size: int, raw: Mapping[str, Any]) -> EmbeddingConfig:
        """The same with what `config.json` says of sizes, spelled as vLLM reads it. What isn't a size is left out."""
        named = raw.get("matryoshka_dimensions")
        if isinstance(named, list):
            sizes = [size for size in named if isinstance(size, int) and 0 < size < hidden_size]
        else:
            sizes = list(range(1, hidden_size)) if raw.get("is_matryoshka") else []
        return replace(self, size=hidden_size, shorter=frozenset(sizes))


LAST_TOKEN = EmbeddingConfig("lasttoken")  # a decoder's, unless its files say otherwise


def read(folder: Path) -> EmbeddingConfig | None:
    """What the folder's files say; None where they don't make it an embedding model. Raises PagemillError."""
    if not (folder / MODULES).is_file():
        return None
    modules = read_list(folder / MODULES)
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        places = [str(module["path"]) for module in modules]
    except (TypeError, KeyError):
        raise _damaged(folder / MODULES) from None
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"]):
        named = " + ".join(kinds) or "none"
        raise _refuse(folder, f"its modules are {named}; Transformer + Pooling [+ Normalize] can be computed")
    pooling = _pooling(folder, folder / places[1] / "config.json")
    length, lower = _text(folder / places[0] / "sentence_bert_config.json")
    return EmbeddingConfig(
        pooling, len(kinds) == 3, length, lower, _prompt(folder / "config_sentence_transformers.json")
    )


def _pooling(folder: Path, path: Path) -> Pooling:
    raw = read_object(path)
    old = [name for key, name in _OLD_SPELLING.items() if raw.get(key)]
    mode = raw.get("pooling_mode") or old or ["mean"]
    modes = [mode] if isinstance(mode, str) else [str(name) for name in mode]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise _refuse(folder, f"its pooling is {' + '.join(modes)}; one of {', '.join(POOLINGS)} can be computed")
    if not raw.get("include_prompt", True):
        raise _refuse(folder, "its pooling leaves the prompt's tokens out (include_prompt is false)")
    return modes[0]


def _text(path: Path) -> tuple[int | None, bool]:
    raw: Mapping[str, Any] = read_object(path) if path.is_file() else {}
    length = raw.get("max_seq_length")
    if length is not None and (not isinstance(length, int) or length < 1):
        raise _damaged(path)
    return length, bool(raw.get("do_lower_case", False))


def _prompt(path: Path) -> str:
    raw: Mapping[str, Any] = read_object(path) if path.is_file() else {}
    name, prompts = raw.get("default_prompt_name"), raw.get("prompts") or {}
    if not name:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise _damaged(path)
    return str(prompts[name])


def _damaged(path: Path) -> PagemillError:
    return PagemillError(
        FailureReason.MODEL_INVALID, f"{path} is not what sentence-transformers writes: fetch it again"
    )


def _refuse(folder: Path, why: str) -> PagemillError:
    return PagemillError(FailureReason.UNSUPPORTED_ARCHITECTURE, f"{folder} can't be used for embeddings: {why}")
