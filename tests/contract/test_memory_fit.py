"""What `pagemill plan` predicts for a manifest is what the server of its rendered flags then has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pagemill.memory_fit import fit
from pagemill.model_files import inspect
from pagemill_operator.cluster.local.volumes import lay_out, moved
from pagemill_operator.fit_request import fit_request
from pagemill_operator.render import render
from pagemill_operator.resource import Resource, read
from pagemill_server.cli import parse
from pagemill_server.model.load import load_runner
from pagemill_server.settings import Settings
from tests.operator.golden_cases import SETTINGS
from tests.server.computing import needs_native
from tests.server.tiny import write_tiny_llama


def of_the_pod(resource: Resource, folder: Path) -> Settings:
    """What the server reads of a rendered pod, its files in `folder`."""
    children = render(resource, SETTINGS)
    files = {child["metadata"]["name"]: child["data"] for child in children if child["kind"] == "ConfigMap"}
    pod = children[-1]["spec"]["template"]["spec"]
    container = moved(pod["containers"][0], lay_out(pod, files.get, folder))
    return parse([*container["command"][2:], *container["args"]])


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_plan_is_what_the_server_has(tmp_path: Path, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch computes: no processor can be seen from a plan, and our own kernels take less."""
    monkeypatch.setenv("PAGEMILL_NATIVE", "0")
    folder = write_tiny_llama(tmp_path / "tiny", tie_word_embeddings=tied)
    resource = read(
        {
            "apiVersion": "pagemill.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "tiny", "namespace": "default"},
            "spec": {
                "model": f"file://{folder}",
                "accelerator": "cpu",
                "maxModelLen": 128,
                "engine": {"kvCacheGiB": 0.001, "dtype": "float32", "blockSize": 16, "maxNumSeqs": 8},
            },
        }
    )
    files = inspect(folder)
    predicted = fit(fit_request(resource.spec, files, None))
    settings = of_the_pod(resource, tmp_path)
    _, limits, start = load_runner(files, settings.model, settings.cache, settings.scheduler, lambda done, total: None)
    assert start.fit == predicted
    assert start.measured.kv_cache == predicted.kv_cache_bytes
    assert (limits.num_blocks, limits.max_model_len) == (predicted.num_blocks, 128)


@needs_native
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_so_it_is_of_int8_which_our_kernels_alone_compute(tmp_path: Path, tied: bool, stored: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny", tie_word_embeddings=tied, torch_dtype=stored)
    engine = {"kvCacheGiB": 0.001, "quantization": "int8", "dtype": "float32", "maxNumSeqs": 8}
    resource = read(
        {
            "apiVersion": "pagemill.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "tiny", "namespace": "default"},
            "spec": {"model": f"file://{folder}", "accelerator": "cpu", "maxModelLen": 128, "engine": engine},
        }
    )
    files, settings = inspect(folder), of_the_pod(resource, tmp_path)
    assert settings.model.quantization == "int8"
    predicted = fit(fit_request(resource.spec, files, None))
    _, _, start = load_runner(files, settings.model, settings.cache, settings.scheduler, lambda done, total: None)
    assert start.fit == predicted


def test_several_gpus_share_the_model_in_the_plan_as_in_the_server(tmp_path: Path) -> None:
    """The figures are one GPU's: of two, each has half of every layer."""
    folder = write_tiny_llama(tmp_path / "tiny")
    spec = {"model": f"file://{folder}", "gpu": {"count": 2, "memoryGiB": 1}, "engine": {"dtype": "float32"}}
    resource = read(
        {
            "apiVersion": "pagemill.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "tiny", "namespace": "default"},
            "spec": spec,
        }
    )
    settings = of_the_pod(resource, tmp_path)
    request = fit_request(resource.spec, inspect(folder), None)
    assert request.tensor_parallel_size == settings.model.tensor_parallel_size == 2
    alone = fit(replace(request, tensor_parallel_size=1))
    assert 2 * fit(request).kv_bytes_per_token == alone.kv_bytes_per_token
    assert fit(request).weights_bytes < alone.weights_bytes


@pytest.mark.parametrize("accelerator", ["cpu", "gpu"])
def test_a_block_size_that_nobody_says_is_the_same_in_both(tmp_path: Path, accelerator: str) -> None:
    folder = write_tiny_llama(tmp_path / "tiny")
    resource = read(
        {
            "apiVersion": "pagemill.dev/v1alpha1",
            "kind": "LLMDeployment",
            "metadata": {"name": "tiny", "namespace": "default"},
            "spec": {"model": f"file://{folder}", "accelerator": accelerator},
        }
    )
    settings = of_the_pod(resource, tmp_path)
    assert settings.cache.block_size == fit_request(resource.spec, inspect(folder), 24 << 30).block_size == 16
