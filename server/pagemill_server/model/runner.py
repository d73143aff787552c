"""Computes one step: batch → model → sampler. Owns the weights and, through its backend, the KV tensors.

Implements `engine.ports.ModelRunner`; what moves between the tiers is `block_copies`' work. Called by the engine's thread only.
Made by `load.load_runner`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill_server.engine.schedule import RunnerOutput, SchedulerOutput
from pagemill_server.model.batch import InputBatch, make_batch
from pagemill_server.model.block_copies import BlockCopier
from pagemill_server.model.families import Model
from pagemill_server.model.grammar_masks import NO_MASKS, GrammarMasks
from pagemill_server.model.interface import AttentionBackend
from pagemill_server.model.logprobs import of_prompt
from pagemill_server.model.pooling import embed
from pagemill_server.model.sampler import sample

# Seconds that a step without sequences waits for a fetch, before the engine looks at its messages again.
FETCH_WAIT = 0.05


class Runner:
    """The model on its device."""

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        block_size: int,
        device: torch.device,
        copier: BlockCopier | None = None,
        embedding: EmbeddingConfig = LAST_TOKEN,
        grammar_masks: GrammarMasks | None = None,
    ) -> None:
        """Without `grammar_masks` a sequence that has a grammar fails."""
        self._model, self._attention, self._block_size, self._device = model, attention, block_size, device
        self._copier, self._embedding, self._grammar_masks = copier, embedding, grammar_masks

    def run(self, output: SchedulerOutput) -> RunnerOutput:
        """Compute the step's tokens, write their KV through the block tables, sample where asked; begin and report copies."""
        if self._copier is None:
            assert len(output.offloads) + len(output.fetches) == 0, "there is no host tier"
            return self._compute(output)
        self._copier.begin(output.offloads, output.fetches)
        result = self._compute(output)
        ended = self._copier.ended(0.0 if output.sequences else FETCH_WAIT)
        return replace(result, fetched=ended.tickets, fetch_seconds=ended.seconds) if ended.tickets else result

    def trouble(self) -> str | None:
        """Why no later step can succeed, or None; any thread may ask."""
        return None

    def close(self) -> None:
        """Let copies under way end. A second call does nothing."""
        if self._copier is not None:
            self._copier.close()

    def _compute(self, output: SchedulerOutput) -> RunnerOutput:
        if not output.sequences:
            return RunnerOutput({})
        with torch.inference_mode():
            batch = make_batch(output, self._block_size, self._device)
            hidden = self._hidden(batch)
            result = self._with_prompts(self._sample(hidden, batch, output), hidden, batch)
            return self._with_embeddings(result, hidden, batch)

    def _sample(self, hidden: torch.Tensor, batch: InputBatch, output: SchedulerOutput) -> RunnerOutput:
        if not batch.sampled:
            return RunnerOutput({})
        # In most steps every row is sampled, and they stand in order.
        rows = hidden if len(batch.sampled) == hidden.shape[0] else hidden.index_select(0, batch.sample_rows)
        logits = self._model.logits(rows)
        masks = NO_MASKS if self._grammar_masks is None else self._grammar_masks.of(output)
        result = sample(logits, batch.sampled, masks.forbidden)
        return replace(result, errors=dict(masks.errors)) if masks.errors else result

    def _with_prompts(self, result: RunnerOutput, hidden: torch.Tensor, batch: InputBatch) -> RunnerOutput:
        """The same with the log-probabilities of prompts that are wanted."""
        if not batch.scored:
            return result
        scored = {
            sequence.seq_id: of_prompt(sequence, hidden[row : row + len(sequence.prompt_targets)], self._model.logits)
            for row, sequence in batch.scored
        }
        lost = frozenset(seq_id for seq_id, tokens in scored.items() if tokens is None)
        return replace(
            result,
            sampled={seq_id: token for seq_id, token in result.sampled.items() if seq_id not in lost},
            failed=result.failed | lost,
            prompt_logprobs={seq_id: tokens for seq_id, tokens in scored.items() if tokens is not None},
        )

    def _with_embeddings(self, result: RunnerOutput, hidden: torch.Tensor, batch: InputBatch) -> RunnerOutput:
        """The same with the vectors that are wanted."""
        if not batch.pooled:
            return result
        rows = hidden.index_select(0, batch.pool_rows)
        vectors = {
            sequence.seq_id: embed(rows[[place]], self._embedding) for place, sequence in enumerate(batch.pooled)
        }
        return replace(
            result,
            failed=result.failed | {seq_id for seq_id, vector in vectors.items() if vector is None},
            embeddings={seq_id: vector for seq_id, vector in vectors.items() if vector is not None},
        )

    def logits(self, output: SchedulerOutput) -> torch.Tensor:
        """The step's logits for every token, float32 [T, vocab_size]: what tests and evaluations compare."""
        with torch.inference_mode():
            return self._model.logits(self._hidden(make_batch(output, self._block_size, self._device)))

    def _hidden(self, batch: InputBatch) -> torch.Tensor:
        return self._model.forward(batch.token_ids, batch.positions, self._attention.begin(batch.metadata))
