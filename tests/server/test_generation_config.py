"""The model's own generation_config.json: what of it is taken, from where, and what is left out."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles, inspect
from pagemill_server.config import ChatOptions
from pagemill_server.generation_config import GenerationDefaults
from tests.server.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return inspect(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def write(folder: Path, said: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder


def made(files: ModelFiles, said: dict[str, Any], folder: Path, **options: Any) -> GenerationDefaults:
    """Of a model whose file says so."""
    return GenerationDefaults.of(replace(files, path=write(folder, said)), ChatOptions(**options))


def test_a_model_without_a_file_has_openais_defaults(bare: ModelFiles) -> None:
    defaults = GenerationDefaults.of(bare, ChatOptions())
    assert defaults == GenerationDefaults()
    assert str(defaults) == "OpenAI's defaults"


def test_what_the_file_says_is_taken(bare: ModelFiles, tmp_path: Path) -> None:
    said = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
    more = {"max_new_tokens": 500, "eos_token_id": [1, 2], "transformers_version": "4.57.0", "pad_token_id": None}
    defaults = made(bare, said | more, tmp_path)
    assert defaults == GenerationDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.05, max_tokens=500)
    assert str(defaults) == "temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.05, max_tokens=500"


def test_a_model_that_does_not_sample_is_greedy(bare: ModelFiles, tmp_path: Path) -> None:
    assert made(bare, {"do_sample": False, "temperature": 0.6}, tmp_path).temperature == 0
    assert made(bare, {}, tmp_path).temperature == 1  # transformers' own default, which nobody means


@pytest.mark.parametrize("source", ["vllm", "none"])
def test_it_can_be_turned_off(bare: ModelFiles, tmp_path: Path, source: str) -> None:
    assert made(bare, {"temperature": 0.6}, tmp_path, generation_config=source) == GenerationDefaults()


def test_a_folder_of_the_users_own(bare: ModelFiles, tmp_path: Path) -> None:
    own = str(write(tmp_path / "own", {"temperature": 0.3, "eos_token_id": [7, 8]}))
    defaults = made(bare, {"temperature": 0.6}, tmp_path / "model", generation_config=own)
    assert defaults == GenerationDefaults(temperature=0.3, eos_token_ids=(7, 8))


def test_a_folder_without_the_file_is_a_mistake(bare: ModelFiles, tmp_path: Path) -> None:
    with pytest.raises(PagemillError, match=r"--generation-config: there is no .*generation_config\.json") as caught:
        GenerationDefaults.of(bare, ChatOptions(generation_config=str(tmp_path / "nowhere")))
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


def test_overrides_go_on_top(bare: ModelFiles, tmp_path: Path) -> None:
    overrides = (("temperature", 0.5), ("max_new_tokens", 100), ("presence_penalty", 1))
    defaults = made(bare, {"temperature": 0.6, "top_k": 5}, tmp_path, generation_overrides=overrides)
    assert defaults == GenerationDefaults(temperature=0.5, top_k=5, presence_penalty=1.0, max_new_tokens=100)


def test_an_override_that_no_request_could_have_is_a_mistake(bare: ModelFiles) -> None:
    with pytest.raises(PagemillError, match="--override-generation-config: top_p must be"):
        GenerationDefaults.of(bare, ChatOptions(generation_overrides=(("top_p", 1.5),)))


def test_what_is_silly_in_the_file_is_left_out_with_a_warning(
    bare: ModelFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"temperature": "hot", "top_p": 0, "top_k": 2.5, "repetition_penalty": -1, "max_new_tokens": 0, "min_p": 0.1}
    with caplog.at_level(logging.WARNING):
        assert made(bare, said, tmp_path) == GenerationDefaults(min_p=0.1)
    for name in said.keys() - {"min_p"}:
        assert f"generation_config.json: {name} must be" in caplog.text
    own = str(write(tmp_path / "own", {"eos_token_id": [7, 999_999, "x", True]}))
    assert GenerationDefaults.of(bare, ChatOptions(generation_config=own)).eos_token_ids == (7,)
    assert "eos_token_id names what is no token" in caplog.text


def test_a_gguf_says_it_in_its_metadata(bare: ModelFiles, tmp_path: Path) -> None:
    written = {
        "general.sampling.temp": 0.6000000238418579,  # a float32
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.949999988079071,
        "general.sampling.min_p": 0.05000000074505806,
        "general.sampling.penalty_repeat": 1.0499999523162842,
        "general.sampling.mirostat": 1,
    }
    write(tmp_path, {"temperature": 0.1})  # of some other model in the folder
    files = replace(bare, path=tmp_path / "x.gguf", format="gguf", gguf_metadata=written)
    assert GenerationDefaults.of(files, ChatOptions()) == GenerationDefaults(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, repetition_penalty=1.05
    )
    assert GenerationDefaults.of(files, ChatOptions(generation_config="none")) == GenerationDefaults()
