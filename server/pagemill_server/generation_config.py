"""What a request gets that names no sampling: the model's own generation_config.json, and the bound on output tokens.

`--generation-config` says where it is read, `--override-generation-config` what is put on top. What a model's file says wrongly is
left out with a warning: it would be a pity not to serve a model for it. Used by `loading`, `api/sampling`, `api/prepare` and `LLM`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pagemill.failures import FailureReason, PagemillError
from pagemill.json_file import read_object
from pagemill.model_files import ModelFiles
from pagemill_server.config import ChatOptions
from pagemill_server.engine.errors import InvalidSampling
from pagemill_server.engine.params import MOST_TOKENS, validated
from pagemill_server.engine.request import SamplingParams

logger = logging.getLogger(__name__)

FILE = "generation_config.json"
OFF = ("vllm", "none")
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
# As llama.cpp's converter writes them (https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py).
_GGUF = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Fields are `SamplingParams`' own, with OpenAI's defaults; a model's file may say others."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_new_tokens: int | None = None  # the most output tokens that any request may have; None: what the context leaves
    max_tokens: int | None = (
        None  # output tokens of a chat that names no number, by the model's file; None: all there may be
    )
    eos_token_ids: tuple[int, ...] = ()  # besides the model's own: of a file that --generation-config names

    @classmethod
    def of(cls, files: ModelFiles, options: ChatOptions) -> GenerationDefaults:
        """Raises PagemillError for a folder or an override that can't be."""
        overrides = checked_overrides(options.generation_overrides)
        said, where = _said(files, options.generation_config)
        taken = {name: value for name in SAMPLING if (value := _taken(name, said.get(name), where)) is not None}
        if said.get("do_sample") is False:
            taken["temperature"] = 0.0
        own_eos = () if options.generation_config == "auto" else _eos(said, files.config.vocab_size, where)
        length = _taken("max_new_tokens", said.get("max_new_tokens"), where)
        return replace(cls(max_tokens=length, eos_token_ids=own_eos), **{**taken, **overrides})

    def sampling(self) -> dict[str, Any]:
        """As arguments of SamplingParams."""
        return {name: getattr(self, name) for name in SAMPLING}

    def __str__(self) -> str:
        """What differs from OpenAI's, for the log."""
        changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
        return ", ".join(f"{f.name}={_shown(getattr(self, f.name))}" for f in changed) or "OpenAI's defaults"


def checked_overrides(given: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Raises PagemillError for a value that no request could have."""
    made = {}
    for name, value in given:
        try:
            made[name] = _checked(name, value)
        except InvalidSampling as wrong:
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION, f"--override-generation-config: {name} {wrong.trouble}"
            ) from None
    return made


def _said(files: ModelFiles, source: str) -> tuple[Mapping[str, Any], Path]:
    """What the file says, and which it is."""
    if source in OFF:
        return {}, files.path
    if source != "auto":
        path = Path(source) / FILE
        if not path.is_file():
            raise PagemillError(
                FailureReason.INVALID_CONFIGURATION,
                f"--generation-config: there is no {path}; give a folder that holds one, or auto, or vllm",
            )
        return read_object(path), path
    if files.format == "gguf":
        metadata = files.gguf_metadata
        return {ours: _digits(metadata[key]) for key, ours in _GGUF.items() if key in metadata}, files.path
    path = files.folder / FILE
    return (read_object(path) if path.is_file() else {}), path


def _digits(value: Any) -> Any:
    """A float32 as it was written: 0.95 and not 0.949999988."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _taken(name: str, value: Any, where: Path) -> Any:
    """None for what isn't said, and for what can't be, which is warned of."""
    if value is None:
        return None
    try:
        return _checked(name, value)
    except InvalidSampling as wrong:
        logger.warning("%s: %s %s; it is left out", where, name, wrong.trouble)
        return None


def _checked(name: str, value: Any) -> Any:
    """Raises InvalidSampling."""
    if name == "max_new_tokens":
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
            raise InvalidSampling(name, f"must be a whole number from 1 to {MOST_TOKENS}, not {str(value)[:50]}")
        return value
    return getattr(validated(SamplingParams(**{name: value}), vocab_size=0), name)


def _eos(said: Mapping[str, Any], vocab_size: int, where: Path) -> tuple[int, ...]:
    given = said.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    taken = tuple(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size)
    if len(taken) < len(ids):
        logger.warning("%s: eos_token_id names what is no token of the model; it is left out", where)
    return taken


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
