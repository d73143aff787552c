"""The measuring that `speed` asks for: starts contestants, sends each repetition to all of them in turn, keeps what came out."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import codec, processes, quiet, roofline, speed_figures, workloads
from benchmarks.measure import Run, summarise
from benchmarks.peers.contestant import Contestant, Peer, PeerError
from benchmarks.speed_figures import INT8
from benchmarks.workloads import Prompt, Workload
from pagemill.model_config import ModelConfig
from pagemill.model_files import inspect, resolve


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    model: str
    embedding_model: str
    reps: int
    open_reps: int  # of workloads with arrivals of their own
    requests: int | None  # the first so many of each workload
    patience: float  # seconds to wait for quiet before each run


class Bench:
    """`values` are `speed_figures.Values`; `names` the contestants in the order of their start."""

    def __init__(self, plan: Plan, rates: roofline.Rates | None) -> None:
        self._plan = plan
        self._rates = rates
        self.values: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.names: list[str] = []
        self._runs: list[dict[str, Any]] = []
        self._starts: list[dict[str, Any]] = []

    def as_json(self) -> dict[str, Any]:
        values = [{"figure": figure, "contestant": name, "values": got} for (figure, name), got in self.values.items()]
        return {"contestants": self.names, "values": values, "starts": self._starts, "runs": self._runs}

    def starts(self, peers: Sequence[Peer]) -> None:
        """Process start to first token, in turn; the first round only warms the disk's cache."""
        absent: set[str] = set()
        for rep in range(self._plan.reps + 1):
            for peer in peers:
                if peer.name == INT8 or peer.name in absent:
                    continue
                noise = quiet.wait(patience=self._plan.patience)
                try:
                    with peer.run(self._plan.model) as running:
                        seconds = running.first_token_s
                        self._starts.append(_start_row(running, rep, noise))
                except PeerError as error:
                    absent.add(peer.name)
                    _say(f"{peer.name}: {error}")
                    continue
                self._know(peer.name)
                if rep:
                    self.values["start to first token", peer.name].append(seconds)
                _say(f"start  {peer.name:<16} {'warm-up' if not rep else f'rep {rep}'}  {seconds:.2f} s")

    async def workloads(self, stack: ExitStack, peers: Sequence[Peer], names: Sequence[str]) -> None:
        """Everybody is started and warmed up, then measured in turn; in the end, what memory each held at most."""
        tokenizer = codec.load(self._plan.model)
        chosen = [self._cut(workloads.STANDARD[name](tokenizer, workloads.SEED)) for name in names]
        running = self._enter(stack, peers)
        for workload in chosen:
            taking_part = [one for one in running if one.name != INT8 or workload.name == "w2"]
            for contestant in taking_part:
                await _replay(contestant, replace(workload, kind="closed", concurrency=4), workload.warmup)
            for rep in range(self._plan.open_reps if workload.kind == "open" else self._plan.reps):
                for contestant in taking_part:
                    await self._measure(contestant, workload, rep)
        for contestant in running:
            if contestant.name != INT8:
                self.values["peak memory", contestant.name].append(processes.peak_bytes(contestant.pid) / 1e9)

    async def sentences(self, peers: Sequence[Peer]) -> None:
        """W5."""
        plan = self._plan
        w5 = workloads.w5(codec.load(plan.embedding_model), workloads.SEED)
        with ExitStack() as stack:
            running = self._enter(stack, peers, plan.embedding_model)
            for contestant in running:
                assert contestant.embed is not None, contestant.name
                await contestant.embed(w5.warmup, w5.batch, w5.concurrency)
            for rep in range(plan.reps):
                texts = w5.variants[rep % len(w5.variants)][: plan.requests]
                for contestant in running:
                    assert contestant.embed is not None, contestant.name
                    before = quiet.wait(patience=plan.patience)
                    watch = quiet.Watch()
                    seconds = await contestant.embed(texts, w5.batch, w5.concurrency)
                    self.values["W5 sentences", contestant.name].append(len(texts) / seconds)
                    self._runs.append(
                        {"workload": "w5", "contestant": contestant.name, "rep": rep, "seconds": seconds}
                        | _noise(before, watch)
                    )
                    _say(f"w5     {contestant.name:<16} rep {rep + 1}  {len(texts) / seconds:.0f} sentences/s")

    async def _measure(self, contestant: Contestant, workload: Workload, rep: int) -> None:
        prompts = workload.variants[rep % len(workload.variants)]
        before = quiet.wait(patience=self._plan.patience)
        watch = quiet.Watch()
        run = await _replay(contestant, workload, prompts)
        noise = _noise(before, watch)
        for figure, value in speed_figures.of_run(workload.name, run).items():
            self.values[figure, contestant.name].append(value)
        if workload.name == "w1" and self._rates is not None and not run.failed:
            config = inspect(resolve(self._plan.model)).config
            assert isinstance(config, ModelConfig)
            limit = roofline.work(config, prompts, workload.concurrency).output_tok_s(self._rates)
            self.values["W1 of the roofline", contestant.name].append(100 * run.output_tok_s / limit)
        self._runs.append(
            {"workload": workload.name, "contestant": contestant.name, "rep": rep, "run": asdict(run)} | noise
        )
        _say(_line(workload.name, contestant.name, rep, run, noise))

    def _enter(self, stack: ExitStack, peers: Sequence[Peer], model: str | None = None) -> list[Contestant]:
        """Those that start; of the others it is said why not."""
        running = []
        for peer in peers:
            try:
                running.append(stack.enter_context(peer.run(model or self._plan.model)))
            except (PeerError, ValueError) as error:
                _say(f"{peer.name}: {error}")
                continue
            self._know(peer.name)
        return running

    def _cut(self, workload: Workload) -> Workload:
        variants = tuple(variant[: self._plan.requests] for variant in workload.variants)
        return replace(workload, variants=variants)

    def _know(self, name: str) -> None:
        if name not in self.names:
            self.names.append(name)


async def _replay(contestant: Contestant, workload: Workload, prompts: Sequence[Prompt]) -> Run:
    assert contestant.replay is not None, contestant.name
    return summarise(await contestant.replay(workload, prompts))


def _start_row(running: Contestant, rep: int, noise: quiet.Noise) -> dict[str, Any]:
    row = {"contestant": running.name, "rep": rep, "ready_s": running.ready_s, "first_token_s": running.first_token_s}
    return row | {"others_before": noise.others + noise.host}


def _noise(before: quiet.Noise, watch: quiet.Watch) -> dict[str, Any]:
    return {"others_before": before.others + before.host, "noise": asdict(watch.noise())}


def _line(workload: str, name: str, rep: int, run: Run, noise: dict[str, Any]) -> str:
    times = [f"{label} {1000 * value:.0f}" for label, value in _times(run) if value is not None]
    trouble = f"  FAILED {run.failed}: {'; '.join(run.errors)}" if run.failed else ""
    trouble += f"  {run.short} of another length" if run.short else ""
    others = noise["noise"]["others"] + noise["noise"]["host"]
    return (
        f"{workload:<6} {name:<16} rep {rep + 1}  {run.wall_s:.1f} s, {run.output_tok_s:.0f} tok/s  {', '.join(times)}"
        f"  others {others:.2f} cores{trouble}"
    )


def _times(run: Run) -> list[tuple[str, float | None]]:
    return [
        ("TTFT p50", run.ttft_p50_s),
        ("p99", run.ttft_p99_s),
        ("TPOT", run.tpot_p50_s),
        ("ITL p50", run.itl_p50_s),
        ("p99", run.itl_p99_s),
    ]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
