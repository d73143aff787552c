"""The command line of a replica: `pagemill serve MODEL` and its flags, from the spec.

Pure. A contract test hands the result to the server's own parser. Called by `render`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagemill import model_ref
from pagemill.endpoints import MANAGEMENT_PORT, SERVING_PORT
from pagemill_operator.hot_settings import SETTINGS_FILE
from pagemill_operator.resource import Resource
from pagemill_operator.spec import LLMDeploymentSpec

API_KEYS_MOUNT = "/etc/pagemill/api-keys"  # where the Secret of API keys is mounted
SETTINGS_MOUNT = "/etc/pagemill/settings"  # where the ConfigMap of the hot settings is mounted
MODEL_MOUNT = "/model"  # where a claim or image that holds the model is mounted


def command(spec: LLMDeploymentSpec, pinned: str | None = None) -> list[str]:
    """The program and the model, where a pod finds it. `pinned`: the hub's model with its commit, where one is known."""
    ref = model_ref.parse(spec.model)
    if ref.kind in ("pvc", "oci"):
        return ["pagemill", "serve", f"{MODEL_MOUNT}/{ref.path}" if ref.path else MODEL_MOUNT]
    return ["pagemill", "serve", pinned or spec.model]


def arguments(resource: Resource, managed: bool) -> list[str]:
    """The flags; numbers and words as text, `extraArgs` last so that they have the last word. `managed`: with a management port."""
    management = ("--management-port", str(MANAGEMENT_PORT)) if managed else ()
    return [*_flags(resource), *management, *resource.spec.engine.extra_args]


def _flags(resource: Resource) -> Iterator[str]:
    spec, engine = resource.spec, resource.spec.engine
    yield from ("--host", "0.0.0.0", "--port", str(SERVING_PORT))
    yield from ("--device", "cpu" if spec.accelerator == "cpu" else "cuda")
    if names := served_names(resource):
        yield from ("--served-model-name", *names)
    yield from ("--gpu-memory-utilization", f"{spec.gpu_memory_utilization:g}")
    if spec.task is not None:
        yield from ("--task", spec.task)
    if engine.dtype != "auto":
        yield from ("--dtype", engine.dtype)
    if engine.quantization is not None:
        yield from ("--quantization", engine.quantization)
    numbers = {
        "--max-model-len": spec.max_model_len,
        "--block-size": engine.block_size,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--kv-cache-memory-bytes": None if engine.kv_cache_gib is None else int(engine.kv_cache_gib * 1024**3),
        "--kv-offloading-size": _plain(engine.host_cache_gib),
        "--tensor-parallel-size": None if spec.gpu.count == 1 else spec.gpu.count,
        "--seed": engine.seed,
        "--lame-duck-seconds": spec.rollout.lame_duck_seconds,
        "--shutdown-timeout": spec.rollout.drain_timeout_seconds,
        "--startup-timeout": spec.startup.timeout_seconds,
    }
    for flag, number in numbers.items():
        if number is not None:
            yield from (flag, str(number))
    if engine.prefix_caching is not None:
        yield "--enable-prefix-caching" if engine.prefix_caching else "--no-enable-prefix-caching"
    yield from ("--settings-file", f"{SETTINGS_MOUNT}/{SETTINGS_FILE}")
    if spec.api_keys_secret_ref is not None:
        yield from ("--api-key-file", API_KEYS_MOUNT)


def _plain(number: float | None) -> str | None:
    return None if number is None else f"{number:.15g}"


def served_names(resource: Resource) -> tuple[str, ...]:
    """A hub model is asked for by its org/name; any other by the deployment's name, since its path means nothing to a client."""
    if resource.spec.served_model_names:
        return resource.spec.served_model_names
    ref = model_ref.parse(resource.spec.model)
    return (ref.location,) if ref.kind == "hub" else (resource.owner.key.name,)
