"""The engine from Python, without HTTP: `LLM(model).generate(prompts, params)`, `chat`, `embed`, on the same engine and loader.

For scripts and tests. Synchronous: one thread at a time. Arguments, methods and results have the names that vLLM's users know.
Each call computes all of its prompts together and returns when the last is done.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from pagemill.model_files import Task
from pagemill_server.api.service import Generator
from pagemill_server.engine.params import validated
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.offline import arguments
from pagemill_server.offline.collect import Answers, Vector
from pagemill_server.offline.open_model import OpenModel, open_model
from pagemill_server.offline.progress import Progress
from pagemill_server.offline.prompts import (
    Message,
    Prompt,
    as_conversations,
    as_list,
    encode,
    encode_for_embedding,
    render,
)
from pagemill_server.offline.results import EmbedResult, GenerateResult
from pagemill_server.offline.run import GenerationFailed, run
from pagemill_server.offline.structured import with_grammar

__all__ = ["LLM", "EmbedResult", "GenerateResult", "GenerationFailed", "SamplingParams"]


class LLM:
    """A loaded model. Raises PagemillError, with one line that says what to change, when it can't be had as asked.

    `task` is what the model was made for, unless said otherwise: a decoder that was made to generate can make embeddings. Sizes
    are bytes or "2GiB", `kv_offloading_size` is in GiB. What is None is derived from the model and the machine.
    """

    def __init__(
        self,
        model: str,
        *,
        task: Task | None = None,
        dtype: str = "auto",
        device: str = "auto",
        max_model_len: int | None = None,
        seed: int = 0,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        scheduling_policy: str | None = None,
        block_size: int | None = None,
        gpu_memory_utilization: float = 0.9,
        kv_cache_memory_bytes: int | str | None = None,
        enable_prefix_caching: bool = True,
        kv_offloading_size: float = 0,
        tensor_parallel_size: int = 1,
        generation_config: str = "auto",
        quantization: str | None = None,
    ) -> None:
        settings = arguments.settings(
            arguments.model_options(
                model, task, dtype, device, max_model_len, seed, tensor_parallel_size, quantization
            ),
            arguments.cache_config(
                block_size,
                gpu_memory_utilization,
                kv_cache_memory_bytes,
                enable_prefix_caching,
                kv_offloading_size,
            ),
            arguments.scheduler_config(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                scheduling_policy=scheduling_policy,
            ),
            arguments.chat_options(generation_config),
        )
        self._open: OpenModel | None = open_model(settings)
        self._ids = itertools.count()
        self._one_at_a_time = (
            threading.Lock()
        )  # the engine is one thread's at a time: calls from others wait their turn

    @property
    def task(self) -> Task:
        """What it was loaded for."""
        return "generate" if self._opened().embedding is None else "embed"

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without settings gets: the model's own generation_config.json. To be changed with dataclasses.replace."""
        _, generator = self._generating()
        defaults = generator.defaults
        length = SamplingParams().max_tokens if defaults.max_tokens is None else defaults.max_tokens
        return SamplingParams(**defaults.sampling(), max_tokens=length)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[GenerateResult]:
        """Continue each prompt; the results are in the prompts' order. Settings are one for all, or one a prompt.

        `use_tqdm` is vLLM's name for a progress bar on a terminal. Raises ValueError (InvalidSampling is one) and
        engine.errors.RequestRefused for what can't be served, before anything is computed; GenerationFailed.
        """
        given = as_list(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        model, _ = self._generating()
        ids = [encode(model.tokenizer, prompt, place) for place, prompt in enumerate(given)]
        return self._answer(ids, texts, sampling_params, priority, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        use_tqdm: bool = True,
    ) -> list[GenerateResult]:
        """The assistant's next turn in one or many conversations, through the model's own template. Raises as `generate`."""
        model, generator = self._generating()
        conversations = enumerate(as_conversations(messages))
        texts = [render(generator.template, conversation, place) for place, conversation in conversations]
        # The template has written the special tokens itself.
        ids = [encode(model.tokenizer, text, place, add_special=False) for place, text in enumerate(texts)]
        return self._answer(ids, texts, sampling_params, priority, use_tqdm)

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, truncate_prompt_tokens: int | None = None, use_tqdm: bool = True
    ) -> list[EmbedResult]:
        """A vector of each text, in their order, as the model's own files say.

        `truncate_prompt_tokens` keeps the first so many tokens, special ones included, of what is longer (-1: as many as the
        model takes); without it, what is longer than the model takes is refused. Raises as `generate`.
        """
        model = self._opened()
        if model.embedding is None:
            raise ValueError(
                "the model was loaded to generate, since its files do not say how it makes embeddings: "
                'LLM(…, task="embed") makes them of the last token'
            )
        keep = _kept(truncate_prompt_tokens, model.engine.limits.max_model_len)
        ids = [
            encode_for_embedding(model.tokenizer, model.embedding, prompt, place, keep)
            for place, prompt in enumerate(as_list(prompts))
        ]
        vectors = [Vector(self._request(text, _NOT_SAMPLED, pooling=True)) for text in ids]
        with self._one_at_a_time, Progress("Embedding", len(vectors), use_tqdm) as progress:
            run(model.engine, vectors, progress)
        return [vector.result() for vector in vectors]

    def close(self) -> None:
        """Give the model's threads, workers and memory back; a second call does nothing."""
        model, self._open = self._open, None
        if model is not None:
            model.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> OpenModel:
        if self._open is None:
            raise RuntimeError("this LLM is closed")
        return self._open

    def _generating(self) -> tuple[OpenModel, Generator]:
        model = self._opened()
        if model.encoder:
            raise ValueError("the model is an encoder: it makes embeddings (use embed) and generates no text")
        if model.generator is None:
            raise ValueError('the model was loaded for embeddings: use embed, or LLM(…, task="generate")')
        return model, model.generator

    def _answer(
        self,
        prompts: Sequence[tuple[int, ...]],
        texts: Sequence[str | None],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: Sequence[int] | None,
        use_tqdm: bool,
    ) -> list[GenerateResult]:
        (model, generator), count = self._generating(), len(prompts)
        shared = self.get_default_sampling_params() if sampling_params is None else sampling_params
        settings = [shared] * count if isinstance(shared, SamplingParams) else shared
        arguments.check_each("sampling_params", settings, SamplingParams, count)
        priorities = [0] * count if priority is None else priority
        arguments.check_each("priority", priorities, int, count)
        answers = []
        for ids, text, asked, urgency in zip(prompts, texts, settings, priorities, strict=True):
            sampling = with_grammar(validated(asked, model.engine.limits.vocab_size), generator.grammars)
            sampling = with_eos(sampling, generator.eos_token_ids)
            answers.append(Answers(self._request(ids, sampling, priority=urgency), text, generator.vocabulary))
        with self._one_at_a_time, Progress("Generating", count, use_tqdm) as progress:
            run(model.engine, answers, progress)
        return [answer.result() for answer in answers]

    def _request(
        self, ids: tuple[int, ...], sampling: SamplingParams, *, priority: int = 0, pooling: bool = False
    ) -> AddRequest:
        name = f"llm-{next(self._ids)}"
        return AddRequest(name, ids, sampling, time.monotonic(), priority=priority, pooling=pooling)


_NOT_SAMPLED = SamplingParams()


def with_eos(sampling: SamplingParams, eos_ids: Sequence[int]) -> SamplingParams:
    """The model's own ends among the stop tokens, unless they are to be ignored."""
    if sampling.ignore_eos:
        return sampling
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *eos_ids))))


def _kept(asked: int | None, longest: int) -> int | None:
    if asked is None:
        return None
    if asked != -1 and not 1 <= asked <= longest:
        raise ValueError(f"truncate_prompt_tokens must be -1, or from 1 to the model's {longest}, not {asked}")
    return longest if asked == -1 else asked
