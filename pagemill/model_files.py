"""Finds a model on this machine and says what it is, from headers alone, before anything heavy is imported.

`resolve` turns a reference into a folder or file; `inspect` reads its headers and refuses what can't be served: missing,
truncated, pickled, another architecture. Used by the server's start, `plan`, `up` and `pull`; never loads a tensor.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

from pagemill import embedding_config, gguf_header, model_ref, safetensors_header
from pagemill.config_reading import from_hugging_face
from pagemill.embedding_config import LAST_TOKEN, EmbeddingConfig
from pagemill.encoder_config import EncoderConfig
from pagemill.endpoints import MODELS_ENV
from pagemill.failures import FailureReason, PagemillError
from pagemill.gguf_config import from_gguf
from pagemill.json_file import read_object
from pagemill.model_config import ModelConfig
from pagemill.tensor_info import TensorInfo

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
INDEX = "model.safetensors.index.json"
Task = Literal["generate", "embed"]
_SHARD = re.compile(r"-of-(\d{1,6})\.safetensors$")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that can be served, as its headers describe it."""

    path: Path  # the folder (safetensors) or the .gguf file
    format: Literal["safetensors", "gguf"]
    config: ModelConfig
    tensors: Mapping[str, TensorInfo]  # by the file's own names
    weights_bytes: int  # as stored
    gguf_metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: EmbeddingConfig | None = None  # how it makes a vector of a text; None: its files don't say that it does

    @property
    def task(self) -> Task:
        """What it was made for."""
        return "generate" if self.embedding is None else "embed"

    @property
    def folder(self) -> Path:
        """Where tokenizer and template files may lie beside the weights."""
        return self.path if self.path.is_dir() else self.path.parent


def models_folders(environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where models lie as org/name: the folders of `$PAGEMILL_MODELS`, split as PATH is, else the user's cache folder.

    A pod has two: its cache, where a fetch goes, and then what its image brought along, which can't be written.
    """
    if named := [part for part in environ.get(MODELS_ENV, "").split(os.pathsep) if part]:
        return tuple(Path(os.path.expanduser(part)) for part in named)
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return (Path(cache) / "pagemill" / "models",)


def models_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where a fetched model goes: the first of `models_folders`."""
    return models_folders(environ)[0]


def resolve(model: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder or file that a reference names on this machine.

    Raises PagemillError: InvalidConfiguration for a reference that can't be one, ModelNotFound when nothing lies there.
    """
    ref = model_ref.parse(model)
    if ref.kind in ("pvc", "oci"):
        raise PagemillError(
            FailureReason.INVALID_CONFIGURATION,
            f"{model} can only be mounted by a cluster: on one machine use org/name or file:///path",
        )
    if ref.kind == "file":
        path = Path(os.path.expanduser(ref.location))  # Path.expanduser raises for a user that does not exist
        with _readable(path):
            if not path.exists():
                raise PagemillError(FailureReason.MODEL_NOT_FOUND, f"{path} does not exist: check the model's path")
        return path
    folders = models_folders(environ)
    for path in (folder / _hub_name(ref) for folder in folders):
        with _readable(path):
            if path.is_dir() and any(_is_model_file(entry) for entry in path.iterdir()):
                return path
    raise PagemillError(
        FailureReason.MODEL_NOT_FOUND,
        f"model {model} is not in {' or '.join(map(str, folders))}: run `pagemill pull {model}`, or check its name",
    )


def _is_model_file(entry: Path) -> bool:
    """Not what a fetch leaves while it runs: its lock, its record, parts."""
    return entry.is_file() and not entry.name.startswith(".") and entry.suffix != ".part"


def hub_folder(ref: model_ref.ModelRef, environ: Mapping[str, str] = os.environ) -> Path:
    """Where a hub model lies once it is fetched: org/name, or org/name@revision when a revision is asked for."""
    return models_folder(environ) / _hub_name(ref)


def _hub_name(ref: model_ref.ModelRef) -> str:
    return ref.location if ref.revision is None else f"{ref.location}@{ref.revision.replace('/', '--')}"


def inspect(path: Path) -> ModelFiles:
    """Describe the model at `path` (a folder or a file); raises PagemillError with what to change."""
    with _readable(path):
        return _inspect(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """A file without permission, a name that is too long, a broken disk: one line, not a traceback."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise PagemillError(
            FailureReason.MODEL_NOT_FOUND, f"{where} can't be read: {error.strerror or error}"
        ) from None


def _inspect(path: Path) -> ModelFiles:
    if path.is_file():
        return _inspect_file(path)
    if not path.is_dir():
        raise PagemillError(FailureReason.MODEL_NOT_FOUND, f"{path} does not exist: check the model's path")
    names = sorted(entry.name for entry in path.iterdir() if entry.is_file())
    if parts := [name for name in names if name.endswith(".part")]:
        raise PagemillError(
            FailureReason.MODEL_TRUNCATED, f"{path} is not whole, {parts[0]} is still being fetched: fetch it again"
        )
    if any(name.endswith(".safetensors") for name in names):
        return _inspect_safetensors(path, names)
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return _inspect_gguf(path / ggufs[0])
    if ggufs:
        raise PagemillError(
            FailureReason.MODEL_INVALID, f"{path} holds several GGUF files: name one of {', '.join(ggufs)}"
        )
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        raise _unsafe(path / pickles[0])
    raise PagemillError(
        FailureReason.MODEL_NOT_FOUND, f"{path} holds no model: neither *.safetensors nor *.gguf is in it"
    )


def _inspect_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        head = file.read(4)
    if head[:1] == b"\x80" or head[:2] == b"PK" or (path.suffix in _PICKLES and head != gguf_header.MAGIC):
        raise _unsafe(path)
    if head == gguf_header.MAGIC or path.suffix == ".gguf":
        return _inspect_gguf(path)
    if path.suffix == ".safetensors":
        raise PagemillError(
            FailureReason.MODEL_INVALID,
            f"{path} is one file of a model: name its folder {path.parent}, where config.json lies",
        )
    raise PagemillError(FailureReason.MODEL_INVALID, f"{path} is no model file: a folder or a .gguf file is wanted")


def _inspect_gguf(path: Path) -> ModelFiles:
    header = gguf_header.read_header(path)
    config = from_gguf(header.metadata, header.tensors, path)
    size = sum(info.nbytes for info in header.tensors.values())
    return ModelFiles(path, "gguf", config, header.tensors, size, header.metadata)


def _inspect_safetensors(folder: Path, names: list[str]) -> ModelFiles:
    raw = read_object(folder / "config.json")
    generation = read_object(folder / "generation_config.json") if "generation_config.json" in names else {}
    config = from_hugging_face(raw, generation, folder)
    tensors: dict[str, TensorInfo] = {}
    for shard in _shards(folder, names):
        tensors |= safetensors_header.read_table(folder / shard)
    if not config.native:
        config = replace(config, stored_parameters=sum(prod(info.shape) for info in tensors.values()))
    size = sum(info.nbytes for info in tensors.values())
    return ModelFiles(folder, "safetensors", config, tensors, size, embedding=_embedding(folder, config))


def _embedding(folder: Path, config: ModelConfig) -> EmbeddingConfig | None:
    """What has no output head can do nothing else, whether its files say how or not."""
    named = embedding_config.read(folder)
    if named is None and isinstance(config, EncoderConfig):
        return EmbeddingConfig("mean")
    return LAST_TOKEN if named is None and config.headless else named


def _shards(folder: Path, names: list[str]) -> list[str]:
    if INDEX not in names:
        whole = [
            name for name in names if name == "model.safetensors"
        ]  # others beside it are copies (consolidated, adapters)
        shards = whole or [name for name in names if name.endswith(".safetensors")]
        if (match := _SHARD.search(shards[0])) and len(shards) < int(match[1]):
            raise PagemillError(
                FailureReason.MODEL_TRUNCATED, f"{folder} has {len(shards)} of {match[1]} shards: fetch it again"
            )
        return shards
    index = read_object(folder / INDEX)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise PagemillError(FailureReason.MODEL_INVALID, f"{folder / INDEX} has no weight_map that names files")
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if shard not in names]:
        raise PagemillError(
            FailureReason.MODEL_TRUNCATED, f"{folder} lacks {', '.join(missing)}, which its index names: fetch it again"
        )
    return shards


def _unsafe(path: Path) -> PagemillError:
    return PagemillError(
        FailureReason.UNSAFE_MODEL_FORMAT,
        f"{path} is a pickle, which can run code when it is read: use the model's safetensors or GGUF files",
    )
