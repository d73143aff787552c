"""The door of `up`, `render` and `plan`: one clear line a problem."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagemill_operator import commands
from pagemill_operator.errors import InvalidManifest
from pagemill_operator.manifest_file import load_manifest, load_manifests
from tests.operator.manifests import REFUSED, Mistake, manifest

GOOD = yaml.safe_dump(manifest())


def problems(tmp_path: Path, text: str) -> tuple[str, ...]:
    (tmp_path / "it.yaml").write_text(text)
    with pytest.raises(InvalidManifest) as raised:
        load_manifests(str(tmp_path / "it.yaml"))
    return tuple(problem.replace(str(tmp_path) + "/", "") for problem in raised.value.problems)


def test_one_and_several_documents(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(GOOD)
    assert load_manifest(str(file)) == manifest()
    file.write_text(f"---\n{GOOD}---\n{yaml.safe_dump(manifest('other'))}---\n")
    assert [found["metadata"]["name"] for found in load_manifests(str(file))] == ["chat", "other"]
    with pytest.raises(InvalidManifest, match="holds 2 LLMDeployments"):
        load_manifest(str(file))


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert load_manifest("-") == manifest()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it.yaml: holds no LLMDeployment"),
        ("spec: [", "it.yaml: is not YAML: line 1"),
        ("a: 1\na: 2\n", "it.yaml: is not YAML: line 2: 'a' is there twice"),
        ("just text", "it.yaml: must be a mapping"),
        ("- 1", "it.yaml: must be a mapping"),
        ("!!python/object:os.system {}", "it.yaml: is not YAML: line 1"),
        ("a: !!int x", "it.yaml: is not YAML: line 1: 'x' can't be read as int"),
        ("a:\n- !!float x", "it.yaml: is not YAML: line 2: 'x' can't be read as float"),
        ("a: !!bool x", "it.yaml: is not YAML: line 1: 'x' can't be read as bool"),
        ("a: " + "1" * 5000, "it.yaml: is not YAML: line 1: '1111"),
        ("[" * 5000, "it.yaml: is nested too deeply"),
        ("{a: " * 3000 + "1" + "}" * 3000, "it.yaml: is nested too deeply"),
        ("a: &a [*a]", "it.yaml: is not YAML: line 1"),
        (f"{GOOD}1: 2\nnull: 3\n", "it.yaml: 1: unknown field"),
        (f"{GOOD}---\n{GOOD}", "it.yaml: metadata.name: 'chat' is there twice"),
        (f"{GOOD}---\nkind: Secret", "it.yaml document 2: apiVersion and kind"),
        (
            GOOD.replace("model: ", "model: 2026-01-01 #"),
            "it.yaml: spec.model: model '2026-01-01' is not a model reference",
        ),
        (GOOD + "  engine: {quantization: fp8}\n", "it.yaml: spec.engine.quantization is not served by this release"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, says: str) -> None:
    assert problems(tmp_path, text)[0].startswith(says)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"namespace": 3}, "metadata.namespace: must be a name, not 3"),
        ({"namespace": ["team"]}, "metadata.namespace: must be a name"),
        ({"labels": 3}, "metadata.labels: must be a mapping of strings to strings"),
        ({"labels": {"a": True}}, "metadata.labels: must be a mapping of strings to strings"),
        ({"annotations": ["a"]}, "metadata.annotations: must be a mapping of strings to strings"),
        ({"generation": "newest"}, 'metadata.generation: must be an integer, not "newest"'),
    ],
)
def test_metadata_that_only_an_api_server_would_have_checked(
    tmp_path: Path, metadata: dict[str, Any], says: str
) -> None:
    wrong = manifest()
    wrong["metadata"] |= metadata
    (problem,) = problems(tmp_path, yaml.safe_dump(wrong))
    assert problem.startswith(f"it.yaml: {says}")


def test_a_file_that_is_not_there_or_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"missing\.yaml: no such file"):
        load_manifests(str(tmp_path / "missing.yaml"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidManifest, match="is not text in UTF-8"):
        load_manifests(str(tmp_path / "binary"))


@pytest.mark.parametrize("command", ["up", "render", "plan"])
@pytest.mark.parametrize(
    "name", ["unknown field", "text for an integer", "replicas beside autoscaling", "min above max"]
)
def test_every_command_refuses_alike(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake: Mistake = REFUSED[name]
    file = tmp_path / "it.yaml"
    file.write_text(yaml.safe_dump(manifest(**mistake.spec)))
    run: Any = getattr(commands, command)
    assert run(["-f", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"pagemill {command}: {file}: {mistake.says}")
