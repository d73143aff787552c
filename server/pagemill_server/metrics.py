"""The server's Prometheus registry: the names of `pagemill.metrics`, each series at 0 from the start.

Gauges and engine counters are read from the newest EngineStats when someone scrapes, so they are right after an abort; what
concerns one request is observed when it happens (`request_timer`). Every interval comes from one process's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pagemill import metrics as names
from pagemill_server.engine.ports import ModelRunner
from pagemill_server.engine.request import EngineStats, FinishReason
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.key_metrics import KeyMetrics
from pagemill_server.memory import StartMemory
from pagemill_server.recent import Recent

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a family would confuse readers that take the first one they see

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_SECONDS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))  # 1 … 500,000
_STEP_TOKENS = tuple(2**power for power in range(15))  # 1 … 16,384
_SEQUENCES = (1, 2, 5, 10, 20)

_BUCKETS: dict[str, Sequence[float]] = {
    names.TIME_TO_FIRST_TOKEN: _FIRST_TOKEN_SECONDS,
    names.INTER_TOKEN_LATENCY: _TOKEN_SECONDS,
    names.INTER_TOKEN_LATENCY_OLD: _TOKEN_SECONDS,
    names.REQUEST_TIME_PER_OUTPUT_TOKEN: _TOKEN_SECONDS,
    names.E2E_LATENCY: _REQUEST_SECONDS,
    names.QUEUE_TIME: _REQUEST_SECONDS,
    names.INFERENCE_TIME: _REQUEST_SECONDS,
    names.PREFILL_TIME: _REQUEST_SECONDS,
    names.DECODE_TIME: _REQUEST_SECONDS,
    names.REQUEST_PROMPT_TOKENS: _TOKENS,
    names.REQUEST_PREFILL_COMPUTED_TOKENS: _TOKENS,
    names.REQUEST_GENERATION_TOKENS: _TOKENS,
    names.REQUEST_MAX_GENERATION_TOKENS: _TOKENS,
    names.REQUEST_N: _SEQUENCES,
    names.REQUEST_MAX_TOKENS: _TOKENS,
    names.ITERATION_TOKENS: _STEP_TOKENS,
}

_FROM_STATS: dict[str, Callable[[EngineStats], float]] = {
    names.RUNNING: lambda stats: stats.num_running,
    names.WAITING: lambda stats: stats.num_waiting,
    names.MAX_NUM_SEQS: lambda stats: stats.places,
    names.KV_CACHE_USAGE: lambda stats: stats.kv_cache_usage,
    names.KV_CACHE_USAGE_OLD: lambda stats: stats.kv_cache_usage,
    names.PREFIX_CACHE_QUERIES: lambda stats: stats.prefix_cache_queries,
    names.PREFIX_CACHE_HITS: lambda stats: stats.prefix_cache_hits,
    names.PREFIX_CACHE_QUERIES_OLD: lambda stats: stats.prefix_cache_queries,
    names.PREFIX_CACHE_HITS_OLD: lambda stats: stats.prefix_cache_hits,
    names.HOST_CACHE_USAGE: lambda stats: stats.host_blocks_used / max(1, stats.num_host_blocks),
    names.HOST_CACHE_HITS: lambda stats: stats.host_hits,
    names.OFFLOADED_BLOCKS: lambda stats: stats.offloaded_blocks,
    names.FETCHED_BLOCKS: lambda stats: stats.fetched_blocks,
    names.PREEMPTIONS: lambda stats: stats.num_preemptions,
    names.PROMPT_TOKENS: lambda stats: stats.prompt_tokens,
    names.GENERATION_TOKENS: lambda stats: stats.generation_tokens,
    names.ESTIMATED_QUEUE_SECONDS: lambda stats: stats.queue_seconds,
}

_LABELS = (names.MODEL_NAME_LABEL, names.ENGINE_LABEL)


class Metrics:
    """One a process. `stats` and `memory` are asked at every scrape and give None until there is an engine."""

    def __init__(
        self,
        model_name: str,
        block_size: int,
        stats: Callable[[], EngineStats | None],
        memory: Callable[[], StartMemory | None] = lambda: None,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.recent = Recent((names.TIME_TO_FIRST_TOKEN, names.INTER_TOKEN_LATENCY))
        self._labels = (model_name, "0")
        self.registry.register(_EngineCollector(self._labels, block_size, stats))
        self.registry.register(_MemoryCollector(self._labels, memory))
        self._histograms: dict[str, Histogram] = {}
        for name, buckets in _BUCKETS.items():
            family = Histogram(name, _help(name), _LABELS, registry=self.registry, buckets=buckets)
            self._histograms[name] = family.labels(*self._labels)
        success = Counter(
            names.REQUEST_SUCCESS,
            _help(names.REQUEST_SUCCESS),
            (*_LABELS, names.FINISHED_REASON_LABEL),
            registry=self.registry,
        )
        self._finished = {reason: success.labels(*self._labels, reason) for reason in names.FINISHED_REASONS}
        corrupted = Counter(names.CORRUPTED_REQUESTS, _help(names.CORRUPTED_REQUESTS), _LABELS, registry=self.registry)
        self._corrupted = corrupted.labels(*self._labels)
        rejected = Counter(
            names.ADMISSION_REJECTIONS,
            _help(names.ADMISSION_REJECTIONS),
            (*_LABELS, names.REJECTION_LABEL),
            registry=self.registry,
        )
        self.keys = KeyMetrics(self.registry, self._labels)
        self._rejected = {bound: rejected.labels(*self._labels, bound) for bound in names.REJECTION_REASONS}

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)

    def observe(self, name: str, value: float) -> None:
        """One value for the histogram of that name; from any thread."""
        self._histograms[name].observe(value)
        self.recent.add(name, value)

    def count_finished(self, reason: FinishReason) -> None:
        self._finished[reason.value].inc()

    def count_rejected(self, bound: str) -> None:
        """A request was refused because too much waits; `bound` is of REJECTION_REASONS."""
        self._rejected[bound].inc()

    def count_corrupted(self) -> None:
        self._corrupted.inc()


class MeteredRunner:
    """A ModelRunner that counts the tokens of each step on its way through; on the engine's thread."""

    def __init__(self, runner: ModelRunner, metrics: Metrics) -> None:
        self._runner = runner
        self._metrics = metrics

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        self._metrics.observe(names.ITERATION_TOKENS, output.num_tokens)
        return self._runner.run(output)


class _EngineCollector(Collector):
    """Reads EngineStats at the moment of a scrape."""

    def __init__(self, labels: tuple[str, str], block_size: int, stats: Callable[[], EngineStats | None]) -> None:
        self._labels = labels
        self._block_size = block_size
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, read in _FROM_STATS.items():
            family: GaugeMetricFamily | CounterMetricFamily
            kind = CounterMetricFamily if name in names.COUNTERS else GaugeMetricFamily
            family = kind(name, _help(name), labels=_LABELS)
            family.add_metric(self._labels, 0.0 if stats is None else float(read(stats)))
            yield family
        info = GaugeMetricFamily(names.CACHE_CONFIG_INFO, _help(names.CACHE_CONFIG_INFO), labels=_INFO_LABELS)
        blocks = "0" if stats is None else str(stats.num_blocks)
        info.add_metric((*self._labels, str(self._block_size), blocks), 1.0)
        yield info
        yield from self._constants()

    def _constants(self) -> Iterator[Metric]:
        """What readers of vLLM's metrics miss where it is absent, of an engine without adapters that never sleeps."""
        lora = GaugeMetricFamily(names.LORA_REQUESTS_INFO, _help(names.LORA_REQUESTS_INFO), labels=_LORA_LABELS)
        lora.add_metric((*self._labels, "0", "", ""), 0.0)
        yield lora
        labels = (*_LABELS, names.SLEEP_STATE_LABEL)
        sleep = GaugeMetricFamily(names.ENGINE_SLEEP_STATE, _help(names.ENGINE_SLEEP_STATE), labels=labels)
        for state in names.SLEEP_STATES:
            sleep.add_metric((*self._labels, state), float(state == names.SLEEP_STATES[0]))
        yield sleep

    def describe(self) -> Iterable[Metric]:
        return ()


class _MemoryCollector(Collector):
    """What the start predicted and measured."""

    def __init__(self, labels: tuple[str, str], memory: Callable[[], StartMemory | None]) -> None:
        self._labels, self._memory = labels, memory

    def collect(self) -> Iterator[Metric]:
        memory = self._memory()
        labels = (*_LABELS, names.MEMORY_KIND_LABEL, names.MEMORY_SOURCE_LABEL)
        family = GaugeMetricFamily(names.MEMORY_BYTES, _help(names.MEMORY_BYTES), labels=labels)
        for source in names.MEMORY_SOURCES:
            use = None if memory is None else getattr(memory, source)
            for kind in names.MEMORY_KINDS:
                family.add_metric((*self._labels, kind, source), float(getattr(use, kind, None) or 0))
        yield family

    def describe(self) -> Iterable[Metric]:
        return ()


_INFO_LABELS = (*_LABELS, "block_size", "num_gpu_blocks")
_LORA_LABELS = (*_LABELS, "max_lora", "running_lora_adapters", "waiting_lora_adapters")


def _help(name: str) -> str:
    return name.partition(":")[2].removesuffix("_total").replace("_", " ")
