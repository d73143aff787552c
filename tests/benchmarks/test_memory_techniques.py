"""Each technique on and off, on a tiny model or in virtual time: what must follow whatever the machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    memory_techniques,
    offered,
    real_model,
    step_cost,
    technique_host,
    technique_replay,
    technique_sharing,
)
from benchmarks.step_cost import StepCost
from benchmarks.traces import Recorded
from pagemill_server.engine.step_model import Coefficients

COST = StepCost(Coefficients(), 1e-4)


def test_sharing_computes_a_common_beginning_once(tiny: str) -> None:
    model = real_model.load(tiny, kv_tokens=2048)
    off, on = technique_sharing.measure(model, requests=12, reps=1, shared=128)
    assert (off.sharing, off.hit_rate, on.sharing) == (False, 0, True)
    assert on.hit_rate == pytest.approx(11 * 128 / (12 * 158), abs=0.7 * 128 / 158)
    assert on.hit_rate > 0.2
    assert on.most_blocks < off.most_blocks


def test_blocks_come_back_from_where_they_were(tiny: str) -> None:
    model = real_model.load(tiny, kv_tokens=512, host_tokens=2048)
    found = {(one.way, one.neighbours): one for one in technique_host.measure(model, (96,), neighbours=2, reps=1)}
    assert len(found) == 6
    for neighbours in (0, 2):
        device, host, computed = (found[way, neighbours] for way in technique_host.WAYS)
        assert (device.fetched_blocks, computed.fetched_blocks) == (0, 0)
        assert host.fetched_blocks == 2  # of the three, one holds the token that is always computed
        assert all(one.ttft_s > 0 for one in (device, host, computed))
        assert (device.longest_gap_s > 0) is (neighbours > 0)


def test_keeping_gains_and_a_host_tier_gains_more() -> None:
    turns = [Recorded(float(at), 512 * 8, 64, tuple(range(at % 9 * 100, at % 9 * 100 + 8))) for at in range(60)]
    requests = offered.offer(turns, seed=1, shrink=16)
    none, dropped, kept, host = technique_replay.measure(requests, COST, 1024, [16_384])
    assert none.hit_rate == 0
    assert dropped.hit_rate <= kept.hit_rate < host.hit_rate
    assert (kept.host_hit_rate, host.host_hit_rate > 0.2) == (0, True)
    assert host.requests_s > none.requests_s


def test_the_pool_is_not_touched_at_the_start(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert memory_techniques.main(["start", "--model", tiny, "--tokens", "300000", "--out", str(out)]) == 0
    ours, _, written = json.loads(out.read_text())["results"]
    assert ours["size_bytes"] == written["size_bytes"] > 50e6
    assert ours["touched_bytes"] < 0.1 * ours["size_bytes"]
    assert written["touched_bytes"] > 0.9 * written["size_bytes"]


def test_the_commands_print_their_tables(
    tiny: str, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps.json"
    steps.write_text(json.dumps(step_cost.as_json(COST)))
    shrunk = ["--shrink", "1", "--kv-tokens", "512", "--host-tokens", "1024"]
    assert memory_techniques.main(["kept", "--trace", trace, "--steps", str(steps), *shrunk]) == 0
    assert memory_techniques.main(["host", "--model", tiny, "--reps", "1", "--lengths", "64", "--neighbours", "1"]) == 0
    shown = capsys.readouterr().out
    for row in ("no sharing", "dropped at release", "least recently used", "and a host tier", "| computed "):
        assert row in shown


@pytest.mark.parametrize("argv", [["start", "--model", "nobody/nothing"], ["host", "--model", "nobody/nothing"]])
def test_a_model_that_is_not_here_is_one_line(argv: list[str], capsys: pytest.CaptureFixture[Any]) -> None:
    assert memory_techniques.main(argv) == 1
    assert capsys.readouterr().err.count("\n") == 1
