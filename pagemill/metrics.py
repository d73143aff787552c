"""The names of the metrics that a server exposes on /metrics. Standard library only, no logic.

The server's registry emits exactly these, and scaling rules, dashboards and monitors of the operator name them through these
constants; a contract test compares both. They are vLLM's names (https://docs.vllm.ai/en/stable/usage/metrics.html), because
routers, autoscalers and dashboards read those. Every series is there from the start of the process, one a pod and family.
"""

from __future__ import annotations

from typing import Final

MODEL_NAME_LABEL: Final = "model_name"
ENGINE_LABEL: Final = "engine"
FINISHED_REASON_LABEL: Final = "finished_reason"
FINISHED_REASONS: Final = ("stop", "length", "abort", "error")
SLEEP_STATE_LABEL: Final = "sleep_state"
SLEEP_STATES: Final = ("awake", "weights_offloaded", "discard_all")
REJECTION_LABEL: Final = "reason"
REJECTION_REASONS: Final = ("max_num_queued_reqs", "max_num_queued_tokens")  # the bound that was reached
KEY_LABEL: Final = "key"  # an API key's name, never the key
KEY_OUTCOME_LABEL: Final = "outcome"
KEY_OUTCOMES: Final = ("success", "invalid", "refused", "failed", "aborted")
LIMIT_LABEL: Final = "reason"
LIMIT_REASONS: Final = ("requests", "tokens", "concurrency")  # the limit of a key that was reached
MEMORY_KIND_LABEL: Final = "kind"
MEMORY_KINDS: Final = ("weights", "activation", "kv_cache")
MEMORY_SOURCE_LABEL: Final = "source"
MEMORY_SOURCES: Final = ("predicted", "measured")

# Gauges
RUNNING: Final = "vllm:num_requests_running"  # sequences
WAITING: Final = "vllm:num_requests_waiting"  # sequences, preempted ones included
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"  # a fraction 0..1 despite its name
KV_CACHE_USAGE_OLD: Final = "vllm:gpu_cache_usage_perc"  # the name that older routers and dashboards read
CACHE_CONFIG_INFO: Final = "vllm:cache_config_info"  # 1, with the labels block_size and num_gpu_blocks
LORA_REQUESTS_INFO: Final = "vllm:lora_requests_info"  # seconds since 1970, with max_lora and two lists of adapters
ENGINE_SLEEP_STATE: Final = "vllm:engine_sleep_state"  # by sleep_state: 1 for the one that holds
MEMORY_BYTES: Final = (
    "pagemill:memory_bytes"  # by kind and source: how the start divided the memory; 0 where unmeasured
)
ESTIMATED_QUEUE_SECONDS: Final = "pagemill:estimated_queue_seconds"  # until a request that came now would first run
MAX_NUM_SEQS: Final = "pagemill:max_num_seqs"  # sequences that a step may hold, so RUNNING's limit
HOST_CACHE_USAGE: Final = "pagemill:host_cache_usage_perc"  # a fraction 0..1 of the host tier's blocks; 0 without one

# Counters, as exposed
PREFIX_CACHE_QUERIES: Final = "vllm:prefix_cache_queries_total"  # tokens
PREFIX_CACHE_HITS: Final = "vllm:prefix_cache_hits_total"  # tokens
PREFIX_CACHE_QUERIES_OLD: Final = "vllm:gpu_prefix_cache_queries_total"
PREFIX_CACHE_HITS_OLD: Final = "vllm:gpu_prefix_cache_hits_total"
HOST_CACHE_HITS: Final = "pagemill:host_prefix_cache_hits_total"  # tokens of the hits that came from the host tier
OFFLOADED_BLOCKS: Final = "pagemill:offloaded_blocks_total"  # copied from the device to the host tier
FETCHED_BLOCKS: Final = "pagemill:fetched_blocks_total"  # copied from the host tier to the device
PREEMPTIONS: Final = "vllm:num_preemptions_total"
PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
GENERATION_TOKENS: Final = "vllm:generation_tokens_total"
REQUEST_SUCCESS: Final = "vllm:request_success_total"  # by finished_reason
CORRUPTED_REQUESTS: Final = "vllm:corrupted_requests_total"  # ended because their logits were not finite
ADMISSION_REJECTIONS: Final = "vllm:admission_rejections_total"  # by reason: refused because too much waits

KEY_PROMPT_TOKENS: Final = "pagemill:key_prompt_tokens_total"  # by key, as each request ends
KEY_COMPLETION_TOKENS: Final = "pagemill:key_completion_tokens_total"
KEY_REQUESTS: Final = "pagemill:key_requests_total"  # by key and outcome: requests to the model
RATE_LIMITED: Final = "pagemill:rate_limited_total"  # by key and reason: refused by a limit of the key's own

# Histograms; seconds
TIME_TO_FIRST_TOKEN: Final = "vllm:time_to_first_token_seconds"
INTER_TOKEN_LATENCY: Final = "vllm:inter_token_latency_seconds"
INTER_TOKEN_LATENCY_OLD: Final = "vllm:time_per_output_token_seconds"
REQUEST_TIME_PER_OUTPUT_TOKEN: Final = "vllm:request_time_per_output_token_seconds"  # a request's mean
E2E_LATENCY: Final = "vllm:e2e_request_latency_seconds"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
INFERENCE_TIME: Final = "vllm:request_inference_time_seconds"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"
DECODE_TIME: Final = "vllm:request_decode_time_seconds"
# Histograms; tokens or counts
REQUEST_PROMPT_TOKENS: Final = "vllm:request_prompt_tokens"
REQUEST_PREFILL_COMPUTED_TOKENS: Final = "vllm:request_prefill_kv_computed_tokens"
REQUEST_GENERATION_TOKENS: Final = "vllm:request_generation_tokens"
REQUEST_MAX_GENERATION_TOKENS: Final = "vllm:request_max_num_generation_tokens"
REQUEST_N: Final = "vllm:request_params_n"
REQUEST_MAX_TOKENS: Final = "vllm:request_params_max_tokens"
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"  # a histogram in spite of its name: tokens in one step

GAUGES: Final = (
    RUNNING,
    WAITING,
    KV_CACHE_USAGE,
    KV_CACHE_USAGE_OLD,
    CACHE_CONFIG_INFO,
    LORA_REQUESTS_INFO,
    ENGINE_SLEEP_STATE,
    MEMORY_BYTES,
    ESTIMATED_QUEUE_SECONDS,
    MAX_NUM_SEQS,
    HOST_CACHE_USAGE,
)
COUNTERS: Final = (
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    PREFIX_CACHE_QUERIES_OLD,
    PREFIX_CACHE_HITS_OLD,
    HOST_CACHE_HITS,
    OFFLOADED_BLOCKS,
    FETCHED_BLOCKS,
    PREEMPTIONS,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    REQUEST_SUCCESS,
    CORRUPTED_REQUESTS,
    ADMISSION_REJECTIONS,
    KEY_PROMPT_TOKENS,
    KEY_COMPLETION_TOKENS,
    KEY_REQUESTS,
    RATE_LIMITED,
)
HISTOGRAMS: Final = (
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    INTER_TOKEN_LATENCY_OLD,
    REQUEST_TIME_PER_OUTPUT_TOKEN,
    E2E_LATENCY,
    QUEUE_TIME,
    INFERENCE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_PREFILL_COMPUTED_TOKENS,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_GENERATION_TOKENS,
    REQUEST_N,
    REQUEST_MAX_TOKENS,
    ITERATION_TOKENS,
)
ALL: Final = GAUGES + COUNTERS + HISTOGRAMS
