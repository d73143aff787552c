"""`pagemill plan`: whether an LLMDeployment fits the memory that it would get, as a table, before anything is started.

Reads the model's headers on this machine and asks `pagemill.memory_fit`, as the server does at its start.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from pagemill.memory_fit import WARN_UTILIZATION, FitRequest, MemoryFit, fit
from pagemill.model_files import inspect, resolve
from pagemill.sizes import format_size, parse_size
from pagemill_operator.fit_request import fit_request
from pagemill_operator.manifest_file import load_manifests
from pagemill_operator.resource import Resource, read


def run(argv: list[str]) -> int:
    """0 when every LLMDeployment of the file fits, 1 when one does not; raises InvalidManifest and PagemillError."""
    parser = argparse.ArgumentParser(
        prog="pagemill plan", description="Say whether an LLMDeployment fits the memory, and what would."
    )
    parser.add_argument(
        "-f", "--file", required=True, metavar="FILE", help="LLMDeployments as YAML; - is standard input"
    )
    parser.add_argument(
        "--gpu-memory", metavar="SIZE", help="memory of one GPU, such as 24GiB (default: gpu.memoryGiB)"
    )
    args = parser.parse_args(argv)
    gpu_memory = parse_size(args.gpu_memory) if args.gpu_memory else None
    fits = True
    for manifest in load_manifests(args.file):
        resource = read(manifest)
        request = fit_request(resource.spec, inspect(resolve(resource.spec.model, os.environ)), gpu_memory)
        result = fit(request)
        sys.stdout.write("\n".join(_table(resource, request, result)) + "\n")
        fits = fits and result.failure is None
    return 0 if fits else 1


def _table(resource: Resource, request: FitRequest, result: MemoryFit) -> Iterator[str]:
    spec, config = resource.spec, request.config
    yield f"{resource.owner.key.name}: {spec.model} ({config.architecture})"
    on_gpu = request.kv_cache_bytes is None
    rows = [("GPU memory", _gpu_memory(request))] if on_gpu else []
    rows += [
        ("weights", f"{format_size(result.weights_bytes)}, {_weights(request)}"),
        ("activation reserve", format_size(result.activation_bytes)),
        ("KV cache", f"{format_size(result.kv_cache_bytes)}, {format_size(result.kv_bytes_per_token)} a token"),
        ("blocks", f"{result.num_blocks} of {request.block_size} tokens"),
        ("tokens at once", str(result.max_concurrent_tokens)),
        ("longest sequence wanted", str(result.max_model_len)),
        ("longest sequence that fits", str(result.max_model_len_that_fits)),
    ]
    for name, value in rows:
        yield f"  {name:<28}{value}"
    if result.failure is not None:
        yield f"does not fit: {result.failure.message}"
        return
    yield "fits"
    if on_gpu and request.utilization > WARN_UTILIZATION:
        yield f"warning: above {WARN_UTILIZATION} little is left for what else uses the GPU: expect CUDAOutOfMemory"


def _weights(request: FitRequest) -> str:
    return f"{request.dtype_bytes} bytes a parameter" if request.weights is None else request.weights


def _gpu_memory(request: FitRequest) -> str:
    text = f"{format_size(request.memory_bytes)}, {request.utilization:g} of it used"
    processes = request.tensor_parallel_size
    return text if processes == 1 else f"{text}; all figures are of each of {processes} GPUs"
