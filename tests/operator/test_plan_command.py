"""`pagemill plan` says whether a model fits, and what would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill import cli
from pagemill.endpoints import MODELS_ENV
from tests.operator.manifests import manifest
from tests.pagemill.sample_models import write_folder


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with org/tiny: two layers, 256 tokens of context, 512 bytes of KV a token in float32."""
    folder = tmp_path / "models" / "org" / "tiny"
    folder.mkdir(parents=True)
    write_folder(folder)
    monkeypatch.setenv(MODELS_ENV, str(tmp_path / "models"))
    return tmp_path


def plan(folder: Path, capsys: pytest.CaptureFixture[str], *flags: str, **spec: Any) -> tuple[int, str, str]:
    file = folder / "it.yaml"
    file.write_text(yaml.safe_dump(manifest(**{"model": "org/tiny", **spec})))
    code = cli.main(["plan", "-f", str(file), *flags])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows(out: str) -> dict[str, str]:
    """The table's rows by their names."""
    return {line[2:30].strip(): line[30:].strip() for line in out.splitlines() if line.startswith("  ")}


def test_a_model_that_fits_the_cpu(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(models, capsys, engine={"kvCacheGiB": 0.01})
    assert code == 0
    assert out.splitlines()[0] == "chat: org/tiny (LlamaForCausalLM)"
    assert out.splitlines()[-1] == "fits"
    assert rows(out)["longest sequence that fits"] == "256"
    assert rows(out)["blocks"] == f"{int(0.01 * 1024**3) // (512 * 16)} of 16 tokens"


def test_a_gpu_of_a_size(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(models, capsys, "--gpu-memory", "24GiB", accelerator="gpu")
    assert code == 0
    assert rows(out)["GPU memory"] == "24.0 GiB, 0.9 of it used"


def test_the_specs_gpu_memory_is_used_and_the_flag_goes_before(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = {"accelerator": "gpu", "gpu": {"memoryGiB": 80}}
    assert rows(plan(models, capsys, **gpu)[1])["GPU memory"].startswith("80.0 GiB")
    assert rows(plan(models, capsys, "--gpu-memory", "1GiB", **gpu)[1])["GPU memory"].startswith("1.0 GiB")


def test_several_gpus_share_each_layer(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        rows(plan(models, capsys, accelerator="gpu", gpu={"memoryGiB": 24, "count": count})[1]) for count in (1, 2)
    )
    assert one["GPU memory"] == "24.0 GiB, 0.9 of it used"
    assert two["GPU memory"] == "24.0 GiB, 0.9 of it used; all figures are of each of 2 GPUs"
    assert one["KV cache"].endswith(" 256 B a token")
    assert two["KV cache"].endswith(" 128 B a token")
    code, out, _ = plan(models, capsys, accelerator="gpu", gpu={"memoryGiB": 24, "count": 3})
    assert code == 1
    assert "can't be divided among 3 processes" in out


def test_what_does_not_fit_names_the_nearest_values_that_do(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(models, capsys, maxModelLen=256, engine={"kvCacheGiB": 0.0001})
    assert code == 1
    verdict = out.splitlines()[-1]
    assert verdict.startswith("does not fit: one sequence of 256 tokens needs 128.0 KiB of KV cache")
    assert "set maxModelLen to 192" in verdict
    assert "engine.kvCacheGiB" in verdict
    fits, *_ = plan(models, capsys, maxModelLen=192, engine={"kvCacheGiB": 0.0001})
    assert fits == 0


def test_a_length_beyond_the_model(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(models, capsys, maxModelLen=512)
    assert code == 1
    assert "set at most 256" in out


def test_a_high_utilization_is_warned_of(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(models, capsys, "--gpu-memory", "24GiB", accelerator="gpu", gpuMemoryUtilization=0.97)
    assert code == 0
    assert "warning: above 0.95" in out


@pytest.mark.parametrize(
    ("flags", "spec", "says"),
    [
        ((), {"accelerator": "gpu"}, "say --gpu-memory 24GiB, or set gpu.memoryGiB"),
        (("--gpu-memory", "much"), {}, "'much' is not a size"),
        ((), {"model": "org/other"}, "run `pagemill pull org/other`"),
        ((), {"model": "pvc://weights/llama"}, "can only be mounted by a cluster"),
    ],
)
def test_what_it_cannot_reckon_is_one_line(
    flags: tuple[str, ...], spec: dict[str, Any], says: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = plan(models, capsys, *flags, **spec)
    assert code == 1
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1


def test_one_of_two_that_does_not_fit_is_enough(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [manifest(model="org/tiny"), manifest("long", model="org/tiny", maxModelLen=999)]
    file = models / "both.yaml"
    file.write_text(yaml.safe_dump_all(both))
    assert cli.main(["plan", "-f", str(file)]) == 1
    out = capsys.readouterr().out
    assert "chat: " in out
    assert "long: " in out
