"""What would be run wrongly, by the name that its users know it by. Asked by `config_reading` before anything else is read.

A decoder that isn't named here and that the server doesn't compute itself goes through transformers; there a first step on random
tokens (`model/transformers_probe` of the server) catches what a config can't tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagemill import rope_reading
from pagemill.native_families import FAMILIES
from pagemill.rope_reading import FULL, ROPE_KINDS, SLIDING, VARYING_KINDS
from pagemill.transformers_names import DECODERS

_LATENT = "it has multi-head latent attention (MLA), which is not supported"
_RECURRENT = "it has layers that keep a state (state space, convolution, linear attention), which is not supported"
_SINKS = "it has attention sinks, which are not supported"
_ALIBI = "it has linear position biases (ALiBi), which are not supported"
_SEES = "it reads images or sound, and only text is supported"

# Where the name alone tells. Others of these kinds tell by their fields.
_BY_NAME: Mapping[str, str] = {
    "GptOssForCausalLM": _SINKS,
    "MiMoV2FlashForCausalLM": _SINKS,
    "BloomForCausalLM": _ALIBI,
    "MptForCausalLM": _ALIBI,
    "LongcatFlashForCausalLM": _LATENT,
    **dict.fromkeys(
        (
            "MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM", "FalconH1ForCausalLM", "JambaForCausalLM",
            "BambaForCausalLM", "ZambaForCausalLM", "Zamba2ForCausalLM", "NemotronHForCausalLM", "GraniteMoeHybridForCausalLM",
            "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "KimiLinearForCausalLM",
            "MiniMaxForCausalLM", "MiniMaxText01ForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "OlmoHybridForCausalLM",
            "BailingHybridForCausalLM", "RecurrentGemmaForCausalLM", "RwkvForCausalLM", "Rwkv5ForCausalLM",
            "Rwkv6ForCausalLM", "Rwkv7ForCausalLM", "xLSTMForCausalLM",
        ),
        _RECURRENT,
    ),
}  # fmt: skip
_BY_FIELD: tuple[tuple[tuple[str, ...], str], ...] = (
    (("kv_lora_rank",), _LATENT),
    (
        (
            "ssm_cfg", "mamba_d_state", "ssm_state_size", "state_size", "linear_num_key_heads", "linear_attn_config",
            "conv_L_cache", "hybrid_override_pattern", "layers_block_type", "lru_width", "attn_type_list",
        ),
        _RECURRENT,
    ),
    (("vision_config", "audio_config", "speech_config"), _SEES),
    (("alibi",), _ALIBI),
    (("attn_logit_softcapping", "attn_logit_softcap"), "it caps its attention scores (soft-capping), which is not supported"),
    (
        ("index_topk", "index_topk_blocks", "index_head_dim", "sparse_attention_config"),
        "it has sparse attention, which is not supported",
    ),
    (("attention_chunk_size",), "it has chunked attention, which is not supported"),
    (("use_bidirectional_attention",), "its tokens see what comes after them: it is no decoder"),
)  # fmt: skip


def refusal(architecture: str, raw: Mapping[str, Any]) -> str | None:
    """Why a model of this config can't be served, or None. Raises what damaged values raise."""
    if scheme := raw.get("quantization_config") or raw.get("compression_config"):
        method = scheme.get("quant_method", "unknown") if isinstance(scheme, dict) else "unknown"
        return f"its weights are quantised by {method}, which is not supported: use an unquantised copy"
    if why := _BY_NAME.get(architecture):
        return why
    if raw.get("is_encoder_decoder"):
        return "it is an encoder-decoder, and only decoders are supported"
    for fields, why in _BY_FIELD:
        if any(raw.get(name) for name in fields):
            return why
    if raw.get("is_causal") is False:
        return "its tokens see what comes after them: it is no decoder"
    if others := sorted({str(kind) for kind in raw.get("layer_types") or ()} - {FULL, SLIDING}):
        return f"it has layers of the type {others[0]}, which is not supported"
    if architecture in FAMILIES:
        return _native(architecture, raw)
    return _through_transformers(architecture, raw)


def _native(architecture: str, raw: Mapping[str, Any]) -> str | None:
    activations = FAMILIES[architecture].activations
    raw = {**FAMILIES[architecture].defaults, **raw}
    activation = raw.get("hidden_activation") or raw.get("hidden_act") or "silu"
    if activation not in activations:
        return f"its activation {activation} is not supported"
    for kind in rope_reading.kinds(raw):
        if kind not in ("default", *ROPE_KINDS):
            return f"its RoPE scaling {kind} is not supported (these are: {', '.join(ROPE_KINDS)})"
    local = rope_reading.kind(rope_reading.parameters(raw, SLIDING))
    if local != "default":
        return f"its RoPE scaling {local} of sliding layers is not supported"
    partial = rope_reading.parameters(raw).get("partial_rotary_factor") or raw.get("partial_rotary_factor")
    if partial not in (None, 1, 1.0):
        return f"its rotary positions turn a part ({partial}) of each head only, which is not supported"
    if raw.get("final_logit_softcapping"):
        return "it caps its logits (soft-capping), which is not supported"
    return None


def _through_transformers(architecture: str, raw: Mapping[str, Any]) -> str | None:
    if architecture.endswith("ForConditionalGeneration"):
        return f"its architecture is {architecture}: encoder-decoders and models that read images or sound are not supported"
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        known = ", ".join(FAMILIES)
        return f"its architecture is {architecture}; these can be served: {known}, and decoders that transformers knows"
    if raw.get("auto_map") and architecture not in DECODERS:
        return f"{architecture} is code of its own repository (remote code), which is never run"
    for kind in rope_reading.kinds(raw):
        if kind in VARYING_KINDS:
            return f"its RoPE scaling {kind} depends on what else runs, which is not supported"
    return None
