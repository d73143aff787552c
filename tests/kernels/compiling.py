"""Compiles what the launchers launch, for GPUs that aren't there, and reads what each kernel takes of one.

A launcher is called with CPU tensors while launches are caught: grid, arguments and options are those of a real call, so what is
compiled is the specialisation that a GPU would be given. ptxas, in Triton's wheel, says what it takes.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

# Compute capability → bytes of shared memory that a block may have (CUDA C++ Programming Guide, "Technical Specifications").
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
REGISTERS = 65536  # of 32 bits, of a multiprocessor


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch, not carried out."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a compiled kernel takes."""

    kernel: str
    capability: int
    registers: int  # a thread
    spilled: int  # bytes, stored and loaded
    shared: int  # bytes a block
    threads: int  # a block

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor holds at once, of registers and shared memory; registers are given by 8 a thread."""
        of_registers = REGISTERS // (-(-self.registers // 8) * 8 * self.threads)
        return min(of_registers, (SHARED_LIMIT[self.capability] + 1024) // (self.shared + 1024), 2048 // self.threads)


@contextmanager
def caught() -> Iterator[list[Launch]]:
    """Launches inside are collected instead of carried out."""
    launches: list[Launch] = []
    run = JITFunction.run

    def catch(self: Any, *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(self, args, kwargs))

    JITFunction.run = catch
    try:
        yield launches
    finally:
        JITFunction.run = run


def launches_of(call: Callable[[], object]) -> list[Launch]:
    """What the call would launch."""
    with caught() as launches:
        call()
    return launches


def compile_for(launch: Launch, capability: int) -> Taken:
    """Compile one launch's specialisation for sm_<capability>."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    kernel = launch.kernel
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.args, **launch.kwargs)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, dict(launch.kwargs), bound, specialization, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=parsed.__dict__)
    registers, spilled = _ptxas(compiled.asm["ptx"], capability)
    metadata = compiled.metadata
    return Taken(kernel.__name__, capability, registers, spilled, metadata.shared, 32 * metadata.num_warps)


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """Registers a thread, and bytes spilled."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    program = folder / ("ptxas-blackwell" if capability >= 100 and (folder / "ptxas-blackwell").exists() else "ptxas")
    architecture = re.search(r"\.target (sm_\w+)", ptx)
    assert architecture
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kernel.ptx"
        path.write_text(ptx)
        command = [str(program), "-v", f"-arch={architecture[1]}", str(path), "-o", str(path.with_suffix(".cubin"))]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", told)
    spills = re.findall(r"(\d+) bytes spill", told)
    assert registers, told
    return int(registers[1]), sum(map(int, spills))
