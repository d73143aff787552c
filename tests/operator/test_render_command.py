"""`pagemill render` prints what a cluster would get, as YAML that reads back."""

from __future__ import annotations

import io

import pytest
import yaml

from pagemill_operator import commands
from pagemill_operator.render import render
from pagemill_operator.resource import read
from pagemill_operator.settings import CPU_IMAGE_ENV, from_environ
from tests.operator.manifests import manifest


def test_the_children_of_every_deployment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv(CPU_IMAGE_ENV, "own/server:1")
    both = [manifest(), manifest("other", namespace=None, replicas=2)]
    monkeypatch.setattr("sys.stdin", io.StringIO(yaml.safe_dump_all(both)))
    assert commands.render(["-f", "-"]) == 0
    printed = capsys.readouterr().out
    settings = from_environ({CPU_IMAGE_ENV: "own/server:1"})
    wanted = [child for found in both for child in render(read(found), settings)]
    assert list(yaml.safe_load_all(printed)) == wanted
    assert "&id" not in printed
    assert "own/server:1" in printed


def test_a_call_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        commands.render([])
    assert "-f/--file" in capsys.readouterr().err
