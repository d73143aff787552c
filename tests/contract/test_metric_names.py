"""The server's registry holds exactly the names of `pagemill.metrics`, one series a family, all at 0 from the start.

What tells by labels (info, state) is at 1 where it holds.
"""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics as names
from pagemill_server.metrics import Metrics

# Families with a series for each value of one more label.
SPLIT = {
    names.REQUEST_SUCCESS: (names.FINISHED_REASON_LABEL, names.FINISHED_REASONS),
    names.ENGINE_SLEEP_STATE: (names.SLEEP_STATE_LABEL, names.SLEEP_STATES),
    names.ADMISSION_REJECTIONS: (names.REJECTION_LABEL, names.REJECTION_REASONS),
}
# Families with the series of each API key.
BY_KEY = {
    names.KEY_PROMPT_TOKENS: (None, (None,)),
    names.KEY_COMPLETION_TOKENS: (None, (None,)),
    names.KEY_REQUESTS: (names.KEY_OUTCOME_LABEL, names.KEY_OUTCOMES),
    names.RATE_LIMITED: (names.LIMIT_LABEL, names.LIMIT_REASONS),
}
KEYS = ("team-a", "team-b")

# Families with a series for each pair of values of two more labels.
MEMORY_SERIES = {(kind, source) for kind in names.MEMORY_KINDS for source in names.MEMORY_SOURCES}


def families() -> dict[str, Metric]:
    metrics = Metrics("some/model", block_size=16, stats=lambda: None)
    metrics.keys.know(KEYS)
    text = metrics.render().decode()
    return {f.name + ("_total" if f.type == "counter" else ""): f for f in text_string_to_metric_families(text)}


def test_the_names_are_the_contract() -> None:
    assert set(families()) == set(names.ALL)
    assert len(set(names.ALL)) == len(names.ALL)


def test_the_types_are_the_contract() -> None:
    found = families()
    for kind, group in (("gauge", names.GAUGES), ("counter", names.COUNTERS), ("histogram", names.HISTOGRAMS)):
        assert {found[name].type for name in group} == {kind}


def test_every_series_is_there_from_the_start_and_there_is_one_a_family() -> None:
    for name, family in families().items():
        labels = [tuple(sorted(sample.labels.items())) for sample in family.samples if "le" not in sample.labels]
        if name in SPLIT:
            label, values = SPLIT[name]
            assert sorted(sample.labels[label] for sample in family.samples) == sorted(values)
        elif name in BY_KEY:
            label, words = BY_KEY[name]
            found = sorted((sample.labels["key"], sample.labels.get(label or "")) for sample in family.samples)
            assert found == sorted((key, word) for key in KEYS for word in words)
        elif name == names.MEMORY_BYTES:
            assert {(sample.labels["kind"], sample.labels["source"]) for sample in family.samples} == MEMORY_SERIES
            assert len(family.samples) == len(MEMORY_SERIES)
        else:
            assert len(set(labels)) == 1, name
        for sample in family.samples:
            assert sample.labels[names.MODEL_NAME_LABEL] == "some/model"
            assert sample.labels[names.ENGINE_LABEL] == "0"
            holds = name == names.CACHE_CONFIG_INFO or sample.labels.get(names.SLEEP_STATE_LABEL) == "awake"
            assert sample.value == (1 if holds else 0)


def test_the_names_that_readers_of_vllm_ask_for() -> None:
    """Spelled out, so that a name cannot change on both sides at once."""
    gauges = "num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info"
    gauges += " lora_requests_info engine_sleep_state"
    counters = "prefix_cache_queries prefix_cache_hits gpu_prefix_cache_queries gpu_prefix_cache_hits num_preemptions"
    counters += " prompt_tokens generation_tokens request_success corrupted_requests admission_rejections"
    histograms = "time_to_first_token_seconds inter_token_latency_seconds time_per_output_token_seconds"
    histograms += " request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds"
    histograms += " request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds"
    histograms += " request_prompt_tokens request_generation_tokens request_max_num_generation_tokens request_params_n"
    histograms += " request_params_max_tokens iteration_tokens_total request_prefill_kv_computed_tokens"
    wanted = {f"vllm:{name}" for name in f"{gauges} {histograms}".split()}
    wanted |= {f"vllm:{name}_total" for name in counters.split()}
    ours = {"pagemill:memory_bytes", "pagemill:estimated_queue_seconds", "pagemill:host_cache_usage_perc"}
    ours |= {"pagemill:max_num_seqs"}
    ours |= {f"pagemill:{name}_total" for name in ("host_prefix_cache_hits", "offloaded_blocks", "fetched_blocks")}
    ours |= {f"pagemill:key_{name}_total" for name in ("prompt_tokens", "completion_tokens", "requests")}
    ours |= {"pagemill:rate_limited_total"}
    assert set(families()) == wanted | ours


def test_the_endpoint_picker_finds_what_it_reads() -> None:
    """The Gateway API's model-server protocol: these families, each with one series, and the two labels of the last."""
    found = families()
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert len(found[name].samples) == 1
    (info,) = found["vllm:cache_config_info"].samples
    assert (info.labels["block_size"], info.labels["num_gpu_blocks"]) == ("16", "0")
    (lora,) = found["vllm:lora_requests_info"].samples
    assert (lora.labels["max_lora"], lora.labels["running_lora_adapters"]) == ("0", "")
    assert lora.labels["waiting_lora_adapters"] == ""
