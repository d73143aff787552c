"""Processes end together, say why, and are never waited for without end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server.config import ModelOptions
from pagemill_server.engine.errors import RunnerLost
from pagemill_server.model import parallel, workers
from pagemill_server.model.device import place
from pagemill_server.model.part import Setup
from pagemill_server.model.workers import ParallelRunner, Workers
from tests.server.api.running import until
from tests.server.model.stepping import GREEDY, Stepper, load, step_of
from tests.server.test_start import environment
from tests.server.tiny import write_tiny_llama

# Holds a divided model and says which process its worker is, until it is killed.
ENGINE = """
import sys, time
from pathlib import Path
from tests.server.model.stepping import load
runner, _ = load(Path(sys.argv[1]), tensor_parallel_size=2, memory_bytes=1 << 20)
print(runner._workers._workers[0]._process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def running(files: ModelFiles) -> Iterator[tuple[ParallelRunner, Stepper]]:
    runner, stepper = load(files.path, tensor_parallel_size=2, memory_bytes=1 << 20)
    assert isinstance(runner, ParallelRunner)
    yield runner, stepper
    runner.close()


def setup_of(files: ModelFiles) -> Setup:
    return Setup(files, place(ModelOptions("tiny", ("tiny",)), files), block_size=16, max_model_len=64, size=2)


def pid_of(runner: ParallelRunner) -> int:
    return runner._workers._workers[0]._process.pid


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_worker_that_is_killed_ends_the_step_with_its_name(running: tuple[ParallelRunner, Stepper]) -> None:
    runner, stepper = running
    stepper.greedy({1: [5, 6, 7]}, 3)
    assert runner.trouble() is None
    os.kill(pid_of(runner), signal.SIGKILL)
    step = step_of([stepper.schedule(1, [8], GREEDY)])
    with pytest.raises(RunnerLost, match=r"rank 1 of 2 \(process \d+\) ended with SIGKILL"):
        runner.run(step)
    assert "SIGKILL" in (runner.trouble() or "")


def test_one_that_dies_while_nothing_runs_is_noticed(running: tuple[ParallelRunner, Stepper]) -> None:
    runner, _ = running
    os.kill(pid_of(runner), signal.SIGKILL)
    until(lambda: runner.trouble() is not None)
    assert "ended with SIGKILL" in (runner.trouble() or "")


def test_one_that_fails_says_why(running: tuple[ParallelRunner, Stepper]) -> None:
    """A block that isn't there: the worker can't compute it, nor can the engine's process."""
    runner, stepper = running
    broken = stepper.schedule(1, [5, 6, 7], GREEDY)._replace(block_table=(10_000,))
    with pytest.raises(RunnerLost, match="rank 1 of 2 failed: IndexError: "):
        runner.run(step_of([broken]))


def test_one_that_stands_still_is_waited_for_a_bounded_time(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "TIMEOUT", 3.0)
    runner, stepper = load(files.path, tensor_parallel_size=2, memory_bytes=1 << 20)
    assert isinstance(runner, ParallelRunner)
    os.kill(pid_of(runner), signal.SIGSTOP)
    try:
        with pytest.raises(RunnerLost, match=r"out of step: .*[Tt]imed out"):
            runner.run(step_of([stepper.schedule(1, [5, 6, 7], GREEDY)]))
    finally:
        runner.close()
    assert not alive(pid_of(runner))


def test_a_stop_is_the_engines_to_make(running: tuple[ParallelRunner, Stepper]) -> None:
    """Who signals a whole group means its leader: what runs may finish."""
    runner, stepper = running
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pid_of(runner), number)
    stepper.greedy({1: [5, 6, 7]}, 3)
    assert runner.trouble() is None


def test_a_close_ends_them_and_may_be_said_twice(running: tuple[ParallelRunner, Stepper]) -> None:
    runner, _ = running
    folder = runner._workers.setup.meeting
    assert folder is not None
    runner.close()
    runner.close()
    assert not alive(pid_of(runner))
    assert not folder.parent.exists()


def test_they_end_with_the_engines_process_however_that_ends(files: ModelFiles) -> None:
    command = [sys.executable, "-c", ENGINE, str(files.path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        worker = int(engine.stdout.readline())
        assert alive(worker)
        engine.kill()
    until(lambda: not alive(worker))


def test_what_a_worker_cannot_load_is_said_as_it_says_it(files: ModelFiles) -> None:
    gone = {name: replace(info, file=Path("/nowhere")) for name, info in files.tensors.items()}
    started = Workers(setup_of(replace(files, tensors=gone)))
    with pytest.raises(PagemillError, match="/nowhere") as error:
        started.wait_until_loaded()
    assert error.value.failure.reason is FailureReason.ENGINE_FAILED
    started.close()


def test_a_worker_that_ends_without_a_word_is_named(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_PROGRAM", "pagemill_server.model.no_such_program")
    started = Workers(setup_of(files))
    with pytest.raises(PagemillError, match=r"rank 1 of 2 \(process \d+\) ended with exit code 1"):
        started.wait_until_loaded()
    started.close()
