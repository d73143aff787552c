"""What a thousand LLMDeployments cost the operator and the API server, on a real control plane with kwok's nodes and pods.

    python -m benchmarks.operator_scale --out benchmarks/results/operator-scale.json
    python -m benchmarks.operator_scale --deployments 50            a quick look

Applies them all at once and reads the audit log: seconds from apply to Deployment and to a bound pod, writes for each. Then how
many writes come at rest, what the operator takes of memory and processor, and what a restart of it does. Needs root: it starts
the cluster of the tests. `--pods` says what answers at the pods' addresses (see scale_pods).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine, record, scale_audit, scale_load

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "cluster"))

from testbed import kwok
from testbed.cluster import Cluster
from testbed.errors import TestbedError
from testbed.ready import eventually

from benchmarks.scale_operator import ROOT, USER, Operator, end

PODS = ("ready", "silent", "refusing")
QUIET_SECONDS = 15.0  # without a write of the operator's: settled


def main() -> int:
    """One run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_scale", description=__doc__)
    parser.add_argument("--deployments", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=200, help="of kwok's, with 8 GPUs each")
    parser.add_argument("--pods", choices=PODS, default="ready", help="what answers at the pods' addresses")
    parser.add_argument("--rest", type=float, default=120.0, help="seconds to look at rest")
    parser.add_argument("--settle", type=float, default=1800.0, help="seconds to wait at most until all is written")
    parser.add_argument("--out", type=Path, help="write every figure to this file as JSON")
    options = parser.parse_args()
    here = machine.describe()
    print(here.line(), flush=True)
    try:
        cluster = kwok.up(options.nodes)
    except TestbedError as error:
        sys.stderr.write(f"operator_scale: {error}\n")
        return 1
    try:
        figures = measure(cluster, options)
    finally:
        cluster.close()
    print(table(figures))
    if options.out:
        record.write(options.out, here, {"options": _plain(vars(options)), **figures})
    return 0


def measure(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Every figure, in the order of the phases."""
    prepare(cluster, options.pods)
    operator = Operator(cluster)
    operator.start()
    names = scale_load.names(options.deployments)
    before = operator.usage()
    _say(f"applying {len(names)} LLMDeployments")
    began = time.time()
    apply_seconds = scale_load.apply(cluster.kubeconfig, [scale_load.manifest(name) for name in names])
    settled = settle(cluster, len(names), options.settle)
    after = operator.usage()
    writes = scale_audit.read(audit_log(cluster))
    waited = scale_audit.waits(writes, names, USER)
    made_by_operator = scale_audit.by(USER, writes, since=began)
    _say(f"settled after {settled - began:.0f} s; looking at rest for {options.rest:.0f} s")
    rest = at_rest(cluster, operator, options.rest)
    _say("restarting the operator")
    return {
        "deployments": len(names),
        "apply_seconds": apply_seconds,
        "seconds_until_settled": settled - began,
        "to_deployment": _spread(waited.to_deployment),
        "to_pod_bound": _spread(waited.to_pod_bound),
        "to_last_status": _spread(waited.to_status),
        "writes_per_deployment": len(made_by_operator) / len(names),
        "most_writes_of_one": max(scale_audit.per_name(made_by_operator, names).values()),
        "writes": scale_audit.kinds(made_by_operator),
        "operator_cpu_seconds": after.cpu_seconds - before.cpu_seconds,
        "operator_start": asdict(before),
        "operator_settled": asdict(after),
        "rest": rest,
        "restart": restart(cluster, operator),
        "conditions": conditions(cluster),
    }


def prepare(cluster: Cluster, pods: str) -> None:
    """The namespaces, and who answers for the pods."""
    for number in range(scale_load.NAMESPACES):
        cluster.kubectl("create", "namespace", f"scale-{number}")
    answer(cluster, pods)


def answer(cluster: Cluster, pods: str) -> None:
    """Let the pods' addresses answer so, and no more as before."""
    assert cluster.node is not None
    sandbox = cluster.node.sandbox
    if (before := sandbox.processes.pop("pods", None)) is not None:
        end(before)
    if pods != "refusing":
        command = (f"PYTHONPATH={ROOT}", sys.executable, "-m", "benchmarks.scale_pods", pods)
        sandbox.start("pods", "env", *command)


def settle(cluster: Cluster, count: int, seconds: float) -> float:
    """Wait until `count` Deployments are there and the operator has written nothing for a while; when its last write was."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        time.sleep(5)
        written = scale_audit.by(USER, scale_audit.read(audit_log(cluster)))
        deployments = {write.name for write in written if write.resource == "deployments" and write.code < 300}
        last = written[-1].at if written else 0.0
        if len(deployments) >= count and time.time() - last > QUIET_SECONDS:
            return last
        _say(f"  {len(deployments)} Deployments, {len(written)} writes")
    return time.time()


def at_rest(cluster: Cluster, operator: Operator, seconds: float) -> dict[str, Any]:
    """What is written, and what the operator takes, when nothing happens."""
    began, before = time.time(), operator.usage()
    time.sleep(seconds)
    writes = scale_audit.by(USER, scale_audit.read(audit_log(cluster)), since=began)
    after = operator.usage()
    return {
        "seconds": seconds,
        "writes": scale_audit.kinds(writes),
        "cpu_share": (after.cpu_seconds - before.cpu_seconds) / seconds,
        "memory_mib": after.memory_mib,
    }


def restart(cluster: Cluster, operator: Operator) -> dict[str, Any]:
    """A new operator meets what is there: how soon it acts for somebody new, and that it writes nothing for the others."""
    operator.stop()
    began = time.time()
    operator.start()
    serves = time.time() - began
    new = ("scale-0", "after-restart")
    scale_load.apply(cluster.kubeconfig, [scale_load.manifest(new)])
    applied = time.time()
    with contextlib.suppress(AssertionError):  # then the table says so
        eventually("its Deployment", lambda: _made(cluster, new, began) or None)
    idle = operator.until_idle()
    writes = scale_audit.by(USER, scale_audit.read(audit_log(cluster)), since=began)
    made = _made(cluster, new, began)
    of_others = [write for write in writes if not write.name[1].startswith(new[1])]
    return {
        "seconds_until_it_serves": serves,
        "seconds_to_a_new_deployment": made[0] - applied if made else None,
        "seconds_until_idle": serves + idle,
        "writes_for_what_was_there": scale_audit.kinds(of_others),
        **{f"operator_{name}": value for name, value in asdict(operator.usage()).items()},
    }


def _made(cluster: Cluster, name: scale_load.Name, since: float) -> list[float]:
    """When the operator wrote its Deployment."""
    writes = scale_audit.by(USER, scale_audit.read(audit_log(cluster)), since=since)
    return [write.at for write in writes if write.resource == "deployments" and write.name == name]


def conditions(cluster: Cluster) -> dict[str, int]:
    """How many LLMDeployments say what of Ready."""
    query = '{range .items[*]}{.status.conditions[?(@.type=="Ready")].reason}{"\\n"}{end}'
    said = cluster.kubectl("get", "llmdeployments", "-A", "-o", f"jsonpath={query}").split("\n")
    return {reason or "none": said.count(reason) for reason in sorted(set(said)) if reason or said.count(reason) > 1}


def audit_log(cluster: Cluster) -> Path:
    """Where the API server writes what it was asked to change."""
    assert cluster.node is not None
    return cluster.node.control_plane.audit_log


def table(figures: dict[str, Any]) -> str:
    """For people and for docs/scale.md."""
    rest, again, settled = figures["rest"], figures["restart"], figures["operator_settled"]
    rows = [
        ["from apply to Deployment, s", _percentiles(figures["to_deployment"])],
        ["from apply to its pod on a node, s", _percentiles(figures["to_pod_bound"])],
        ["from apply to the last change of status, s", _percentiles(figures["to_last_status"])],
        ["all applied within, s", f"{figures['apply_seconds']:.1f}"],
        ["writes of the operator a deployment", f"{figures['writes_per_deployment']:.2f}"],
        [
            "operator's processor time a deployment, ms",
            f"{1000 * figures['operator_cpu_seconds'] / figures['deployments']:.1f}",
        ],
        ["operator's memory, MiB (peak)", f"{settled['memory_mib']:.0f} ({settled['peak_mib']:.0f})"],
        ["writes a minute at rest", f"{60 * sum(rest['writes'].values()) / rest['seconds']:.1f}"],
        ["operator's share of a core at rest", f"{rest['cpu_share']:.3f}"],
        ["restart: s until it serves, to a new Deployment after that", _pair(again)],
        ["restart: writes for what was there", str(sum(again["writes_for_what_was_there"].values()))],
    ]
    head = [f"{figures['deployments']} LLMDeployments", "p50 / p99 / most, or the figure"]
    return record.table(head, rows) + "\n\n" + json.dumps({name: figures[name] for name in ("writes", "conditions")})


def _pair(again: dict[str, Any]) -> str:
    new = again["seconds_to_a_new_deployment"]
    return f"{again['seconds_until_it_serves']:.1f}, {'never' if new is None else f'{new:.2f}'}"


def _spread(values: tuple[float, ...]) -> dict[str, Any]:
    shares = {"p50": 0.5, "p99": 0.99, "most": 1.0}
    return {"count": len(values), **{name: scale_audit.percentile(values, share) for name, share in shares.items()}}


def _percentiles(spread: dict[str, Any]) -> str:
    return " / ".join("-" if spread[name] is None else f"{spread[name]:.2f}" for name in ("p50", "p99", "most"))


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
