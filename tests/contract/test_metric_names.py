"""The server's registry holds exactly the names of `pagemill.metrics`, one series a family, all at 0 from the start."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from pagemill import metrics as names
from pagemill_server.metrics import Metrics


def families() -> dict[str, Metric]:
    text = Metrics("some/model", block_size=16, stats=lambda: None).render().decode()
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
        if name == names.REQUEST_SUCCESS:
            reasons = [sample.labels[names.FINISHED_REASON_LABEL] for sample in family.samples]
            assert sorted(reasons) == sorted(names.FINISHED_REASONS)
        else:
            assert len(set(labels)) == 1, name
        for sample in family.samples:
            assert sample.labels[names.MODEL_NAME_LABEL] == "some/model"
            assert sample.labels[names.ENGINE_LABEL] == "0"
            assert sample.value == (1 if name == names.CACHE_CONFIG_INFO else 0)


def test_the_endpoint_picker_finds_what_it_reads() -> None:
    """The Gateway API's model-server protocol: these families, each with one series, and the two labels of the last."""
    found = families()
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert len(found[name].samples) == 1
    (info,) = found["vllm:cache_config_info"].samples
    assert (info.labels["block_size"], info.labels["num_gpu_blocks"]) == ("16", "0")
