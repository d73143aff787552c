"""An encoder deployed: no KV cache, and status, metrics and answers that do not pretend to have one."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from testbed.cluster import Cluster
from testbed.deployments import Deployed, deploy
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

MODEL = "pagemill/tiny-embed"  # which every server image carries
NAMESPACE = "embedding"


@pytest.fixture(scope="module")
def encoder(pagemill: Cluster) -> Iterator[Deployed]:
    pagemill.kubectl("create", "namespace", NAMESPACE)
    deployed = deploy(pagemill, NAMESPACE, "encoder", model=MODEL, task="embed", maxModelLen=None, engine={})
    deployed.await_condition("Ready", "True", seconds=600)
    yield deployed
    pagemill.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def metrics(deployed: Deployed) -> dict[str, float]:
    """The sum of each series' values by name."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{deployed.address()}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if match := re.fullmatch(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})? ([-+.0-9eE]+|NaN|[-+]Inf)", line):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def test_it_embeds_through_its_service(encoder: Deployed) -> None:
    with openai.OpenAI(base_url=f"{encoder.address()}/v1", api_key="none", max_retries=0, timeout=60) as client:
        answer = client.embeddings.create(model=MODEL, input=["a cat", "a kitten"])
        assert len(answer.data) == 2
        assert len(answer.data[0].embedding) > 1
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model=MODEL, prompt="a cat", max_tokens=1)


def test_status_speaks_of_texts_and_not_of_blocks(encoder: Deployed) -> None:
    capacity = eventually("capacity", lambda: encoder.get()["status"].get("capacity"))
    assert capacity["weightsBytes"] > 0
    assert (capacity["kvCacheBytes"], capacity["kvBlocks"], capacity["maxConcurrentTokens"]) == (0, 0, 0)
    assert capacity["maxModelLenThatFits"] > 0
    fit = encoder.condition("MemoryFit")
    assert (fit["status"], fit["reason"]) == ("True", "Fits")
    assert "block" not in fit["message"]
    assert f"longest text that fits has {capacity['maxModelLenThatFits']} tokens" in fit["message"]


def test_queue_and_token_rate_are_there_to_scale_on_and_the_cache_is_never_used(encoder: Deployed) -> None:
    with openai.OpenAI(base_url=f"{encoder.address()}/v1", api_key="none", max_retries=0, timeout=60) as client:
        before = metrics(encoder)
        used = client.embeddings.create(model=MODEL, input=["one text", "and another"]).usage.total_tokens
    after = metrics(encoder)
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == used
    assert {"vllm:num_requests_waiting", "vllm:num_requests_running"} <= set(after)
    assert after.get("vllm:kv_cache_usage_perc", 0.0) == 0.0


def test_it_scales_and_goes_as_any_other(encoder: Deployed) -> None:
    cluster = encoder.cluster
    cluster.kubectl("scale", "llmd/encoder", "-n", NAMESPACE, "--replicas=2")
    eventually("two", lambda: encoder.get()["status"].get("ready") == "2/2" or None, seconds=600)
    assert cluster.kubectl("get", "poddisruptionbudget", "encoder", "-n", NAMESPACE, "-o", "name")
    cluster.kubectl("scale", "llmd/encoder", "-n", NAMESPACE, "--replicas=1")
    eventually("one", lambda: encoder.get()["status"].get("ready") == "1/1" or None, seconds=600)
