"""The native encoder against the torch Bert, and its promise: a text's bits follow from the text alone. In float32 and bfloat16, by
every instruction set; its attention by emulated tiles, too."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagemill.encoder_config import EncoderConfig
from pagemill.model_files import inspect
from pagemill_kernels.native import build, functions, library
from pagemill_kernels.native.encoder import ACTIVATIONS, EncoderLayer, EncoderShape, NativeEncoder, Norm
from pagemill_kernels.native.matrix import Matrix
from pagemill_server.model.bert import Bert
from pagemill_server.model.checkpoint import Checkpoint
from tests.kernels.emulating import compile_emulated
from tests.kernels.native_libraries import INSTRUCTION_SETS, pool, use_instruction_set
from tests.server.tiny_bert import write_tiny_encoder

BOUND = 1e-5  # of the largest state
BOUNDS = {torch.float32: BOUND, torch.bfloat16: 1.2e-2}  # by arithmetic; at most 7e-3 was seen
ARITHMETICS = list(BOUNDS)
EMULATED = "emulated tiles"
LENGTHS = (1, 3, 17, 64, 65, 130, 512)
SHAPES: dict[str, dict[str, Any]] = {
    "heads of 16": {},
    "heads of 32, odd inner": {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 101},
    "one head of 256": {"hidden_size": 256, "num_attention_heads": 1},
    "heads of 48, eps": {"hidden_size": 144, "num_attention_heads": 3, "layer_norm_eps": 1e-2},
}
Texts = list[torch.Tensor]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole library, whose attention has tiles of plain C++; vectors compute its products."""
    sources = [path.name for path in build.sources() if path.name != "amx.cpp"]
    return compile_emulated(tmp_path_factory.mktemp("encoder"), None, sources, "avx2")


@pytest.fixture(params=[*INSTRUCTION_SETS, EMULATED], autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == EMULATED:
        loaded = ctypes.CDLL(str(request.getfixturevalue("emulated")))
        functions.declare(loaded)
        monkeypatch.setenv("PAGEMILL_NATIVE", EMULATED)
        monkeypatch.setattr(library, "load", lambda: loaded)
        yield
    else:
        yield from use_instruction_set(request.param, monkeypatch)


def folder_of(path: Path, **shape: Any) -> Path:
    return write_tiny_encoder(path, max_position_embeddings=512, **shape)


def native(
    folder: Path, threads: int = 1, stored: torch.dtype = torch.float32, arithmetic: torch.dtype = torch.float32
) -> NativeEncoder:
    config, weights = inspect(folder).config, load_file(folder / "model.safetensors")
    assert isinstance(config, EncoderConfig)

    def matrix(*names: str) -> Matrix:
        weight = torch.cat([weights[f"{name}.weight"] for name in names]).to(stored)
        kept = torch.bfloat16 if arithmetic is torch.bfloat16 else stored
        return Matrix(weight, torch.cat([weights[f"{name}.bias"] for name in names]), kept, arithmetic)

    def norm(name: str) -> Norm:
        return Norm(weights[f"{name}.weight"], weights[f"{name}.bias"])

    layers = [
        EncoderLayer(
            matrix(*(f"{name}.attention.self.{part}" for part in ("query", "key", "value"))),
            matrix(f"{name}.attention.output.dense"),
            matrix(f"{name}.intermediate.dense"),
            matrix(f"{name}.output.dense"),
            norm(f"{name}.attention.output.LayerNorm"),
            norm(f"{name}.output.LayerNorm"),
        )
        for name in (f"encoder.layer.{index}" for index in range(config.num_hidden_layers))
    ]
    shape = EncoderShape(config.hidden_size, config.num_attention_heads, config.activation, config.rms_norm_eps)
    words, positions, types = (
        weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
    )
    return NativeEncoder(
        pool(threads), shape, layers, norm("embeddings.LayerNorm"), positions + types[0], words.to(stored)
    )


def texts(lengths: Sequence[int] = LENGTHS) -> Texts:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 100, (length,), generator=generator) for length in lengths]


def step(asked: Texts) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    positions = torch.cat([torch.arange(len(ids)) for ids in asked])
    return torch.cat(asked), positions, tuple(accumulate(map(len, asked), initial=0))


def expected(folder: Path, asked: Texts) -> torch.Tensor:
    """The torch Bert's."""
    files = inspect(folder)
    assert isinstance(files.config, EncoderConfig)
    with torch.inference_mode():
        return Bert(Checkpoint(files, torch.float32, torch.device("cpu")), files.config).forward(*step(asked))


def check_close(states: torch.Tensor, wanted: torch.Tensor, bound: float = BOUND) -> None:
    assert (states - wanted).abs().max() < bound * wanted.abs().max()


def check_arithmetic(folder: Path, arithmetic: torch.dtype, threads: int = 1) -> None:
    """Its states are torch's in float32."""
    states = native(folder, threads, arithmetic=arithmetic).forward(*step(texts()))
    check_close(states, expected(folder, texts()), BOUNDS[arithmetic])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_torchs(tmp_path: Path, activation: str, arithmetic: torch.dtype) -> None:
    check_arithmetic(folder_of(tmp_path, hidden_act=activation), arithmetic)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_is_torchs(tmp_path: Path, shape: dict[str, Any], threads: int, arithmetic: torch.dtype) -> None:
    check_arithmetic(folder_of(tmp_path, **shape), arithmetic, threads)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_text_has_the_same_bits_alone_and_in_company(tmp_path: Path, arithmetic: torch.dtype) -> None:
    folder = folder_of(tmp_path, **SHAPES["heads of 32, odd inner"])
    asked = texts((*LENGTHS, 5, 96, 31))
    alone = [native(folder, arithmetic=arithmetic).forward(*step([ids])) for ids in asked]
    for threads in (1, 2, 3):
        encoder = native(folder, threads, arithmetic=arithmetic)
        assert torch.equal(encoder.forward(*step(asked)), torch.cat(alone))
        assert torch.equal(encoder.forward(*step(asked[::-1])), torch.cat(alone[::-1]))
        assert all(torch.equal(encoder.forward(*step([ids])), states) for ids, states in zip(asked, alone, strict=True))


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_a_text_that_is_not_finite_leaves_others_as_they_are(tmp_path: Path, arithmetic: torch.dtype) -> None:
    encoder = native(folder_of(tmp_path), arithmetic=arithmetic)
    asked = texts((9, 70, 3))
    asked[1][5], asked[0][:], asked[2][:] = 99, 1, 2
    table = encoder._kept[3]
    before = encoder.forward(*step(asked))
    table[99] = float("nan")
    after = encoder.forward(*step(asked))
    assert after[9:79].isnan().all()
    assert torch.equal(after[:9], before[:9])
    assert torch.equal(after[79:], before[79:])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_what_they_are(tmp_path: Path, stored: torch.dtype) -> None:
    folder = folder_of(tmp_path)
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor.to(stored).float() for name, tensor in weights.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    check_close(native(folder, 2, stored).forward(*step(texts())), expected(folder, texts()))


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_activations_far_from_zero(tmp_path: Path, activation: str) -> None:
    folder = folder_of(tmp_path, hidden_act=activation)
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.intermediate.dense.bias"] = torch.linspace(-20, 20, 96)
    weights["encoder.layer.1.intermediate.dense.bias"] = torch.linspace(-1000, 1000, 96)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    check_close(native(folder).forward(*step(texts())), expected(folder, texts()))


def test_matrices_of_two_arithmetics(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    one, other = native(folder)._kept, native(folder, arithmetic=torch.bfloat16)._kept
    shape = EncoderShape(64, 4, "gelu", 1e-12)
    with pytest.raises(ValueError, match="each other's arithmetic"):
        NativeEncoder(pool(1), shape, [one[0][0], other[0][1]], *one[1:])


def test_what_there_is_not(tmp_path: Path) -> None:
    encoder = native(folder_of(tmp_path))
    ids, positions, starts = step(texts((4,)))
    with pytest.raises(IndexError, match="token"):
        encoder.forward(ids + 1000, positions, starts)
    with pytest.raises(IndexError, match="position"):
        encoder.forward(ids, positions + 512, starts)
    with pytest.raises(ValueError, match="token_ids"):
        encoder.forward(ids.int(), positions, starts)
    with pytest.raises(ValueError, match="one after another"):
        encoder.forward(ids, positions, (0, 5, 4))


def test_no_texts(tmp_path: Path) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert native(folder_of(tmp_path)).forward(nothing, nothing, (0,)).shape == (0, 64)


def test_sizes_without_code(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="head_dim 8"):
        native(folder_of(tmp_path, num_attention_heads=8))
