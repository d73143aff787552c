"""A replay in virtual time: the same twice, every request ends, and prefixes are shared where the trace says so."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import offered, replay, step_cost, traces
from benchmarks.offered import CLASSES, Offered
from benchmarks.replay_figures import service_ratios
from benchmarks.replay_run import Outcome, Setting, limits_for
from benchmarks.step_cost import StepCost
from benchmarks.traces import Recorded
from benchmarks.workload_file import WorkloadError
from pagemill_server.config import CacheConfig, SchedulerConfig
from pagemill_server.engine.step_model import Coefficients

RECORDED = Path(__file__).parents[3] / "shared" / "traces" / "mooncake-conversation-2025.jsonl.gz"
COST = StepCost(Coefficients(0.05, 0.002, 0.003, 4e-6), 1e-4, budget=256)


@pytest.fixture(scope="module")
def trace() -> list[Recorded]:
    """The first requests of the recorded trace where it lies beside the repository, else some of its kind."""
    if RECORDED.exists():
        return traces.read(RECORDED)[:60]
    random_ = random.Random(1)
    rows = []
    for number in range(60):
        blocks = (0, *range(10 * (number % 7), 10 * (number % 7) + random_.randint(1, 8)), 1000 + number)
        rows.append(Recorded(number * 0.3, 512 * len(blocks) - 100, random_.randint(1, 400), blocks))
    return rows


def setting(requests: list[Offered], *, tokens: int = 20_000, host: int = 0, sharing: bool = True) -> Setting:
    scheduler = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=256)
    cache = CacheConfig(block_size=32, prefix_caching=sharing)
    return Setting(COST, scheduler, cache, limits_for(requests, tokens // 32, 32, host // 32), tpot_target=1.0)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair", "deadline"])
def test_all_end_with_their_length_and_twice_alike(trace: list[Recorded], policy: str) -> None:
    requests = offered.offer(trace, seed=1, shrink=16)
    first, second = (replay.run(policy, requests, setting(requests), stretch=5.0) for _ in range(2))
    assert replace(first, cpu_s=0) == replace(second, cpu_s=0)
    assert (first.policy, first.requests, first.reasons) == (policy, 60, {"length": 60})
    assert first.ttft_p99_s is not None
    assert first.ttft_p50_s is not None
    assert 0 < first.ttft_p50_s < first.ttft_p99_s
    assert 0 < first.goodput <= 1


def test_equal_hash_ids_are_equal_prefixes(trace: list[Recorded]) -> None:
    requests = offered.offer(trace, seed=1, shrink=16)
    shared = replay.run("fcfs", requests, setting(requests, tokens=1_000_000), stretch=100.0)
    assert shared.hit_rate == pytest.approx(_ideal_hits(requests), abs=0.02)
    assert shared.hit_rate > 0.01
    assert replay.run("fcfs", requests, setting(requests, sharing=False), stretch=100.0).hit_rate == 0


def _ideal_hits(requests: list[Offered]) -> float:
    """Of an endless cache: the blocks that an earlier prompt had whole."""
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for request in requests:
        whole = request.blocks[: (request.prompt_tokens - 1) // request.block_tokens]
        hits += request.block_tokens * next((n for n in range(len(whole), 0, -1) if whole[:n] in seen), 0)
        seen |= {request.blocks[: n + 1] for n in range(request.prompt_tokens // request.block_tokens)}
    return hits / sum(request.prompt_tokens for request in requests)


def test_a_host_tier_brings_back_what_a_small_cache_evicts() -> None:
    """A few conversations in turn, more than the device holds."""
    turns = [Recorded(at, 512 * 16, 16, tuple(range(at % 5 * 100, at % 5 * 100 + 16))) for at in range(25)]
    requests = offered.offer(turns, seed=1, shrink=16)
    without, with_host = (
        replay.run("fcfs", requests, setting(requests, tokens=1200, host=host), stretch=100.0) for host in (0, 20_000)
    )
    assert with_host.reasons == without.reasons == {"length": 25}
    assert without.hit_rate < 0.1
    assert with_host.host_hit_rate > 0.5
    assert (with_host.ttft_p50_s or 0) < (without.ttft_p50_s or 0)


def test_a_queue_that_is_never_empty_is_served_sooner_than_arrivals_allow(trace: list[Recorded]) -> None:
    requests = offered.offer(trace, seed=1, shrink=16)
    most = replay.capacity(requests, setting(requests))
    assert most.reasons == {"length": 60}
    assert most.span_s < replay.run("fcfs", requests, setting(requests), stretch=1000.0).span_s


def test_who_asks_and_how_urgently_follows_from_the_seed() -> None:
    rows = [Recorded(float(at), 100, 10) for at in range(2000)]
    made = offered.offer(rows, seed=1)
    assert made == offered.offer(rows, seed=1)
    assert made != offered.offer(rows, seed=2)
    for kind in CLASSES:
        assert sum(request.kind is kind for request in made) / 2000 == pytest.approx(kind.share, abs=0.05)
    asked = [sum(request.client == f"client-{rank}" for request in made) for rank in range(3)]
    assert asked[0] > asked[1] > asked[2] > 0


def test_lengths_shrink_with_their_shared_blocks() -> None:
    rows = [Recorded(0.0, 1100, 100, (1, 2, 3)), Recorded(1.0, 1300, 3, (1, 2, 9)), Recorded(2.0, 99999, 1)]
    first, second = offered.offer(rows, seed=1, shrink=4, longest=1000)
    assert (len(first.prompt()), first.output_tokens, second.output_tokens) == (275, 25, 1)
    assert first.prompt()[:256] == second.prompt()[:256]
    assert not set(first.prompt()[256:]) & set(second.prompt()[256:])


def test_service_is_compared_between_clients_that_wait_all_through_a_window() -> None:
    one, two, three = (Offered(n, 0.0, 1, 1, (), 1, f"c{n}", CLASSES[0]) for n in (1, 2, 3))
    done = [Outcome(one, 0.0, first=30.0), Outcome(two, 5.0, first=30.0), Outcome(three, 12.0, first=13.0)]
    service = {(0, "c1"): 5.0, (1, "c1"): 90.0, (1, "c2"): 30.0, (1, "c3"): 1.0, (2, "c1"): 10.0, (3, "c1"): 1.0}
    assert service_ratios(done, service, 10.0) == [3.0, 10.0]


def test_a_step_costs_what_its_coefficients_say() -> None:
    assert COST.full_step == pytest.approx(0.05 + 256 * 0.002 + 0.003 + 256 * 257 / 2 * 4e-6)
    long = COST.alone_seconds(300)
    assert long == pytest.approx(2 * COST.full_step + 0.05 + 44 * 0.002 + 0.003 + (44 * 256 + 44 * 45 / 2) * 4e-6)


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    rows = [f"2023-11-16 18:15:{at:02}.0,{50 + 7 * at},{3 + at % 5}" for at in range(20)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps(step_cost.as_json(COST)))
    out = tmp_path / "r" / "out.json"
    flags = [str(trace), "--steps", str(steps), "--policies", "fcfs,fair", "--load", "0.5", "--out", str(out)]
    assert replay.main(flags) == 0
    (document,) = json.loads(out.read_text())["traces"]
    assert [one["policy"] for one in document["policies"]] == ["fcfs", "fair"]
    assert document["load"] == pytest.approx(0.5)
    shown = capsys.readouterr().out
    assert "| fair " in shown
    assert "20 requests" in shown


@pytest.mark.parametrize("body", ["{", "{}", '{"coefficients": {"base": -1}, "copy_block_s": 1, "origin": "x"}'])
def test_other_files_are_no_coefficients(tmp_path: Path, body: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:46.0,3,4\n" * 3)
    (tmp_path / "s.json").write_text(body)
    assert replay.main([str(trace), "--steps", str(tmp_path / "s.json")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(WorkloadError):
        step_cost.read(tmp_path / "s.json", 512)
