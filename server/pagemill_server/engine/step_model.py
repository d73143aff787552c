"""What a step of the model takes, as a straight line fitted to the steps that were measured.

    seconds = base + per_token x tokens + per_sequence x sequences + per_context_token x context tokens

No coefficient is below 0. The fit is weighted least squares of the relative error, so that a decode of 5 ms counts as much as a
prompt of 5 s, and the past is forgotten by and by, because machines get busy. What the steps at hand don't tell (how prompts cost,
while only decodes run) stays as it was last known. Fed by `engine`; asked by `estimate`, by the choice between fetching and
recomputing, and by the replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pagemill_server.engine.schedule import SchedulerOutput

Array = npt.NDArray[np.float64]

REMEMBERED = 0.999  # what a measurement's weight is multiplied by with each that follows
ANCHOR = 1e-6  # weight of staying with what was known before, beside the 1 of a measurement
REFIT_EVERY = 32  # measurements
SHORTEST, LONGEST = 1e-7, 1e5  # seconds: what is outside is no measurement


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step its time depends on."""

    num_tokens: int  # computed
    num_sequences: int
    num_context_tokens: int  # positions that are attended to: of each computed token those up to and with it, summed

    @classmethod
    def of(cls, output: SchedulerOutput) -> StepShape:
        return cls.of_chunks((entry.start, len(entry.token_ids)) for entry in output.sequences)

    @classmethod
    def of_chunks(cls, chunks: Iterable[tuple[int, int]]) -> StepShape:
        """Of pairs (tokens in the cache before, tokens computed), one a sequence."""
        tokens = sequences = context = 0
        for start, length in chunks:
            tokens += length
            sequences += 1
            context += attended(start, length)
        return cls(tokens, sequences, context)


def attended(start: int, length: int) -> int:
    """Positions that `length` tokens attend to which come after `start` others, summed."""
    return length * start + length * (length + 1) // 2


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds."""

    base: float = 5e-3
    per_token: float = 1e-3
    per_sequence: float = 1e-4
    per_context_token: float = 1e-7


class StepModel:
    """Starts from `coefficients`, by default those of a small model on few cores, and learns from the first step on."""

    def __init__(self, coefficients: Coefficients | None = None) -> None:
        self.num_observed = 0
        self._known = _row(coefficients or Coefficients())
        self._gram = np.zeros((4, 4))  # sum of weight x features x features, both over the step's seconds
        self._target = np.zeros(4)  # sum of weight x features over the step's seconds
        self._new: list[tuple[float, float, float, float]] = []  # measurements that are not in the sums yet
        self._fitted_at = 0  # num_observed when _known was fitted

    @property
    def coefficients(self) -> Coefficients:
        """What it knows now."""
        self._fit_if_due()
        return Coefficients(*map(float, self._known))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """A step of that shape took so long. What no step can have taken is left out."""
        if not (shape.num_tokens > 0 and SHORTEST < seconds < LONGEST):
            return
        # Between two steps every microsecond counts, so they are added up some at a time.
        self._new.append(
            (1 / seconds, shape.num_tokens / seconds, shape.num_sequences / seconds, shape.num_context_tokens / seconds)
        )
        self.num_observed += 1
        if len(self._new) >= REFIT_EVERY:
            self._add_up()

    def _add_up(self) -> None:
        """The newest counts most."""
        features, count = np.array(self._new), len(self._new)
        weights = REMEMBERED ** np.arange(count - 1, -1, -1)
        weighted = features * weights[:, None]
        self._gram = REMEMBERED**count * self._gram + weighted.T @ features
        self._target = REMEMBERED**count * self._target + weighted.sum(0)
        self._new.clear()

    def seconds(self, shape: StepShape) -> float:
        """Of one step of that shape."""
        self._fit_if_due()
        return float(_features(shape) @ self._known)

    def prefill_seconds(self, num_tokens: int, context: int = 0) -> float:
        """What computing so many tokens of one sequence, after `context` others, adds to the steps in which it happens."""
        self._fit_if_due()
        return float(self._known[1] * num_tokens + self._known[3] * attended(context, num_tokens))

    def to_dict(self) -> dict[str, float]:
        return asdict(self.coefficients)

    @classmethod
    def from_dict(cls, coefficients: Mapping[str, float]) -> StepModel:
        """Raises TypeError for keys that `to_dict` doesn't give, ValueError for what is no number from 0 up."""
        made = Coefficients(**coefficients)
        if not all(0 <= value < float("inf") for value in _row(made)):
            raise ValueError(f"coefficients of a step are finite and not negative: {dict(coefficients)}")
        return cls(made)

    def _fit_if_due(self) -> None:
        """The first steps are fitted one by one: until then everything is a guess."""
        new = self.num_observed - self._fitted_at
        if new >= REFIT_EVERY or (new and self.num_observed <= REFIT_EVERY):
            if self._new:
                self._add_up()
            self._known = _fit(self._gram, self._target, self._known)
            self._fitted_at = self.num_observed


def _features(shape: StepShape) -> Array:
    return np.array([1.0, shape.num_tokens, shape.num_sequences, shape.num_context_tokens])


def _row(coefficients: Coefficients) -> Array:
    return np.array(list(asdict(coefficients).values()), dtype=np.float64)


def _fit(gram: Array, target: Array, known: Array) -> Array:
    """The coefficients from 0 up with the least squared error, plus ANCHOR times their squared relative distance from `known`."""
    scale = np.maximum(known, _row(Coefficients()) * 1e-3)
    matrix = gram * np.outer(scale, scale) + ANCHOR * np.eye(4)
    wanted = target * scale + ANCHOR * known / scale
    best, least = np.zeros(4), 0.0  # all of them 0, whose error stands for 0 here
    for size in range(1, 5):
        for chosen in combinations(range(4), size):
            picked = list(chosen)
            try:
                values = np.linalg.solve(matrix[np.ix_(picked, picked)], wanted[picked])
            except (
                np.linalg.LinAlgError
            ):  # steps so alike, and so short, that ANCHOR is lost in rounding: fewer explain them
                continue
            error = -float(values @ wanted[picked])
            if error < least and (values >= 0).all():
                best, least = np.zeros(4), error
                best[picked] = values
    return np.asarray(best * scale)
