"""What a step takes, as a file: the coefficients of the engine's own step model, fitted to measured steps of one machine.

Written by `fit_step`, with the machine line; read by everything that replays in virtual time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload_file import WorkloadError
from pagemill_server.engine.schedule import SchedulerOutput
from pagemill_server.engine.step_model import Coefficients, StepModel, StepShape


@dataclass(frozen=True, slots=True)
class StepCost:
    """Fixed for a whole replay: nothing is learnt on the way."""

    step: Coefficients
    copy_block_s: float  # one block of 32 tokens from one tier to the other
    budget: int = 512  # tokens a step, which a long prompt is cut by
    origin: str = "made up"  # model and machine that it was measured on

    def step_seconds(self, output: SchedulerOutput) -> float:
        return self.shape_seconds(StepShape.of(output))

    def shape_seconds(self, shape: StepShape) -> float:
        step = self.step
        return (
            step.base
            + step.per_token * shape.num_tokens
            + step.per_sequence * shape.num_sequences
            + step.per_context_token * shape.num_context_tokens
        )

    def copy_seconds(self, num_blocks: int) -> float:
        return self.copy_block_s * num_blocks

    def alone_seconds(self, prompt_tokens: int) -> float:
        """To the first token of a prompt that has the machine for itself, and one full step: the one it finds running."""
        total, done = self.full_step, 0
        while done < prompt_tokens:
            length = min(self.budget, prompt_tokens - done)
            total += self.shape_seconds(StepShape.of_chunks([(done, length)]))
            done += length
        return total

    @property
    def full_step(self) -> float:
        """A step that is full to its budget with the beginning of a prompt."""
        return self.shape_seconds(StepShape.of_chunks([(0, self.budget)]))


def as_json(cost: StepCost) -> dict[str, Any]:
    return {"coefficients": asdict(cost.step), "copy_block_s": cost.copy_block_s, "origin": cost.origin}


def read(path: Path, budget: int) -> StepCost:
    """Raises WorkloadError for a file that `fit_step` didn't write."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        model = StepModel.from_dict(body["coefficients"])
        return StepCost(model.coefficients, float(body["copy_block_s"]), budget, str(body["origin"]))
    except OSError as error:
        raise WorkloadError(f"{path} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WorkloadError(f"{path} holds no step coefficients: {error!r}") from None
