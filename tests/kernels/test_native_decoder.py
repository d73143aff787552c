"""The native decoder against the torch Llama, and its promise: a token's bits follow from its sequence alone."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pagemill.model_config import ModelConfig
from pagemill.model_files import inspect
from pagemill_kernels import reference
from pagemill_kernels.native.attention import step_layout
from pagemill_kernels.native.decoder import DecoderLayer, DecoderShape, LayerCaches, NativeDecoder, Rotary
from pagemill_kernels.native.matrix import Matrix
from pagemill_server.model.checkpoint import Checkpoint
from pagemill_server.model.families import make_model
from pagemill_server.model.rope import make_table
from tests.kernels.native_libraries import INSTRUCTION_SETS, pool, use_instruction_set
from tests.server.model.tiny_families import NATIVE, write_model
from tests.server.tiny import write_tiny_llama

CPU = torch.device("cpu")
POSITIONS = 256
TOKENS = torch.randint(0, 264, (150,), generator=torch.Generator().manual_seed(0))
LENGTHS = (1, 5, 40, 70, 150)
CONFIGS: dict[str, dict[str, Any]] = {
    "gqa": {},
    "9/3 heads of 64": {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64},
    "untied, biases": {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "heads of 80, odd inner": {"head_dim": 80, "intermediate_size": 101},
}
FAMILIES = ("mistral with a window", "qwen2", "qwen2 with types", "qwen3")


@pytest.fixture(params=INSTRUCTION_SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from use_instruction_set(request.param, monkeypatch)


class Native:
    """A model folder as the native decoder, with caches of its own."""

    def __init__(self, folder: Path, threads: int = 1, arithmetic: torch.dtype = torch.float32, **stored: Any) -> None:
        self.config = inspect(folder).config
        self._arithmetic, self._stored = arithmetic, stored.get("stored", torch.float32)
        self._weights = load_file(folder / "model.safetensors")
        self.decoder = _decoder(self, threads)

    def matrix(self, *names: str, bias: bool = False, paired: bool = False) -> Matrix:
        weight = torch.cat([self._weights[f"{name}.weight"] for name in names]).to(self._source())
        added = torch.cat([self._weights[f"{name}.bias"] for name in names]).float() if bias else None
        return Matrix(weight, added, self._stored, self._arithmetic, paired)

    def vector(self, name: str) -> torch.Tensor:
        return self._weights[f"{name}.weight"].float().contiguous()

    def _source(self) -> torch.dtype:
        return torch.float32 if self._stored == torch.int8 else self._stored

    def hidden(
        self,
        lengths: Sequence[int],
        *,
        block_size: int = 16,
        chunks: Sequence[int] | None = None,
        cache: torch.dtype = torch.float32,
        layers: int | None = None,
    ) -> list[torch.Tensor]:
        """The first so many TOKENS as one sequence each, stepped in chunks: hidden states [length, hidden] of each."""
        config = self.config
        blocks = [-(-length // block_size) for length in lengths]
        shape = config.num_key_value_heads, sum(blocks), block_size, config.head_dim
        keys, values = (
            [torch.full(shape, float("nan"), dtype=cache) for _ in range(config.num_hidden_layers)] for _ in range(2)
        )
        caches = LayerCaches(keys, values)
        free = random.Random(0).sample(range(sum(blocks)), sum(blocks))
        tables = [torch.tensor([free.pop() for _ in range(count)]) for count in blocks]
        outs: list[list[torch.Tensor]] = [[] for _ in lengths]
        done = [0] * len(lengths)
        while active := [index for index, length in enumerate(lengths) if done[index] < length]:
            ids, positions, slots, starts = [], [], [], [0]
            for index in active:
                end = min(lengths[index], done[index] + (chunks[index] if chunks is not None else lengths[index]))
                positions.append(torch.arange(done[index], end))
                ids.append(TOKENS[done[index] : end])
                slots.append(tables[index][positions[-1] // block_size] * block_size + positions[-1] % block_size)
                starts.append(starts[-1] + len(ids[-1]))
                done[index] = end
            padded = torch.nn.utils.rnn.pad_sequence([tables[index] for index in active], batch_first=True)
            layout = step_layout(torch.cat(slots), starts, [done[index] for index in active], padded.contiguous())
            rows = self.decoder.step(torch.cat(ids), torch.cat(positions), layout, caches, layers)
            for place, index in enumerate(active):
                outs[index].append(rows[starts[place] : starts[place + 1]])
        return [torch.cat(out) for out in outs]


def _decoder(native: Native, threads: int) -> NativeDecoder:
    config = native.config
    shape = DecoderShape(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        eps=config.rms_norm_eps,
    )
    table = make_table(config, POSITIONS, torch.float32, CPU)
    layers = [_layer(native, index, Rotary(table.cos, table.sin)) for index in range(config.num_hidden_layers)]
    if config.tie_word_embeddings:
        embedding = head = native.matrix("model.embed_tokens")
        return NativeDecoder(pool(threads), shape, layers, native.vector("model.norm"), embedding, head)
    words = native.vector("model.embed_tokens")
    return NativeDecoder(pool(threads), shape, layers, native.vector("model.norm"), words, native.matrix("lm_head"))


def _layer(native: Native, index: int, rotary: Rotary) -> DecoderLayer:
    name, config = f"model.layers.{index}", native.config
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    qkv = [f"{attention}.{part}_proj" for part in "qkv"]
    return DecoderLayer(
        qkv=native.matrix(*qkv, bias=config.attention_bias),
        out=native.matrix(f"{attention}.o_proj", bias=config.output_bias),
        gate_up=native.matrix(f"{mlp}.gate_proj", f"{mlp}.up_proj", bias=config.mlp_bias, paired=True),
        down=native.matrix(f"{mlp}.down_proj", bias=config.mlp_bias),
        input_norm=native.vector(f"{name}.input_layernorm"),
        mlp_norm=native.vector(f"{name}.post_attention_layernorm"),
        rotary=rotary,
        window=config.window(index),
        q_norm=native.vector(f"{attention}.q_norm") if config.head_norms else None,
        k_norm=native.vector(f"{attention}.k_norm") if config.head_norms else None,
    )


@torch.inference_mode()
def expected(folder: Path, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits of the first so many TOKENS, by the torch family."""
    files = inspect(folder)
    model = make_model(Checkpoint(files, torch.float32, CPU), files.config, POSITIONS)

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: int) -> torch.Tensor:
        kind = model.attention[layer]
        keys, values = (part.transpose(0, 1)[:, None].contiguous() for part in (key, value))
        table = torch.zeros((1, 1), dtype=torch.int64)
        bounds = [len(query)], [0, len(query)]
        return reference.paged_attention(query, keys, values, table, *bounds, kind.window, kind.scale)

    hidden = model.forward(TOKENS[:length], torch.arange(length), attend)
    return hidden, model.logits(hidden)


def assert_close_to_torch(folder: Path) -> None:
    native = Native(folder, threads=2)
    hidden, logits = expected(folder, 70)
    ours = native.hidden([70])[0]
    torch.testing.assert_close(ours, hidden, rtol=0, atol=1e-4)
    torch.testing.assert_close(native.decoder.logits(ours), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", CONFIGS)
def test_it_is_the_torch_llama(tmp_path: Path, config: str) -> None:
    assert_close_to_torch(write_tiny_llama(tmp_path, **CONFIGS[config]))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_other_families_with_a_llama_layer(tmp_path: Path, family: str) -> None:
    assert_close_to_torch(write_model(tmp_path, *NATIVE[family]))


@pytest.mark.parametrize(
    ("stored", "arithmetic", "cache"),
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.float16, torch.float32, torch.bfloat16),
        (torch.int8, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    ],
)
def test_a_tokens_bits_follow_from_its_sequence_alone(
    tmp_path: Path, stored: torch.dtype, arithmetic: torch.dtype, cache: torch.dtype
) -> None:
    folder = write_tiny_llama(tmp_path)
    whole = Native(folder, 1, arithmetic, stored=stored).hidden(LENGTHS, cache=cache)
    draw = random.Random(0)
    for threads, block_size in ((1, 7), (2, 16), (3, 1), (2, 256)):
        native = Native(folder, threads, arithmetic, stored=stored)
        chunks = [draw.choice((1, 2, 7, 33, 100)) for _ in LENGTHS]
        found = native.hidden(LENGTHS, block_size=block_size, chunks=chunks, cache=cache)
        assert all(torch.equal(one, other) for one, other in zip(found, whole, strict=True))
        alone = [native.hidden([length], block_size=block_size, cache=cache)[0] for length in LENGTHS]
        assert all(torch.equal(one, other) for one, other in zip(alone, whole, strict=True))
        rows = native.decoder.logits(found[-1])
        assert torch.equal(native.decoder.logits(found[-1][40:41]), rows[40:41])


def test_fewer_bits_stay_near_float32(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    exact = Native(folder).hidden([70])[0]
    for stored, arithmetic, bound in (
        (torch.float16, torch.float32, 0.005),  # 11 bits are kept
        (torch.bfloat16, torch.float32, 0.03),  # 8
        (torch.bfloat16, torch.bfloat16, 0.05),
        (torch.int8, torch.float32, 0.1),  # 8, of a row's largest
    ):
        hidden = Native(folder, 1, arithmetic, stored=stored).hidden([70])[0]
        assert 0 < (hidden - exact).norm() / exact.norm() < bound


def test_two_steps_of_one_prompt_may_share_blocks_in_one_step(tmp_path: Path) -> None:
    """All of a layer's keys are written before any is read: a sequence may begin behind blocks that another fills now."""
    native = Native(write_tiny_llama(tmp_path), threads=2)
    config: ModelConfig = native.config
    shape = config.num_key_value_heads, 3, 32, config.head_dim
    caches = LayerCaches(*([torch.full(shape, float("nan")) for _ in range(2)] for _ in range(2)))
    tables = torch.tensor([[0, 1], [0, 2]])
    ids, positions = torch.cat((TOKENS[:32], TOKENS[32:40])), torch.arange(40)
    layout = step_layout(torch.cat((torch.arange(32), torch.arange(64, 72))), [0, 32, 40], [32, 40], tables)
    shared = native.decoder.step(ids, positions, layout, caches)
    assert torch.equal(shared, native.hidden([40])[0])


def test_the_first_layers_alone_can_run(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    one, both = (Native(folder).hidden([9], layers=layers)[0] for layers in (1, 2))
    assert not torch.equal(one, both)
    assert torch.equal(both, Native(folder).hidden([9])[0])


def test_its_workspace_follows_the_widest_step(tmp_path: Path) -> None:
    native = Native(write_tiny_llama(tmp_path))
    native.hidden([100])
    # What enters a product [T, 64] and queries, keys, values [T, 128], in float32.
    assert native.decoder.workspace_bytes == 100 * (64 + 128) * 4
    native.hidden([20])
    assert native.decoder.workspace_bytes == 100 * (64 + 128) * 4


def test_it_says_where_a_steps_time_went(tmp_path: Path) -> None:
    native, seconds = Native(write_tiny_llama(tmp_path)), (ctypes.c_double * 3)()
    native.decoder.measure(seconds)
    native.hidden([50])
    assert all(second > 0 for second in seconds)
    native.decoder.measure(None)
    before = list(seconds)
    native.hidden([50])
    assert list(seconds) == before


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    native = Native(write_tiny_llama(tmp_path))
    layout = step_layout(torch.zeros(1, dtype=torch.int64), [0, 1], [1], torch.zeros((1, 1), dtype=torch.int64))
    caches = LayerCaches(*([torch.zeros(2, 1, 16, 16) for _ in range(2)] for _ in range(2)))
    zero = torch.zeros(1, dtype=torch.int64)
    assert native.decoder.step(zero, zero, layout, caches).shape == (1, 64)
    for token, position, word in ((264, 0, "token"), (-1, 0, "token"), (0, POSITIONS, "position"), (0, -1, "position")):
        with pytest.raises(IndexError, match=word):
            native.decoder.step(zero + token, zero + position, layout, caches)
    few = LayerCaches([torch.zeros(2, 1, 16, 16)], [torch.zeros(2, 1, 16, 16)])
    wide = LayerCaches(*([torch.zeros(2, 1, 16, 32) for _ in range(2)] for _ in range(2)))
    for wrong, word in ((few, "1 caches for 2 layers"), (wide, "caches of")):
        with pytest.raises(ValueError, match=word):
            native.decoder.step(zero, zero, layout, wrong)
    with pytest.raises(ValueError, match="hidden is"):
        native.decoder.logits(torch.zeros(1, 32))
    shape = DecoderShape(hidden=64, heads=4, kv_heads=2, head_dim=32, vocab=264, eps=1e-5)
    layer, head = _layer(native, 0, Rotary(*torch.zeros(2, 4, 32))), native.matrix("model.embed_tokens")
    with pytest.raises(ValueError, match="do not fit"):
        NativeDecoder(pool(1), shape, [layer], native.vector("model.norm"), head, head)
