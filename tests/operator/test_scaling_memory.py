"""What is remembered of scaling is counted, and forgotten with the deployment."""

from __future__ import annotations

from datetime import UTC, datetime

from pagemill_operator.autoscale import Decision, History
from pagemill_operator.cluster.interface import Key
from pagemill_operator.metrics import OperatorMetrics
from pagemill_operator.scaling import UNSCALED, Memory, Scaled
from pagemill_operator.scaling_memory import Memories

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = Key("team", "chat")
NAMED = 'llmdeployment="chat",llmdeployment_namespace="team"'


def scaled(decision: Decision) -> Scaled:
    return Scaled(replicas=decision.desired, decision=decision, memory=Memory(History(1, NOW), NOW))


def lines(metrics: OperatorMetrics) -> set[str]:
    return {line for line in metrics.page().decode().splitlines() if line.startswith("pagemill_operator_scaling")}


def test_every_decision_is_in_the_metrics_and_goes_with_its_deployment() -> None:
    metrics = OperatorMetrics()
    memories = Memories(metrics.decided)
    memories.keep(KEY, scaled(Decision(3, "Up", "WaitingRequests", "6 wait")))
    memories.keep(KEY, scaled(Decision(3, "Hold", "Steady", "as asked")))
    memories.keep(KEY, scaled(Decision(3, "Hold", "MissingSignals", "chat-1 is silent", active=False)))
    assert memories.of(KEY) is not None
    named = "pagemill_operator_scaling"
    count = f"{named}_decisions_total{{"
    assert lines(metrics) == {
        f'{count}decision="Up",{NAMED},rule="WaitingRequests"}} 1.0',
        f'{count}decision="Hold",{NAMED},rule="Steady"}} 1.0',
        f'{count}decision="Hold",{NAMED},rule="MissingSignals"}} 1.0',
        f"{named}_desired_replicas{{{NAMED}}} 3.0",
        f"{named}_active{{{NAMED}}} 0.0",
    }
    memories.keep(KEY, UNSCALED)
    assert memories.of(KEY) is None
    assert lines(metrics) == set()
    memories.forget(KEY)
