"""/metrics of a real server: what it says before, during and after requests."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics as names
from tests.server.api.running import NAME, Running, serving, settings_for, until


def samples(server: Running) -> dict[str, float]:
    """By name, with the labels that tell series of a family apart; model_name and engine are checked and left out."""
    with server.client() as client:
        response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("model_name"), labels.pop("engine")) == (NAME, "0")
            key = sample.name + (
                "{" + ",".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}" if labels else ""
            )
            assert key not in found
            found[key] = sample.value
    return found


def test_requests_are_counted_and_timed(tiny: Any) -> None:
    with serving(tiny) as server:
        start = samples(server)
        told_by_labels = (names.CACHE_CONFIG_INFO, names.ENGINE_SLEEP_STATE, names.MEMORY_BYTES)
        assert start.pop(names.MAX_NUM_SEQS) == 16, "which is a setting"
        assert {value for key, value in start.items() if not key.startswith(told_by_labels)} == {0}
        with server.client() as client:
            body: dict[str, Any] = {"prompt": ["abc", "defg"], "max_tokens": 5, "ignore_eos": True, "seed": 1}
            assert client.post("/v1/completions", json=body).status_code == 200
            assert client.post("/v1/completions", json=body | {"prompt": ""}).status_code == 400
        server.wait_idle()
        end = samples(server)
    assert end[names.PROMPT_TOKENS] == 7
    assert end[names.GENERATION_TOKENS] == 10
    assert end[f'{names.REQUEST_SUCCESS}{{finished_reason="length"}}'] == 2
    for name in (
        names.TIME_TO_FIRST_TOKEN,
        names.E2E_LATENCY,
        names.QUEUE_TIME,
        names.PREFILL_TIME,
        names.DECODE_TIME,
        names.INFERENCE_TIME,
        names.REQUEST_TIME_PER_OUTPUT_TOKEN,
        names.REQUEST_N,
    ):
        assert end[f"{name}_count"] == 2, name
        assert end[f"{name}_sum"] >= 0
    assert end[f"{names.INTER_TOKEN_LATENCY}_count"] == end[f"{names.INTER_TOKEN_LATENCY_OLD}_count"] == 8
    assert end[f"{names.REQUEST_PROMPT_TOKENS}_sum"] == end[f"{names.REQUEST_PREFILL_COMPUTED_TOKENS}_sum"] == 7
    assert end[f"{names.REQUEST_GENERATION_TOKENS}_sum"] == end[f"{names.REQUEST_MAX_TOKENS}_sum"] == 10
    assert end[f"{names.ITERATION_TOKENS}_sum"] == 7 + 10 - 2  # each prompt's last token brings the first of the answer


def test_gauges_follow_what_runs(idle_server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with idle_server.client() as client, client.stream("POST", "/v1/completions", json=body):
        until(lambda: samples(idle_server)[names.KV_CACHE_USAGE] > 0)
        during = samples(idle_server)
        assert during[names.RUNNING] == 1
        assert during[names.KV_CACHE_USAGE_OLD] > 0
    idle_server.wait_idle()
    assert samples(idle_server)[names.KV_CACHE_USAGE] == 0


def test_cache_config(idle_server: Running) -> None:
    blocks = idle_server.model.limits.num_blocks
    assert samples(idle_server)[f'{names.CACHE_CONFIG_INFO}{{block_size="16",num_gpu_blocks="{blocks}"}}'] == 1


def test_what_moves_between_the_tiers_is_counted(tiny: Any) -> None:
    settings = settings_for(tiny, memory_bytes=150_000, offloading_bytes=1 << 20)
    with serving(tiny, settings=settings) as server, server.client() as client:

        def cached(prompt: list[int]) -> int:
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
            usage = client.post("/v1/completions", json=body).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        prompts = [[letter] * 200 for letter in range(6)]  # of which the device holds one
        assert [cached(prompt) for prompt in prompts] == [0] * 6
        hits = cached(prompts[0])
        server.wait_idle()
        end = samples(server)
    assert hits >= 160
    assert end[names.HOST_CACHE_HITS] == end[names.PREFIX_CACHE_HITS] == hits
    assert end[names.FETCHED_BLOCKS] == hits / 16
    assert end[names.OFFLOADED_BLOCKS] >= 5 * 6
    assert 0 < end[names.HOST_CACHE_USAGE] <= 1
