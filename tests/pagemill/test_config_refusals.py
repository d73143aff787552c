"""What would be run wrongly is refused by name, from its config alone."""

from pathlib import Path
from typing import Any

import pytest

from pagemill.config_reading import from_hugging_face
from pagemill.failures import FailureReason, PagemillError
from pagemill.native_families import FAMILIES
from tests.pagemill.sample_models import config_json


def refusal(**overrides: Any) -> str:
    with pytest.raises(PagemillError, match="/models/x") as caught:
        from_hugging_face(config_json(**overrides), {}, Path("/models/x"))
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "fields", "named"),
    [
        ("DeepseekV2ForCausalLM", {"kv_lora_rank": 512}, "MLA"),
        ("DeepseekV3ForCausalLM", {"kv_lora_rank": 512, "auto_map": {"AutoModel": "x"}}, "MLA"),
        ("MiniCPM3ForCausalLM", {"kv_lora_rank": 256}, "MLA"),
        ("LongcatFlashForCausalLM", {}, "MLA"),
        ("MambaForCausalLM", {"state_size": 16}, "state space"),
        ("Mamba2ForCausalLM", {}, "state space"),
        ("JambaForCausalLM", {"mamba_d_state": 16}, "state space"),
        ("FalconH1ForCausalLM", {}, "state space"),
        ("Qwen3NextForCausalLM", {"layer_types": ["linear_attention", "full_attention"]}, "linear attention"),
        ("SomethingNewForCausalLM", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ("SomethingNewForCausalLM", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("Qwen3ForCausalLM", {"layer_types": ["conv", "full_attention"]}, "type conv"),
        ("RwkvForCausalLM", {}, "keep a state"),
        ("RecurrentGemmaForCausalLM", {"lru_width": 64}, "keep a state"),
        ("Lfm2ForCausalLM", {"conv_L_cache": 3}, "convolution"),
        ("NemotronHForCausalLM", {"hybrid_override_pattern": "M-M*"}, "state space"),
        ("GptOssForCausalLM", {"sliding_window": 128}, "attention sinks"),
        ("MptForCausalLM", {}, "ALiBi"),
        ("FalconForCausalLM", {"alibi": True}, "ALiBi"),
        ("Gemma2ForCausalLM", {"attn_logit_softcapping": 50.0}, "soft-capping"),
        ("Gemma3ForCausalLM", {"hidden_act": None, "attn_logit_softcapping": 50.0}, "soft-capping"),
        ("Gemma3ForCausalLM", {"hidden_act": None, "final_logit_softcapping": 30.0}, "soft-capping"),
        ("Gemma3ForCausalLM", {"use_bidirectional_attention": True}, "no decoder"),
        ("LlamaForCausalLM", {"is_causal": False}, "no decoder"),
        ("DeepseekV32ForCausalLM", {"index_topk": 2048}, "sparse attention"),
        ("MiniMaxM3VLForCausalLM", {"index_topk_blocks": 16}, "sparse attention"),
        ("Llama4ForCausalLM", {"attention_chunk_size": 8192}, "chunked attention"),
        ("T5ForConditionalGeneration", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("BartForCausalLM", {"is_encoder_decoder": True}, "encoder-decoder"),
        ("Qwen2VLForConditionalGeneration", {}, "images or sound"),
        ("LlavaForConditionalGeneration", {"vision_config": {"hidden_size": 8}}, "images or sound"),
        ("Phi4MultimodalForCausalLM", {"audio_config": {"hidden_size": 8}}, "images or sound"),
        ("BaichuanForCausalLM", {"auto_map": {"AutoModelForCausalLM": "modeling.Baichuan"}}, "remote code"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "longrope"}}, "longrope"),
        ("Phi3ForCausalLM", {"rope_scaling": {"type": "su"}}, "su"),
        ("StableLmForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("LlamaForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, "gelu"),
        ("Gemma3ForCausalLM", {"hidden_activation": "relu"}, "relu"),
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "0.5"),
        (
            "Gemma3ForCausalLM",
            {"hidden_act": None, "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "linear of sliding layers",
        ),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "awq"}}, "awq"),
        ("Qwen3ForCausalLM", {"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ("Phi3ForCausalLM", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ("LlamaForCausalLM", {"quantization_config": "int4"}, "quantised"),
        ("ViTForImageClassification", {}, "ViTForImageClassification"),
    ],
)
def test_what_would_be_run_wrongly_is_refused_by_name(architecture: str, fields: dict[str, Any], named: str) -> None:
    assert named in refusal(architectures=[architecture], **fields)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"architectures": None, "model_type": "deberta"}, "deberta"),
        ({"architectures": [], "model_type": "t5"}, "t5"),
        ({"architectures": {"a": 1}, "model_type": None}, "unknown"),
        ({"architectures": 5}, "llama"),
        ({"architectures": [["x"]]}, "x"),
    ],
)
def test_what_has_no_name_of_a_decoder_is_refused(overrides: dict[str, Any], named: str) -> None:
    message = refusal(**overrides)
    assert named in message
    assert all(name in message for name in FAMILIES)


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("Phi3ForCausalLM", {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
        ("SomethingNewForCausalLM", {}),
        ("GPTNeoXForCausalLM", {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e4}}),
        ("FalconForCausalLM", {"alibi": False, "hidden_act": "gelu"}),
        ("StableLmForCausalLM", {"rope_scaling": {"type": "yarn", "factor": 2.0}}),
        ("Olmo3ForCausalLM", {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}),
    ],
)
def test_other_decoders_go_through_transformers(architecture: str, fields: dict[str, Any]) -> None:
    config = from_hugging_face(config_json(architectures=[architecture], **fields), {}, Path("x"))
    assert not config.native
