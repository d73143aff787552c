"""`pagemill pull` as a person runs it."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagemill.commands import ProgressBar, pull
from pagemill.failures import FailureReason, PagemillError
from pagemill.sizes import format_size
from tests.pagemill.hub_server import HubServer, serve
from tests.pagemill.sample_models import weights, write_folder


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    folder = write_folder(tmp_path / "source")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serve(HubServer(repos={"org/tiny": {path.name: path.read_bytes() for path in folder.iterdir()}})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_pull_says_where_the_model_lies_and_what_it_is(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(["org/tiny", "--models", str(tmp_path / "models")]) == 0
    shown = capsys.readouterr()
    size = format_size(sum(tensor.nbytes for tensor in weights().values()))
    assert shown.out == f"{tmp_path / 'models' / 'org' / 'tiny'}: LlamaForCausalLM, {size} of weights\n"
    assert shown.err.splitlines()[-1].startswith("org/tiny: 100%")


def test_pull_uses_the_models_folder_of_the_environment(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEMILL_MODELS", str(tmp_path / "elsewhere"))
    assert pull(["hf://org/tiny@main"]) == 0
    assert (tmp_path / "elsewhere" / "org" / "tiny@main" / "model.safetensors").is_file()


@pytest.mark.parametrize("model", ["/models/x", "pvc://claim/x", "oci://image/x", "file:///x"])
def test_pull_fetches_from_hubs_alone(model: str) -> None:
    with pytest.raises(PagemillError, match="not on a hub") as caught:
        pull([model])
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar("m")
    for done in range(0, 1001, 5):
        bar(done, 1000)
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [f"{percent}%" for percent in range(0, 101, 10)]


def test_a_terminal_gets_one_line_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    bar = ProgressBar("m")
    for done in range(0, 1001, 5):
        bar(done, 1000)
    bar.close()
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert "100%" in text.rpartition("\r")[2]


def test_nothing_to_fetch_is_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressBar("m")(0, 0)
    assert "100%" in capsys.readouterr().err
