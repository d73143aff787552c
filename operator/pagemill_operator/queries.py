"""Every PromQL query that scaling asks, and the names of the signals that they answer. Pure.

`signal_queries` give one series a pod, so that a pod that is missing or scraped twice is seen; the operator asks them.
`keda_queries` and `activation_query` give one series in all, which is what KEDA takes. All need the labels `namespace` and `pod`
of the usual pod discovery. Whatever is asked over time is asked over two minutes: four samples of a scrape every 30 s.
"""

from __future__ import annotations

from typing import Final

from pagemill import metrics
from pagemill_operator.spec_scaling import Targets

# Signals, as spec.autoscaling.targets names them, and what the running ratio is made of.
KV_CACHE_USAGE: Final = "kvCacheUsage"
WAITING: Final = "waitingRequests"
RUNNING_RATIO: Final = "runningRatio"
TTFT: Final = "ttftSeconds"
PREEMPTIONS: Final = "preemptionsPerSecond"
RUNNING: Final = "runningRequests"
MAX_RUNNING: Final = "maxRunningRequests"
SCRAPED: Final = "scraped"  # when Prometheus last scraped the pod, in seconds since 1970

# What a replica's signals are read from, in its own page as in Prometheus.
GAUGES: Final = {
    KV_CACHE_USAGE: metrics.KV_CACHE_USAGE,
    WAITING: metrics.WAITING,
    RUNNING: metrics.RUNNING,
    MAX_RUNNING: metrics.MAX_NUM_SEQS,
}
TTFT_QUANTILE: Final = 0.95
GATEWAY_WAITING: Final = "pagemill_gateway_waiting_requests"
GATEWAY_READY: Final = "pagemill_gateway_ready_replicas"

# KEDA divides a sum over replicas by the target (AverageValue). This one is the deployment's: it compares it (Value).
COMPARED: Final = frozenset({TTFT})

_WINDOW = "2m"
_LONGEST_GENERATED = 58  # characters that Kubernetes leaves of a pod's name before its five random ones
_LONGEST_HASH = 10


def signal_queries(namespace: str, name: str) -> dict[str, str]:
    """By signal. Prometheus leaves out of an instant what the last scrape did not find, and SCRAPED tells how old the rest is."""
    pods = _pods(namespace, name)
    gauges = {signal: metric + pods for signal, metric in GAUGES.items()}
    return gauges | {
        SCRAPED: f"timestamp({metrics.RUNNING}{pods})",
        PREEMPTIONS: f"rate({metrics.PREEMPTIONS}{pods}[{_WINDOW}])",
        TTFT: _ttft(pods),
    }


def keda_queries(namespace: str, name: str, targets: Targets) -> dict[str, str]:
    """By signal that has a target. A pod scraped twice counts once. One that falls silent keeps its last word for two minutes, so
    that a scrape that failed takes no replica away; one that is gone keeps none, or the load that went on elsewhere would count
    twice and ask for it anew. Where no pod is scraped there is no series, which is an error to KEDA."""
    pods = _pods(namespace, name)

    def each(metric: str) -> str:
        return f"(max by (pod) (last_over_time({metric}{pods}[{_WINDOW}])) and on (pod) up{pods})"

    queries = {
        KV_CACHE_USAGE: f"sum({each(metrics.KV_CACHE_USAGE)})",
        WAITING: f"sum({each(metrics.WAITING)})",
        RUNNING_RATIO: f"sum({each(metrics.RUNNING)} / ({each(metrics.MAX_NUM_SEQS)} > 0))",
    }
    if targets.ttft_seconds is not None:
        # Nobody got a first token: NaN, which would be an error for as long as the deployment is idle.
        asked = f"sum(rate({metrics.TIME_TO_FIRST_TOKEN}_count{pods}[{_WINDOW}]))"
        queries[TTFT] = f"({_ttft(pods)} >= 0) or 0 * {asked}"
    if targets.preemptions_per_second is not None:
        queries[PREEMPTIONS] = f"sum(max by (pod) (rate({metrics.PREEMPTIONS}{pods}[{_WINDOW}])))"
    return queries


def activation_query(namespace: str, name: str) -> str:
    """Requests that wait at the gateway for a first replica. No series where no gateway is scraped."""
    return f'sum({GATEWAY_WAITING}{{namespace="{namespace}",deployment="{name}"}})'


def silent_query(namespace: str, name: str) -> str:
    """0 while every pod is scraped; no series, which is an error to KEDA and holds what there is, while one does not answer.

    Not a number of replicas: pods that are on their way out, and fall silent at the end, would be counted and asked for anew.
    """
    return f"0 * (min(max by (pod) (up{_pods(namespace, name)})) == 1)"


def asleep_query(namespace: str, name: str) -> str:
    """0 where no gateway knows of a replica that is ready; else, and where none is scraped, no series."""
    return f'max({GATEWAY_READY}{{namespace="{namespace}",deployment="{name}"}}) == 0'


def _ttft(pods: str) -> str:
    rates = f"rate({metrics.TIME_TO_FIRST_TOKEN}_bucket{pods}[{_WINDOW}])"
    return f"histogram_quantile({TTFT_QUANTILE}, sum by (le) ({rates}))"


def _pods(namespace: str, name: str) -> str:
    """The selector of one deployment's pods and of nobody else's: NAME-HASH-RANDOM, where neither part has a dash.

    Kubernetes cuts NAME-HASH- to 58 characters: of a long name's pods the hash is shorter and the second dash is gone.
    """
    part = "[a-z0-9]"
    room = _LONGEST_GENERATED - len(f"{name}-")
    shapes = [f"{part}{{1,{min(_LONGEST_HASH, room - 1)}}}-{part}{{5}}"]
    if room < _LONGEST_HASH + 1:
        shapes.append(f"{part}{{{room + 5}}}")
    ends = shapes[0] if len(shapes) == 1 else f"({'|'.join(shapes)})"
    escaped = name.replace(".", "[.]")
    return f'{{namespace="{namespace}",pod=~"{escaped}-{ends}"}}'
