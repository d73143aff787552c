"""The same memory, the same tokens: paging alone makes the difference."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import paged_vs_contiguous, real_model, step_cost
from benchmarks.paged_vs_contiguous import load, parse, pools, real
from benchmarks.reserving import ReservingRunner, reserving_limits
from benchmarks.step_cost import StepCost
from pagemill_server.config import EngineLimits, SchedulerConfig
from pagemill_server.engine.engine import Engine
from pagemill_server.engine.step_model import Coefficients


@pytest.fixture
def steps(tmp_path: Path) -> str:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(step_cost.as_json(StepCost(Coefficients(), 1e-4))))
    return str(path)


def test_the_books_waste_little_and_run_many(trace: str, steps: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = [trace, "--steps", steps, "--block-sizes", "4", "--out", str(out)]
    assert paged_vs_contiguous.main(flags) == 0
    contiguous, paged = json.loads(out.read_text())["results"]
    assert (contiguous["way"], contiguous["block_size"], paged["way"], paged["block_size"]) == (
        "contiguous",
        208,
        "paged",
        4,
    )
    assert contiguous["filling"]["most_sequences"] == 4
    assert contiguous["filling"]["wasted"] > 0.5
    assert paged["filling"]["wasted"] < 0.05
    assert paged["filling"]["sequences"] > 2 * contiguous["filling"]["sequences"]


def test_both_ways_take_the_same_memory(trace: str) -> None:
    args = parse([trace, "--real", "--reserved", "3"])
    paged, contiguous = pools(load(args), args, 16)
    assert paged.num_blocks * paged.block_size == contiguous.num_blocks * contiguous.block_size
    assert (contiguous.num_blocks, contiguous.block_size) == (3, 208)


def test_a_reserved_run_of_blocks_gives_the_same_tokens(tiny: str) -> None:
    model = real_model.load(tiny, kv_tokens=3 * 96, block_size=32)
    paged = EngineLimits(96, model.limits.vocab_size, 9, 32)
    contiguous, per_large = reserving_limits(paged, 90)
    assert (contiguous.num_blocks, contiguous.block_size, per_large) == (3, 96, 3)
    answers = []
    for runner, limits in ((model.runner, paged), (ReservingRunner(model.runner, 32, per_large), contiguous)):
        engine = Engine(runner, limits, SchedulerConfig(max_num_batched_tokens=16), prefix_caching=False)
        for number in range(4):
            prompt = real_model.prompt(limits.vocab_size, 40 + number, number)
            engine.add(real_model.request(str(number), prompt, 30))
        found: dict[str, list[int]] = {}
        for output in real_model.finish(engine):
            found.setdefault(output.request_id, []).extend(token.token_id for token in output.tokens)
        answers.append(found)
    assert answers[0] == answers[1]
    assert all(len(tokens) == 30 for tokens in answers[0].values())


def test_the_real_model_runs_both_ways(tiny: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [trace, "--real", "--model", tiny, "--reps", "1", "--requests", "10", "--reserved", "2"]
    assert paged_vs_contiguous.main(flags) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^\| contiguous +\| 208 ", shown, re.MULTILINE)
    assert re.search(r"^\| paged +\| 16 ", shown, re.MULTILINE)
    assert "paged / contiguous, output tokens/s" in shown


def test_the_real_run_counts_every_token(tiny: str, trace: str) -> None:
    args = parse([trace, "--real", "--requests", "6"])
    requests = load(args)
    paged, _ = pools(requests, args, 16)
    model = real_model.load(tiny, kv_tokens=paged.num_blocks * 16, block_size=16, longest=paged.max_model_len)
    limits = EngineLimits(paged.max_model_len, model.limits.vocab_size, paged.num_blocks, 16)
    found = real(requests, model.runner, limits, 2, "paged")
    assert found.output_tok_s > 0
    assert 0 <= found.filling.wasted <= found.filling.without_token < 1


def test_the_books_need_steps(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([trace])
    assert "--steps" in capsys.readouterr().err
