"""The weights of a checkpoint by their Hugging Face names, whatever file they lie in. Read one by one; never a pickle.

A family takes what it needs by name and shape (`take`, and of what is divided among processes its part); `finish` then refuses a
checkpoint that holds weights nobody took, which would be a model computed wrongly. Headers were read by `pagemill.model_files`;
here are the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_files import ModelFiles
from pagemill.tensor_info import TensorInfo
from pagemill.tensor_parallel import divided
from pagemill_server.model import gguf_names
from pagemill_server.model.native_kernels import Kernels
from pagemill_server.model.parallel import ALONE, Parallel

Progress = Callable[[int, int], None]  # bytes read, bytes in all

_READ = 16 << 20  # bytes between two words of progress
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
_RECOMPUTED = ("rotary_emb.inv_freq",)  # old checkpoints carry these; they follow from the config


class Checkpoint:
    """Reads from `files`, gives tensors of `dtype` on `device`; matrices in the type that the `kernels` keep them in, if there are
    any."""

    def __init__(
        self,
        files: ModelFiles,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress = lambda done, total: None,
        parallel: Parallel = ALONE,
        kernels: Kernels | None = None,
    ) -> None:
        self._files, self._progress = files, progress
        self.dtype, self.device, self.parallel, self.kernels = dtype, device, parallel, kernels
        self._left = dict(files.tensors)
        self._done, self._total = 0, files.weights_bytes
        progress(0, self._total)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor of a Hugging Face name. Raises PagemillError(ModelInvalid) when it is missing or of another shape."""
        found = self.take_if_there(name, *shape)
        if found is None:
            raise self._invalid(f"tensor {self._own_name(name)} is missing")
        return found

    def take_if_there(self, name: str, *shape: int) -> torch.Tensor | None:
        """The same, or None when the checkpoint has no such tensor."""
        info = self._left.pop(self._own_name(name), None)
        if info is None:
            return None
        if info.shape != shape:
            raise self._invalid(f"tensor {info.name} has shape {list(info.shape)}, the config asks for {list(shape)}")
        return self._made(name, info, self._read(info), 1)

    def take_rows(self, names: Sequence[str], sizes: Sequence[int], *rest: int) -> torch.Tensor:
        """This process's rows of several tensors as one [sum of sizes, *rest]: one product instead of several."""
        return torch.cat([self._take_part(name, 0, (size, *rest)) for name, size in zip(names, sizes, strict=True)])

    def take_columns(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """This process's columns of a tensor: [rows, columns]."""
        return self._take_part(name, 1, (rows, columns))

    def _take_part(self, name: str, axis: int, part: tuple[int, ...]) -> torch.Tensor:
        """A part of the shape `part`: the rank's of as many as there are along `axis`. No more than that is kept or, of what is
        stored row by row, read."""
        rank, size = self.parallel.rank, self.parallel.size
        whole = (*part[:axis], part[axis] * size, *part[axis + 1 :])
        if size == 1:
            return self.take(name, *whole)
        info = self._left.pop(self._own_name(name), None)
        if info is None:
            raise self._invalid(f"tensor {self._own_name(name)} is missing")
        if info.shape != whole:
            raise self._invalid(f"tensor {info.name} has shape {list(info.shape)}, the config asks for {list(whole)}")
        if axis == 0:
            nbytes = info.nbytes // size
            mine = replace(info, shape=part, offset=info.offset + rank * nbytes, nbytes=nbytes)
            return self._made(name, info, self._read(mine), size)
        columns = slice(rank * part[1], (rank + 1) * part[1])
        if info.dtype in _FLOATS:
            return self._made(name, info, self._read_columns(info, columns), size)
        return self._made(
            name, info, self._read(info)[:, columns].contiguous(), size
        )  # blocks of numbers share a scale

    def _made(self, name: str, info: TensorInfo, tensor: torch.Tensor, processes: int) -> torch.Tensor:
        if self._files.format == "gguf":
            tensor = gguf_names.restore(name, tensor, divided(self._files.config, processes))
        if self.kernels is None or tensor.ndim == 1:
            return tensor.to(self.device, self.dtype)
        return tensor.to(self.device, self.kernels.kept(tensor.dtype, quantised=info.dtype not in _FLOATS))

    def take_all(self) -> dict[str, torch.Tensor]:
        """All numbers that are left, by the file's own names: for code that sorts them out itself (old files keep masks too)."""
        names = [name for name, info in self._left.items() if info.dtype in _FLOATS and not name.endswith(_RECOMPUTED)]
        taken = {name: self._read(self._left[name]).to(self.device, self.dtype) for name in names}
        self._left.clear()
        return taken

    def has(self, name: str) -> bool:
        """Whether a tensor of that Hugging Face name is there and was not taken."""
        return self._own_name(name) in self._left

    def finish(self, unused: Sequence[str] = ()) -> None:
        """Say that all was taken, but for what begins with one of `unused`; raises PagemillError(UnsupportedArchitecture)."""
        spare = {"lm_head.weight"} if self._files.config.tie_word_embeddings else set()
        left = [
            name
            for name in self._left
            if name not in spare and not name.endswith(_RECOMPUTED) and not name.startswith(tuple(unused))
        ]
        if left:
            raise PagemillError(
                FailureReason.UNSUPPORTED_ARCHITECTURE,
                f"{self._files.path} holds {len(left)} tensors that {self._files.config.architecture} does not have, "
                f"such as {left[0]}: it is another architecture than its config says",
            )
        self._progress(self._total, self._total)

    def _own_name(self, name: str) -> str:
        if self._files.format == "gguf":
            return gguf_names.translate(name)
        bare = name.removeprefix("model.")  # of a model that was saved without its head
        return bare if name not in self._files.tensors and bare in self._files.tensors else name

    def _read(self, info: TensorInfo) -> torch.Tensor:
        data = np.empty(info.nbytes, dtype=np.uint8)
        with info.file.open("rb") as file:
            file.seek(info.offset)
            for part in _parts(data):
                if file.readinto(part.data) != len(part):
                    raise PagemillError(
                        FailureReason.MODEL_TRUNCATED, f"{info.file} ends inside tensor {info.name}: fetch it again"
                    )
                self._done += len(part)
                self._progress(self._done, self._total)
        if info.dtype in _FLOATS:
            return torch.from_numpy(data).view(_FLOATS[info.dtype]).view(info.shape)
        if self._files.format != "gguf":
            raise self._invalid(f"tensor {info.name} is stored as {info.dtype}: float types are wanted")
        rows = data.reshape(prod(info.shape[:-1]), -1)
        try:
            return torch.from_numpy(dequantize(rows, GGMLQuantizationType[info.dtype])).view(info.shape)
        except (NotImplementedError, KeyError):
            raise self._invalid(f"tensor {info.name} is stored as {info.dtype}, which can't be read") from None

    def _read_columns(self, info: TensorInfo, columns: slice) -> torch.Tensor:
        """Of a tensor of plain numbers: the file's pages are read as they are copied from."""
        rows, width = info.shape
        element = info.nbytes // (rows * width)
        try:
            whole = np.memmap(info.file, np.uint8, "r", info.offset, (rows, width * element))
        except ValueError:
            raise PagemillError(
                FailureReason.MODEL_TRUNCATED, f"{info.file} ends inside tensor {info.name}: fetch it again"
            ) from None
        data = whole[:, columns.start * element : columns.stop * element].copy()
        self._done += info.nbytes // self.parallel.size
        self._progress(self._done, self._total)
        return torch.from_numpy(data).view(_FLOATS[info.dtype])

    def _invalid(self, why: str) -> PagemillError:
        return PagemillError(FailureReason.MODEL_INVALID, f"{self._files.path}: {why}")


def _parts(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    for start in range(0, len(data), _READ):
        yield data[start : start + _READ]
