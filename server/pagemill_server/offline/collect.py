"""Results in the making: what the engine brings of one request, until it is whole. Fed by `offline/run`; knows no engine."""

from __future__ import annotations

from pagemill_server.api.choice import Choice
from pagemill_server.engine.request import AddRequest, FinishReason, RequestOutput, SampledToken
from pagemill_server.offline.results import Completion, Embedding, EmbedResult, GenerateResult, Logprob, TokenLogprobs
from pagemill_server.text.detokenizer import TokenBytes


class Answers:
    """A prompt's n answers."""

    def __init__(self, request: AddRequest, prompt: str | None, vocabulary: TokenBytes) -> None:
        self.request = request
        self._prompt = prompt
        self._vocabulary = vocabulary
        self._answers = [_Answer(request, vocabulary) for _ in range(request.sampling.n)]
        self._prompt_logprobs: list[SampledToken] = []
        self._num_cached_tokens = 0

    def take(self, output: RequestOutput) -> bool:
        self._prompt_logprobs += output.prompt_logprobs
        if output.index == 0:  # the others had the prompt from it
            self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        return self._answers[output.index].take(output)

    @property
    def over(self) -> bool:
        return all(answer.finish_reason is not None for answer in self._answers)

    def result(self) -> GenerateResult:
        prompt_logprobs: list[TokenLogprobs | None] | None = None
        if self.request.sampling.prompt_logprobs is not None:
            prompt_logprobs = [None, *(logprobs(token, self._vocabulary) for token in self._prompt_logprobs)]
        return GenerateResult(
            prompt=self._prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=tuple(answer.completion(index) for index, answer in enumerate(self._answers)),
            num_cached_tokens=self._num_cached_tokens,
        )


class _Answer:
    """Pieces of one answer, until it is whole."""

    def __init__(self, request: AddRequest, vocabulary: TokenBytes) -> None:
        self.finish_reason: FinishReason | None = None
        sampling = request.sampling
        self._wants_logprobs = sampling.logprobs is not None
        self._vocabulary = vocabulary
        self._choice = Choice(vocabulary, sampling.stop, logprobs=False, min_tokens=sampling.min_tokens)
        self._text: list[str] = []
        self._tokens: list[SampledToken] = []

    def take(self, output: RequestOutput) -> bool:
        if self.finish_reason is None:
            piece = self._choice.feed(output)
            self._text.append(piece.text)
            self._tokens += output.tokens
            self.finish_reason = piece.finish_reason
        return self.finish_reason is not None

    def completion(self, index: int) -> Completion:
        assert self.finish_reason is not None
        listed = [logprobs(token, self._vocabulary) for token in self._tokens] if self._wants_logprobs else None
        total = sum(token.logprob or 0.0 for token in self._tokens) if self._wants_logprobs else None
        ids = tuple(token.token_id for token in self._tokens)
        return Completion(index, "".join(self._text), ids, self.finish_reason, listed, total)


def logprobs(token: SampledToken, vocabulary: TokenBytes) -> TokenLogprobs:
    """The token and its likeliest alternatives, by id."""

    def spelled(token_id: int) -> str:
        return vocabulary.spelled(token_id).decode("utf-8", "replace")

    made = {one.token_id: Logprob(one.logprob, rank, spelled(one.token_id)) for rank, one in enumerate(token.top, 1)}
    if token.token_id not in made and token.logprob is not None:
        made[token.token_id] = Logprob(token.logprob, token.rank, spelled(token.token_id))
    return made


class Vector:
    """A text's embedding."""

    def __init__(self, request: AddRequest) -> None:
        self.request = request
        self._vector: tuple[float, ...] | None = None

    def take(self, output: RequestOutput) -> bool:
        self._vector = output.embedding
        return True

    @property
    def over(self) -> bool:
        return self._vector is not None

    def result(self) -> EmbedResult:
        assert self._vector is not None
        return EmbedResult(self.request.prompt_token_ids, Embedding(self._vector))
