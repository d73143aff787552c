"""The same requests for every setting, none lost."""

import json
from pathlib import Path

from benchmarks import real_model, step_curve
from benchmarks.step_curve import play, workload
from pagemill_server.config import SchedulerConfig


def test_the_workload_is_the_same_each_time() -> None:
    assert workload(20, 1.0, 8, 264) == workload(20, 1.0, 8, 264)
    asked = workload(200, 2.0, 8, 264)
    assert [one.at for one in asked] == sorted(one.at for one in asked)
    assert 16 <= min(len(one.prompt) for one in asked) <= max(len(one.prompt) for one in asked) <= 512


def test_every_token_is_timed_after_its_request_came(tiny: str) -> None:
    model = real_model.load(tiny, kv_tokens=2048)
    asked = workload(6, 200.0, 5, 264, longest=60)
    for in_time in (False, True):
        got = play(model, SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=32), asked, in_time=in_time)
        assert [len(one.times) for one in got] == [5] * 6
        assert all(one.times[0] >= one.at for one in got)


def test_every_setting_gets_a_row(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--model", tiny, "--seqs", "1", "4", "--budgets", "16", "64", "--requests", "5", "--output", "3"]
    assert step_curve.main([*flags, "--longest", "50", "--rate", "100", "--out", str(out)]) == 0
    points = json.loads(out.read_text())["points"]
    assert [(one["max_num_seqs"], one["max_num_batched_tokens"]) for one in points] == [
        (1, 16),
        (1, 64),
        (4, 16),
        (4, 64),
    ]
    assert all(one["most_tok_s"] > 0 and one["ttft_p50_s"] > 0 for one in points)
