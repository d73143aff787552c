"""Models are found, described from headers alone, and refused in one typed line."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import INDEX, inspect, models_folder, resolve
from tests.pagemill.sample_encoders import bert_json, write_sentence_files
from tests.pagemill.sample_models import weights, write_folder, write_gguf

STORED = sum(tensor.nbytes for tensor in weights().values())


def refused(path: Path, reason: FailureReason) -> str:
    with pytest.raises(PagemillError) as caught:
        inspect(path)
    assert caught.value.failure.reason is reason
    return str(caught.value)


def test_a_folder_of_safetensors(tmp_path: Path) -> None:
    files = inspect(write_folder(tmp_path / "m"))
    assert (files.format, files.weights_bytes, files.folder) == ("safetensors", STORED, tmp_path / "m")
    assert {name: info.shape for name, info in files.tensors.items()} == {n: t.shape for n, t in weights().items()}


def test_shards_are_one_model(tmp_path: Path) -> None:
    files = inspect(write_folder(tmp_path / "m", shards=3))
    assert set(files.tensors) == set(weights())
    assert files.weights_bytes == STORED
    assert len({info.file for info in files.tensors.values()}) == 3


def test_copies_beside_the_weights_are_not_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "consolidated.safetensors").write_bytes(b"another layout of the same weights")
    (folder / "pytorch_model.bin").write_bytes(b"\x80pickle")
    assert inspect(folder).weights_bytes == STORED


def test_a_gguf_by_name_and_by_folder(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    for files in (inspect(path), inspect(tmp_path)):
        assert (files.format, files.path, files.folder, files.config.dtype) == ("gguf", path, tmp_path, "Q8_0")
        assert files.gguf_metadata["general.architecture"] == "llama"
        assert files.weights_bytes == sum(info.nbytes for info in files.tensors.values()) < STORED


def test_two_ggufs_are_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf")
    assert "a.gguf, b.gguf" in refused(tmp_path, FailureReason.MODEL_INVALID)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "model.pt", "model.ckpt", "disguised.gguf", "disguised.safetensors"]
)
@pytest.mark.parametrize("form", ["pickle", "zip"])
def test_a_pickle_is_never_read_whatever_its_name(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / name
    if form == "pickle":
        path.write_bytes(pickle.dumps({"w": [1.0]}))
    else:  # torch.save's container
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.pkl", pickle.dumps({"w": [1.0]}))
    assert "safetensors or GGUF" in refused(path, FailureReason.UNSAFE_MODEL_FORMAT)


def test_a_folder_of_pickles_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(b"\x80")
    refused(tmp_path, FailureReason.UNSAFE_MODEL_FORMAT)


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path, FailureReason.MODEL_NOT_FOUND)
    refused(tmp_path / "no", FailureReason.MODEL_NOT_FOUND)
    (tmp_path / "notes.txt").write_text("hello")
    refused(tmp_path / "notes.txt", FailureReason.MODEL_INVALID)


def test_one_file_of_a_folder_names_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    assert str(folder) in refused(folder / "model.safetensors", FailureReason.MODEL_INVALID)


def test_what_a_broken_fetch_leaves(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002" in refused(folder, FailureReason.MODEL_TRUNCATED)
    (folder / INDEX).unlink()
    assert "1 of 00002 shards" in refused(folder, FailureReason.MODEL_TRUNCATED)
    fetching = write_folder(tmp_path / "fetching")
    (fetching / "tokenizer.json.part").touch()
    assert "tokenizer.json.part" in refused(fetching, FailureReason.MODEL_TRUNCATED)
    whole = write_folder(tmp_path / "whole")
    (whole / "config.json").unlink()
    assert "config.json" in refused(whole, FailureReason.MODEL_INVALID)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", "[" * 100_000, "\udcff", '{"architectures": ["LlamaForCausalLM"], "vocab_size": 1e999}'],
)
def test_a_damaged_config(tmp_path: Path, text: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "config.json" in refused(folder, FailureReason.MODEL_INVALID)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"w": 5}, {"w": ["x"]}, {"a": "x", "b": None}])
def test_a_damaged_index(tmp_path: Path, weight_map: object) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert INDEX in refused(folder, FailureReason.MODEL_INVALID)


def test_an_index_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    outside = write_folder(tmp_path / "outside")
    folder = write_folder(tmp_path / "m", shards=2)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"w": f"../{outside.name}/model.safetensors"}}))
    refused(folder, FailureReason.MODEL_TRUNCATED)


def test_a_config_that_is_a_folder_is_one_line(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json" in refused(folder, FailureReason.MODEL_NOT_FOUND)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_changed_byte_of_a_gguf_ends_in_another_exception(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_gguf(path)
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(0, 3000))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(raw)
    with suppress(PagemillError):
        assert inspect(damaged).config.head_dim > 0


def test_another_architecture_is_named(tmp_path: Path) -> None:
    assert "gpt2" in refused(
        write_gguf(tmp_path / "x.gguf", architecture="gpt2"), FailureReason.UNSUPPORTED_ARCHITECTURE
    )
    extra = {"rope_freqs.weight": np.ones(8, np.float32)}
    assert inspect(write_gguf(tmp_path / "y.gguf", extra_tensors=extra)).config.rope_scaling is not None


def test_the_models_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert models_folder({"PAGEMILL_MODELS": "/models"}) == Path("/models")
    assert models_folder({"PAGEMILL_MODELS": "~/m"}) == Path("/home/someone/m")
    assert models_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/pagemill/models")
    assert models_folder({}) == Path("/home/someone/.cache/pagemill/models")


def test_a_reference_is_found_in_the_models_folder(tmp_path: Path) -> None:
    environ = {"PAGEMILL_MODELS": str(tmp_path)}
    folder = write_folder(tmp_path / "org" / "name")
    pinned = write_folder(tmp_path / "org" / "name@refs--pr--1")
    assert resolve("org/name", environ) == resolve("hf://org/name", environ) == folder
    assert resolve("org/name@refs/pr/1", environ) == pinned
    assert resolve(f"file://{folder}", environ) == resolve(str(folder), environ) == folder


@pytest.mark.parametrize(
    ("model", "reason", "says"),
    [
        ("org/missing", FailureReason.MODEL_NOT_FOUND, "pagemill pull org/missing"),
        ("org/empty", FailureReason.MODEL_NOT_FOUND, "pagemill pull org/empty"),
        ("/no/such/path", FailureReason.MODEL_NOT_FOUND, "/no/such/path"),
        ("~no-such-user/x", FailureReason.MODEL_NOT_FOUND, "no-such-user"),
        ("/" + "x" * 5000, FailureReason.MODEL_NOT_FOUND, "can't be read"),
        ("org/" + "x" * 300, FailureReason.MODEL_NOT_FOUND, "x"),
        ("pvc://claim/x", FailureReason.INVALID_CONFIGURATION, "only be mounted by a cluster"),
        ("oci://image/x", FailureReason.INVALID_CONFIGURATION, "only be mounted by a cluster"),
        ("nonsense", FailureReason.INVALID_CONFIGURATION, "not a model reference"),
    ],
)
def test_a_reference_that_leads_nowhere(tmp_path: Path, model: str, reason: FailureReason, says: str) -> None:
    (tmp_path / "org" / "empty").mkdir(parents=True)
    (tmp_path / "org" / "empty" / ".lock").touch()
    (tmp_path / "org" / "empty" / "model.safetensors.part").touch()
    with pytest.raises(PagemillError) as caught:
        resolve(model, {"PAGEMILL_MODELS": str(tmp_path)})
    assert caught.value.failure.reason is reason
    assert says in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_model_without_permission_is_one_line(tmp_path: Path) -> None:
    program = (
        "import os, sys, pathlib; from pagemill.failures import PagemillError; from pagemill.model_files import inspect\n"
        "os.setuid(65534)\ntry: inspect(pathlib.Path(sys.argv[1]))\nexcept PagemillError as error: print(error)"
    )
    folder = write_folder(tmp_path / "m")
    for barred in (folder / "config.json", folder / "model.safetensors", folder):
        barred.chmod(0)
        done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
        assert "can't be read: Permission denied" in done.stdout
        barred.chmod(0o755)


def test_neither_torch_nor_numpy_is_needed() -> None:
    program = "import sys, pagemill.model_files, pagemill.memory_fit, pagemill.hub, pagemill.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "gguf", "safetensors", "yaml"} & set(loaded)


def test_what_a_model_was_made_for(tmp_path: Path) -> None:
    """Without sentence-transformers' files the class tells, with them they do."""
    assert inspect(write_folder(tmp_path / "decoder")).task == "generate"
    bare = inspect(write_folder(tmp_path / "bare", architectures=["LlamaModel"]))
    assert (bare.task, bare.embedding) == ("embed", LAST_TOKEN)
    folder = write_folder(tmp_path / "encoder")
    (folder / "config.json").write_text(json.dumps(bert_json()))
    assert inspect(folder).embedding == EmbeddingConfig("mean")
    write_sentence_files(folder, pooling={"pooling_mode": "cls"}, text={"max_seq_length": 9})
    assert inspect(folder).embedding == EmbeddingConfig("cls", max_length=9)
    decoder = write_sentence_files(tmp_path / "decoder", pooling={"pooling_mode": "lasttoken"})
    assert inspect(decoder).task == "embed"
