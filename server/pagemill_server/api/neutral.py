"""Parameters of OpenAI's and vLLM's APIs that this server does not have, and the values with which they ask for nothing.

A client that sends its defaults gets its answer; one that asks for what isn't there gets a 400 that names it. Nothing is
ignored in silence. When a feature arrives, its row leaves this table and becomes a field of `api/protocol`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pagemill_server.errors import BadRequest

Table = dict[str, tuple[Any, ...]]  # a key's values that ask for nothing; null always does

# vLLM's, of every endpoint that generates.
VLLM: Table = {
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "logits_processors": ([],),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "mm_processor_kwargs": ({},),
    "repetition_detection": (),
}

_SHARED: Table = VLLM | {
    "best_of": (),  # but for n itself, which `protocol` takes
    "length_penalty": (1,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
}

COMPLETIONS = _SHARED | {"suffix": ("",), "add_special_tokens": (True,), "prompt_embeds": ()}

CHAT = _SHARED | {
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "prompt_cache_options": ({"mode": "implicit"},),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
    "echo": (False,),
    "documents": ([],),
    "media_io_kwargs": ({},),
    "thinking_token_budget": (),
}

# vLLM's words beside OpenAI's.
EMBEDDINGS: Table = {
    "messages": (),
    "truncation_side": ("right",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "mm_processor_kwargs": ({},),
}

MESSAGE: Table = {"audio": (), "annotations": ([],), "provider_specific_fields": ({},)}  # the last: litellm's


def without_neutral(body: Mapping[str, Any], table: Mapping[str, tuple[Any, ...]], where: str = "") -> dict[str, Any]:
    """`body` without the table's keys; BadRequest when one asks for something. null always asks for nothing."""
    left = {}
    for key, value in body.items():
        if key not in table:
            left[key] = value
        elif value is not None and not any(_same(value, neutral) for neutral in table[key]):
            allowed = " or ".join([*(json.dumps(neutral) for neutral in table[key]), "null"])
            raise BadRequest(
                f"{where}{key} is not supported by this server with this value; leave it out or send {allowed}.",
                param=where + key,
                code="unsupported_parameter",
            )
    return left


def _same(value: Any, neutral: Any) -> bool:
    """Equal as JSON, where true is not 1 but 1.0 is."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
