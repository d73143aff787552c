"""What a request gets that names no sampling: the model's own generation_config.json, and the bound on output tokens.

`--generation-config` says where it is read, `--override-generation-config` what is put on top. Used by `loading` and
`api/sampling`.
"""

from __future__ import annotations

from dataclasses import dataclass


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
