"""One choice in the making: engine outputs in, pieces of text out, with log-probabilities in step. Pure.

Holds back half characters and what may become a stop string; a token's log-probability goes out with its last character. What
a stop string cuts off takes its tokens along. Used by `api/generate` and by `LLM`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pagemill_server.api.thinking import ThinkingMeter
from pagemill_server.engine.request import FinishReason, RequestOutput, SampledToken
from pagemill_server.text.detokenizer import Detokenizer, TokenBytes
from pagemill_server.text.stop import StopStrings


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token whose text is out. Filled by `Choice` when log-probabilities are asked for."""

    sampled: SampledToken
    offset: int  # characters of text before it


@dataclass(frozen=True, slots=True)
class Piece:
    """What one engine output brought for the client; the one with `finish_reason` is the last."""

    text: str
    tokens: tuple[ShownToken, ...] = ()
    finish_reason: FinishReason | None = None  # STOP or LENGTH


class Choice:
    """`offset` is how many characters of the client's text come before it. With `shows_stop` a stop token, which has no text, is
    among the tokens shown. `shown` are special tokens that are text all the same."""

    def __init__(
        self,
        vocabulary: TokenBytes,
        stops: Sequence[str],
        logprobs: bool,
        *,
        min_tokens: int = 0,
        offset: int = 0,
        shows_stop: bool = False,
        shown: Collection[int] = (),
        thinking: ThinkingMeter | None = None,
    ) -> None:
        self.num_tokens = 0  # sampled, an EOS and what a stop string cut included
        self.num_cached_tokens = 0  # of the prompt
        self.prompt_logprobs: list[SampledToken] = []  # of the prompt's tokens from the second on; of index 0 only
        self.over = False  # its last piece is out
        self._detokenizer = Detokenizer(vocabulary, shown=shown)
        self._stops = StopStrings(stops)
        self._logprobs = logprobs
        self._min_tokens = min_tokens
        self._shows_stop = shows_stop
        self._thinking = thinking
        self._decoded = offset  # characters that left the detokenizer
        self._shown = offset  # characters that went out
        self._waiting: deque[tuple[ShownToken, int]] = deque()  # with the number of characters that must be out first

    def feed(self, output: RequestOutput) -> Piece:
        """Not to be called after a piece with a finish_reason. Outputs with ABORT or ERROR are the caller's to handle."""
        reason = output.finish_reason
        self.num_cached_tokens = max(self.num_cached_tokens, output.num_cached_tokens)
        self.prompt_logprobs += output.prompt_logprobs
        text = ""
        for place, token in enumerate(output.tokens, start=1):
            self.num_tokens += 1
            if reason is FinishReason.STOP and place == len(output.tokens):
                self._take_stop(token)
                break
            text += self._take(token)
            if self._stops.matched:
                return self._piece(text, FinishReason.STOP)
        if reason is not None:
            text += self._stops.push(self._detokenizer.flush(), self._armed)
            if self._stops.matched:
                return self._piece(text, FinishReason.STOP)
            text += self._stops.flush()
        return self._piece(text, reason)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of `num_tokens`."""
        return 0 if self._thinking is None else self._thinking.count(self.num_tokens)

    @property
    def _armed(self) -> bool:
        """Whether a stop string that the newest token completes ends it."""
        return self.num_tokens > self._min_tokens

    def _take(self, token: SampledToken) -> str:
        start = self._decoded + self._detokenizer.cuts_off(token.token_id)
        decoded = self._detokenizer.push(token.token_id)
        if self._thinking is not None:
            self._thinking.push(decoded, self.num_tokens)
        self._decoded += len(decoded)
        if self._logprobs:
            self._waiting.append((ShownToken(token, start), self._decoded + self._detokenizer.within_character))
        return self._stops.push(decoded, self._armed)

    def _take_stop(self, token: SampledToken) -> None:
        """The token that ended it is never text."""
        if self._logprobs and self._shows_stop:
            self._waiting.append((ShownToken(token, self._decoded), self._decoded))

    def _piece(self, text: str, reason: FinishReason | None) -> Piece:
        self._shown += len(text)
        self.over = reason is not None
        if self._stops.matched:
            due = [token for token, _ in self._waiting if token.offset < self._shown]
        elif reason is not None:
            due = [token for token, _ in self._waiting]
        else:
            due = []
            while self._waiting and self._waiting[0][1] <= self._shown:
                due.append(self._waiting.popleft()[0])
        return Piece(text, tuple(due), reason)
