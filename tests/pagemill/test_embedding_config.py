"""How a text becomes one vector is what the model's files say; what we don't compute is refused by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pagemill.embedding_config import EmbeddingConfig, read
from pagemill.failures import FailureReason, PagemillError
from tests.pagemill.sample_encoders import NORMALIZE, POOLING, TRANSFORMER, write_sentence_files


def refused(folder: Path) -> str:
    with pytest.raises(PagemillError) as caught:
        read(folder)
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE
    return str(caught.value)


def test_all_minilm_l6_v2s_files(tmp_path: Path) -> None:
    folder = write_sentence_files(
        tmp_path,
        pooling={"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False},
        text={"max_seq_length": 256, "do_lower_case": False},
        prompts={"__version__": {"sentence_transformers": "2.0.0"}},
    )
    assert read(folder) == EmbeddingConfig("mean", normalize=True, max_length=256)


def test_without_modules_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"embedding_dimension": 64, "pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"word_embedding_dimension": 64}, "mean"),
    ],
)
def test_both_spellings_of_a_pooling(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    config = read(write_sentence_files(tmp_path, pooling=pooling, modules=[TRANSFORMER, POOLING]))
    assert config is not None
    assert (config.pooling, config.normalize) == (expected, False)


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, r"cls \+ mean"),
        ({"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
    ],
)
def test_other_poolings_are_refused_by_name(tmp_path: Path, pooling: dict[str, Any], named: str) -> None:
    with pytest.raises(PagemillError, match=named) as caught:
        read(write_sentence_files(tmp_path, pooling=pooling))
    assert caught.value.failure.reason is FailureReason.UNSUPPORTED_ARCHITECTURE


def test_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    dense = NORMALIZE | {"type": "sentence_transformers.models.Dense", "path": "2_Dense"}
    assert "Transformer + Pooling + Dense" in refused(
        write_sentence_files(tmp_path, modules=[TRANSFORMER, POOLING, dense])
    )
    assert "its modules are none" in refused(write_sentence_files(tmp_path, modules=[]))


def test_a_newer_spelling_of_the_modules(tmp_path: Path) -> None:
    transformer = TRANSFORMER | {"type": "sentence_transformers.base.modules.transformer.Transformer"}
    assert read(write_sentence_files(tmp_path, modules=[transformer, POOLING])) == EmbeddingConfig(
        "mean", normalize=False
    )


def test_text_is_prepared_as_they_say(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "doc": "passage: "}, "default_prompt_name": "doc"}
    config = read(write_sentence_files(tmp_path, text={"max_seq_length": None, "do_lower_case": True}, prompts=prompts))
    assert config is not None
    assert (config.max_length, config.lower_case, config.prompt) == (None, True, "passage: ")
    config = read(write_sentence_files(tmp_path, prompts=prompts | {"default_prompt_name": None}))
    assert config is not None
    assert config.prompt == ""


@pytest.mark.parametrize(
    "damage",
    [
        {"modules": [{"type": "x.Transformer"}]},
        {"modules": ["Transformer"]},
        {"text": {"max_seq_length": "many"}},
        {"prompts": {"prompts": {}, "default_prompt_name": "query"}},
    ],
)
def test_damage_names_the_file(tmp_path: Path, damage: dict[str, Any]) -> None:
    with pytest.raises(PagemillError, match=r"\.json is not what sentence-transformers writes") as caught:
        read(write_sentence_files(tmp_path, **damage))
    assert caught.value.failure.reason is FailureReason.MODEL_INVALID


def test_a_pooling_file_that_is_missing_or_broken(tmp_path: Path) -> None:
    folder = write_sentence_files(tmp_path)
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(PagemillError, match="not valid JSON"):
        read(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(PagemillError, match="is missing"):
        read(folder)
    (folder / "modules.json").write_text("{}")
    with pytest.raises(PagemillError, match="does not hold a JSON list"):
        read(folder)


@pytest.mark.parametrize(
    ("raw", "shorter"),
    [
        ({}, ()),
        ({"is_matryoshka": False}, ()),
        ({"is_matryoshka": True}, range(1, 8)),
        ({"matryoshka_dimensions": [2, 4, 8, 16, 0, "4", None]}, (2, 4)),
        ({"is_matryoshka": True, "matryoshka_dimensions": [4]}, (4,)),
        ({"matryoshka_dimensions": "all"}, ()),
    ],
)
def test_sizes_that_a_vector_may_be_cut_to(raw: dict[str, Any], shorter: Sequence[int]) -> None:
    config = EmbeddingConfig("mean").sized(8, raw)
    assert (config.size, config.shorter) == (8, frozenset(shorter))


def test_a_text_is_prepared() -> None:
    assert EmbeddingConfig("mean").prepared("A Cat") == "A Cat"
    assert EmbeddingConfig("mean", prompt="Query: ", lower_case=True).prepared("A Cat") == "query: a cat"
