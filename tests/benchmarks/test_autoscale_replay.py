"""The simulated fleet counts as the real engine does, loses nobody and is the same twice; and the rules it is compared with."""

import json
import random
from pathlib import Path

import pytest

from benchmarks import offered, replay, step_cost
from benchmarks.autoscale_replay import __main__ as command
from benchmarks.autoscale_replay import drive, hpa, request
from benchmarks.autoscale_replay.compare import busy_seconds, setting
from benchmarks.autoscale_replay.drive import Hour
from benchmarks.autoscale_replay.fleet import Fleet, FleetConfig
from benchmarks.autoscale_replay.match import match
from benchmarks.autoscale_replay.replica import Replica, ReplicaConfig
from benchmarks.autoscale_replay.request import Request
from benchmarks.autoscale_replay.scalers import Fixed, HpaOnWaiting, KedaOnKv, Operator, Scaler
from benchmarks.measure import quantile
from benchmarks.replay_run import Setting, limits_for
from benchmarks.step_cost import StepCost
from benchmarks.traces import Recorded
from pagemill_operator.spec_scaling import Autoscaling
from pagemill_server.config import CacheConfig, SchedulerConfig
from pagemill_server.engine.step_model import Coefficients

COST = StepCost(Coefficients(0.05, 0.0015, 0.0013, 2.5e-6), 1e-4, budget=512)
CONFIG = ReplicaConfig(COST)


def rows(seconds: float = 180.0, per_second: float = 4.0, seed: int = 1) -> list[Recorded]:
    """A rush in the middle of each minute."""
    random_ = random.Random(seed)
    made, at = [], 0.0
    while at < seconds:
        made.append(Recorded(at, random_.randint(1, 900), random_.randint(1, 120)))
        at += random_.expovariate(per_second * (3.0 if 20 < at % 60 < 35 else 0.5))
    return made


def fleet(**fields: float) -> FleetConfig:
    return FleetConfig(CONFIG, **{"load_s": 4.0, "max_replicas": 12, **fields})  # type: ignore[arg-type]


def scalers() -> list[Scaler]:
    return [
        Operator(Autoscaling.model_validate({"maxReplicas": 12})),
        HpaOnWaiting(2.0, hpa.Behavior(1, 12)),
        KedaOnKv(0.2, hpa.Behavior(1, 12)),
        Fixed(),
    ]


@pytest.mark.parametrize("blocks", [728, 150])
def test_a_replica_is_as_fast_as_the_real_engine(blocks: int) -> None:
    """Also where so few blocks are there that sequences are preempted."""
    some = rows(120.0, per_second=0.7)
    asked = offered.offer(some, seed=1)
    scheduler = SchedulerConfig(bypass_seconds=0.0)
    limits = limits_for(asked, blocks, 32, 0)
    real = replay.run("fcfs", asked, Setting(COST, scheduler, CacheConfig(32, prefix_caching=False), limits, 1.0), 1.0)
    config = FleetConfig(ReplicaConfig(COST, num_blocks=blocks), 1.0)
    hour = drive.run(request.make(some, COST), config, Fixed(), 1)
    ttfts = [one.ttft for one in hour.requests]
    assert hour.steps == pytest.approx(real.steps, rel=0.01)
    assert quantile(ttfts, 0.5) == pytest.approx(real.ttft_p50_s, rel=0.02)
    assert quantile(ttfts, 0.99) == pytest.approx(real.ttft_p99_s, rel=0.02)
    assert (hour.fleet.preemptions > 0) == (real.preemptions > 0) == (blocks == 150)
    assert hour.fleet.preemptions == pytest.approx(real.preemptions, rel=0.25)


@pytest.mark.parametrize("blocks", [728, 60])
def test_the_books_of_a_replica_agree_after_every_step(blocks: int) -> None:
    replica, now = Replica("one", ReplicaConfig(COST, num_blocks=blocks)), 0.0
    made = request.make(rows(60.0), COST)
    replica.waiting.extend(made)
    while seconds := replica.begin():
        replica.check()
        now += seconds
        replica.finish(now)
        replica.check()
    assert all(one.generated == one.output_tokens and one.ended is not None for one in made)
    assert all(one.first is not None and one.ended is not None and one.first <= one.ended for one in made)
    assert replica.used_blocks == 0
    assert (replica.preemptions > 0) == (blocks == 60)


@pytest.mark.parametrize("number", range(4))
def test_no_request_is_lost_and_no_stream_cut_and_twice_is_alike(number: int) -> None:
    first, second = (drive.run(request.make(rows(), COST), fleet(), scalers()[number], 2) for _ in range(2))
    assert [(one.first, one.ended) for one in first.requests] == [(one.first, one.ended) for one in second.requests]
    assert all(one.first is not None and one.at < one.first for one in first.requests)
    assert first.fleet.cut == 0
    assert first.fleet.most <= 12 + first.fleet.downs
    assert first.replica_seconds == second.replica_seconds > 0
    assert first.fleet.ups > 0 or number == 3


def test_the_operator_meets_a_rush_that_two_replicas_do_not() -> None:
    alone, scaled = (drive.run(request.make(rows(), COST), fleet(), one, 2) for one in (Fixed(), scalers()[0]))
    assert sum(one.late for one in scaled.requests) < sum(one.late for one in alone.requests) / 2


def test_who_goes_drains_first_and_is_called_back() -> None:
    made = Fleet(fleet(drain_s=5.0))
    first, second = made.start(2)
    busy = Request(0.0, 10, 5, 1.0)
    assert made.route(busy, 0.0) is first
    assert made.scale(1, 10.0) == []
    assert second.draining_since == 10.0
    assert made.route(Request(11.0, 10, 5, 1.0), 11.0) is first
    made.scale(2, 12.0)
    assert second.serves(12.0)
    made.scale(1, 20.0)
    made.reap(24.0)
    assert len(made.members) == 2
    made.reap(25.0)
    assert made.members == [first]
    (third,) = made.scale(2, 30.0)
    assert third.loading(33.9)
    assert third.serves(34.0)
    made.scale(1, 31.0)
    assert made.members == [first]
    assert made.replica_seconds(40.0) == pytest.approx(40 + 25 + 1)
    made.scale(0, 50.0)
    made.reap(99.0)
    assert made.members == [first]
    assert made.cut == 0


def test_requests_are_held_while_nobody_serves() -> None:
    made = [Request(float(at), 10, 5, 1.0) for at in range(3)]
    hour = drive.run(made, fleet(load_s=9.0), Operator(Autoscaling.model_validate({"maxReplicas": 2})), 0)
    assert min(one.first or 0.0 for one in hour.requests) > 9.0


@pytest.mark.parametrize(
    ("values", "missing", "target", "current", "wanted"),
    [
        ([4.0, 2.0], 0, 2.0, 2, 3),
        ([2.0, 2.19], 0, 2.0, 2, 2),
        ([0.0, 0.0], 0, 2.0, 2, 0),
        ([9.0], 3, 2.0, 4, 5),
        ([7.0], 3, 2.0, 4, 4),
        ([1.0], 3, 2.0, 4, 4),
        ([], 2, 2.0, 2, 2),
    ],
)
def test_an_hpa_on_a_pods_metric(values: list[float], missing: int, target: float, current: int, wanted: int) -> None:
    assert hpa.pods(values, missing, target, current) == wanted


def test_an_hpa_on_an_external_average() -> None:
    assert hpa.external(1.7, 0.8, 2, 2) == 2
    assert hpa.external(1.9, 0.8, 2, 2) == 3
    assert hpa.external(0.0, 0.8, 2, 2) == 0
    assert hpa.external(2.4, 0.8, 2, 2) == 3


def test_an_hpas_default_behavior() -> None:
    behavior = hpa.Behavior(1, 30)
    assert behavior.apply(20, 1, 0.0) == 5
    assert behavior.apply(20, 5, 14.0) == 5
    assert behavior.apply(20, 5, 15.0) == 10
    assert behavior.apply(2, 10, 30.0) == 10
    assert behavior.apply(2, 10, 315.0) == 10
    assert behavior.apply(3, 10, 316.0) == 3
    assert behavior.apply(0, 3, 700.0) == 1
    assert behavior.apply(99, 1, 720.0) == 5


def test_a_rule_is_matched_to_the_operators_hours() -> None:
    one = setting(rows(), fleet())
    seconds = 5 * one.rows[-1].at
    tried: dict[float, Hour] = {}

    def run(target: float) -> Hour:
        tried[target] = one.run(HpaOnWaiting(target, hpa.Behavior(1, 12)))
        return tried[target]

    found = match(run, seconds, 0.2, 64.0)
    assert found.off == pytest.approx(found.hour.replica_seconds / seconds - 1)
    near = [hour.late for hour in tried.values() if abs(hour.replica_seconds / seconds - 1) <= 0.02]
    assert found.hour.late == min(near)
    assert found.hour is tried[found.target]
    assert found.tries == len(tried)


def test_the_load_is_what_one_replica_would_need_for_all() -> None:
    some = [Recorded(0.0, 512, 1), Recorded(1.0, 512, 1)]
    assert busy_seconds(some, CONFIG) == pytest.approx(2 * COST.full_step)


def test_another_hour_has_the_same_windows_and_other_lengths() -> None:
    some = rows(1200.0)
    other = request.resampled(some, 1)
    assert other == request.resampled(some, 1)
    assert other != some
    assert sorted(round(row.at % 300, 6) for row in other) == sorted(round(row.at % 300, 6) for row in some)
    assert [row.at for row in other] == sorted(row.at for row in other)


def test_the_command_prints_and_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"2023-11-16 18:{15 + int(row.at) // 60}:{row.at % 60:09.6f},{row.prompt_tokens},{row.output_tokens}"
        for row in rows(90.0)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    (tmp_path / "steps.json").write_text(json.dumps(step_cost.as_json(COST)))
    out = tmp_path / "out.json"
    flags = ["--traces", str(tmp_path), "--only", "t.csv", "--steps", str(tmp_path / "steps.json"), "--out", str(out)]
    assert command.main(flags) == 0
    (document,) = json.loads(out.read_text())["traces"]
    assert [row["who"] for row in document["rows"]][:3] == ["operator", "HPA, waiting", "KEDA, KV usage"]
    assert all(row["cut"] == 0 for row in document["rows"])
    assert "| operator " in capsys.readouterr().out
    assert command.main([*flags[:3], "none.csv"]) == 1
