"""Which tokens a sequence's grammar allows next. Keeps a matcher for each sequence that has one.

A matcher is brought up to date from the output tokens that the scheduler hands over, so that one that is missing (the sequence is
new, or comes back from a preemption) is only made anew. It goes with its sequence: what a step doesn't run has none after it.
Called by `runner` once the model's pass is under way, so that a GPU computes meanwhile; on a CPU a thread beside the pass cost more
than the tens of microseconds that a mask takes (docs/log.md). The grammars were compiled at the door.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from llguidance import LLMatcher

from pagemill_server.engine.schedule import ScheduledSequence, SchedulerOutput
from pagemill_server.text.grammar import GrammarCompiler, InvalidGrammar
from pagemill_server.text.grammar.compiler import readable

# What a sequence's masks may take of the engine's thread, where everybody waits. A usual mask takes a hundredth of TOKEN_SECONDS.
FREE_SECONDS, TOKEN_SECONDS = 1.0, 0.01
BROKEN = "The answer's grammar can't be followed any further: "


@dataclass(frozen=True, slots=True)
class Masks:
    """By seq_id, of the sequences of a step that have a grammar: each is in one of the two."""

    forbidden: Mapping[int, torch.Tensor] = field(default_factory=dict)  # bool [vocab_size], on the CPU
    errors: Mapping[int, str] = field(default_factory=dict)  # a sentence for the client


@dataclass(slots=True)
class _Followed:
    """A matcher of a grammar, and the output tokens that it has read."""

    grammar: str
    matcher: LLMatcher
    read: tuple[int, ...] = ()
    seconds: float = 0.0  # of computing, for its masks so far

    def is_of(self, grammar: str, output: tuple[int, ...]) -> bool:
        """Ids of sequences are an engine's own: another engine's may have been here before."""
        return self.grammar == grammar and output[: len(self.read)] == self.read


NO_MASKS = Masks()


class GrammarMasks:
    """`grammars` may be the one that the front end checks with: then nothing is compiled here."""

    def __init__(self, grammars: GrammarCompiler, vocab_size: int) -> None:
        self._grammars, self._vocab_size = grammars, vocab_size
        self._followed: dict[int, _Followed] = {}  # by seq_id

    def of(self, output: SchedulerOutput) -> Masks:
        """A step's masks."""
        held = [s for s in output.sequences if s.sampling is not None and s.sampling.grammar]
        if not held and not self._followed:
            return NO_MASKS
        here = {sequence.seq_id for sequence in output.sequences}
        self._followed = {seq_id: followed for seq_id, followed in self._followed.items() if seq_id in here}
        return self._compute(held)

    def _compute(self, sequences: Sequence[ScheduledSequence]) -> Masks:
        forbidden: dict[int, torch.Tensor] = {}
        errors: dict[int, str] = {}
        for sequence in sequences:
            try:
                forbidden[sequence.seq_id] = self._forbidden(sequence)
            except InvalidGrammar as error:
                errors[sequence.seq_id] = BROKEN + str(error)
                self._followed.pop(sequence.seq_id, None)
        return Masks(forbidden, errors)

    def _forbidden(self, sequence: ScheduledSequence) -> torch.Tensor:
        """Raises InvalidGrammar where the grammar ran into a limit of its parser, or into a dead end."""
        assert sequence.sampling is not None
        assert sequence.output_tokens is not None, "the scheduler hands the output of a sequence with a grammar"
        text, output = sequence.sampling.grammar, sequence.output_tokens
        followed = self._followed.get(sequence.seq_id)
        if followed is None or not followed.is_of(text, output):
            followed = self._followed[sequence.seq_id] = _Followed(text, self._grammars.matcher(text))
        matcher, began = followed.matcher, time.thread_time()
        matcher.consume_tokens(list(output[len(followed.read) :]))
        followed.read = output
        allowed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            self._grammars.forget(text)  # a limit may be one that all copies of it reach together
            raise InvalidGrammar(readable(matcher.get_error()))
        followed.seconds += time.thread_time() - began
        if followed.seconds > FREE_SECONDS + TOKEN_SECONDS * len(output):
            raise InvalidGrammar("it takes too long to say what may come next.")
        return torch.from_numpy(np.unpackbits(allowed, count=self._vocab_size, bitorder="little") == 0)
