"""The `pagemill` command: subcommands through entry points, and mistakes as one line with the right exit code."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pagemill import __version__, cli
from pagemill.failures import FailureReason, PagemillError


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    return subprocess.run(
        [sys.executable, "-m", "pagemill", *args], capture_output=True, text=True, env=env, check=False
    )


@pytest.mark.parametrize("flag", ["--version", "-V", "version"])
def test_version(flag: str) -> None:
    done = run(flag)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pagemill {__version__}\n", "")


def test_help_lists_every_command_that_is_declared() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(f"\n  {name}" in done.stdout for name in cli.SUMMARIES)
    assert run().returncode == 2


def test_an_unknown_command_is_named() -> None:
    done = run("sevre")
    assert done.returncode == 2
    assert done.stderr.startswith("pagemill: there is no command 'sevre'\nusage:")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("pull", "nonsense"), "pagemill pull: model 'nonsense' is not a model reference"),
        (("pull", "pvc://claim/x"), "pagemill pull: pvc://claim/x is not on a hub"),
        (("pull", "org/name"), "pagemill pull: http://127.0.0.1:9 can't be reached"),
    ],
)
def test_a_mistake_is_one_line(args: tuple[str, ...], says: str) -> None:
    done = run(*args, HF_ENDPOINT="http://127.0.0.1:9", no_proxy="127.0.0.1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_a_wrong_flag_is_a_wrong_call() -> None:
    assert run("pull").returncode == 2
    assert run("pull", "org/name", "--no-such-flag").returncode == 2


def entry(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> EntryPoint:
    (tmp_path / f"{name}_command.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return EntryPoint(name, f"{name}_command:main", cli.GROUP)


def test_a_part_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = entry("lacking", tmp_path, monkeypatch, "import no_such_package\n")
    assert cli._run(point, []) == 1
    assert "`lacking` needs no_such_package, which is not installed" in capsys.readouterr().err
    server = EntryPoint("serve", "pagemill_server.no_such_module:serve", cli.GROUP)
    assert cli._run(server, []) == 1
    assert "pip install 'pagemill[server]'" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "status"), [("return None", 0), ("return 3", 3), ("raise KeyboardInterrupt", 130)])
def test_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, status: int) -> None:
    name = f"status{status}"
    assert cli._run(entry(name, tmp_path, monkeypatch, f"def main(argv):\n    {code}\n"), []) == status


def test_a_bug_stays_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        cli._run(entry("buggy", tmp_path, monkeypatch, "def main(argv):\n    return 1 // 0\n"), [])


def test_a_typed_error_is_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = PagemillError(FailureReason.DISK_FULL, "the disk is full: free space")
    code = f"from pagemill.failures import *\ndef main(argv):\n    raise PagemillError('{error.failure.reason}', '{error}')\n"
    assert cli._run(entry("typed", tmp_path, monkeypatch, code), []) == 1
    assert capsys.readouterr().err == "pagemill typed: the disk is full: free space\n"


@pytest.mark.parametrize("lines", [1, 100_000])  # told by the last flush, and in the middle
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, lines: int) -> None:
    (tmp_path / "wordy.py").write_text(f"def main(argv):\n    print('line\\n' * {lines})\n")
    program = (
        "import sys; from importlib.metadata import EntryPoint; from pagemill import cli\n"
        f"sys.exit(cli._run(EntryPoint('wordy', 'wordy:main', '{cli.GROUP}'), []))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    path = os.pathsep.join([str(tmp_path), str(Path(cli.__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
