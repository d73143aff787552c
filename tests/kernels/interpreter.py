"""Runs Triton kernels without a GPU: Triton's interpreter, in a process of its own.

Triton decides when it is imported whether kernels are compiled or interpreted, and a test run has tests of both kinds.
"""

from __future__ import annotations

import atexit
import importlib
import io
import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch

_ROOT = Path(__file__).parents[2]
_LENGTH = 8  # bytes before a message that say how long it is


class Interpreter:
    """The process; started by the first call, ended with the test run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: str, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """`module.function` of pagemill_kernels → its result, and the arguments as it left them. What it makes with torch.empty is
        filled with NaN first. Raises AssertionError with the traceback of what it raised."""
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        _send(process.stdin, (function, args, kwargs))
        error, *rest = _receive(process.stdout)
        assert error is None, error
        result, args, kwargs = rest
        return result, args, kwargs

    def _start(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "kernels"))),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-W", "error", "-m", "tests.kernels.interpreter"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process = process
        atexit.register(self._end)
        return process

    def _end(self) -> None:
        if self._process:
            self._process.communicate()  # closes its stdin, at which it ends


def _send(stream: BinaryIO | Any, message: object) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    data = stream.read(_LENGTH)
    if not data:
        raise EOFError
    return pickle.load(io.BytesIO(stream.read(int.from_bytes(data, "little"))))


def _mend_bfloat16() -> None:
    """The interpreter (Triton 3.7) keeps bfloat16 as whole numbers of 16 bits; tl.dot multiplies those, and rounding to it cuts."""
    from triton.language import bfloat16, float32
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _convert_float

    multiply, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != bfloat16:
            return handle
        return TensorHandle(_convert_float(handle.data, bfloat16, float32, None).view("float32"), float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(a), widened(b), *rest)

    def create_fp_trunc(self: Any, source: Any, target: Any) -> Any:
        if target.scalar != bfloat16:
            return cast(self, source, target)
        rounded = torch.from_numpy(numpy.ascontiguousarray(source.data)).bfloat16().view(torch.uint16)
        return TensorHandle(rounded.numpy(), bfloat16)

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.create_fp_trunc = create_fp_trunc


def _serve() -> None:
    _mend_bfloat16()
    numpy.seterr(over="ignore")  # infinities are as good as on a GPU; what is no number stays an error
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # torch.empty is filled with NaN
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what is printed does not get between the answers
        while True:
            try:
                name, args, kwargs = _receive(sys.stdin.buffer)
            except EOFError:
                return
            _send(answers, _answer(name, args, kwargs))


def _answer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        module, _, function = name.partition(".")
        result = getattr(importlib.import_module(f"pagemill_kernels.{module}"), function)(*args, **kwargs)
    except Exception:  # noqa: BLE001 -- told to whoever asked
        return traceback.format_exc(), None, None, None
    return None, result, args, kwargs


if __name__ == "__main__":
    _serve()
