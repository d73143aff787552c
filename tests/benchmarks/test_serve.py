"""The benchmark's flags, and a measurement of two servers side by side."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serve, workload_file
from benchmarks.client import Target
from tests.benchmarks.test_client import answering, well, workload


def test_what_is_measured_without_flags() -> None:
    args = serve.parse([])
    assert (args.base_url, args.model, args.reps, args.server_flags) == (None, serve.DEMO_MODEL, 3, [])


def test_flags_after_the_dashes_are_the_servers() -> None:
    args = serve.parse(["--reps", "5", "--", "--dtype", "float32", "--max-num-seqs", "8"])
    assert (args.reps, args.server_flags) == (5, ["--dtype", "float32", "--max-num-seqs", "8"])


def test_addresses_lose_their_slash_and_the_second_model_is_the_first() -> None:
    args = serve.parse(["--base-url", "http://localhost:1/", "--model", "m", "--versus", "http://[::1]:2/"])
    assert (args.base_url, args.versus, args.versus_model) == ("http://localhost:1", "http://[::1]:2", "m")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--base-url", "http://example.com"], "--allow-remote"),
        (["--base-url", "http://10.0.0.1:8000"], "--allow-remote"),
        (["--base-url", "http://127.0.0.1.example.com"], "--allow-remote"),
        (["--base-url", "http://127.0.0.1:1", "--versus", "http://0.0.0.0:1"], "--allow-remote"),
        (["--base-url", "127.0.0.1:8000"], "not an http"),
        (["--base-url", "file:///etc"], "not an http"),
        (["--workloads", "w1,w9"], "there is no workload 'w9'"),
        (["--reps", "0"], "at least 1"),
        (["--base-url", "http://127.0.0.1:1", "--", "--dtype", "float32"], "leave out --base-url"),
    ],
)
def test_a_wrong_call_says_what_to_change(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve.parse(argv)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_remote_addresses_when_the_user_says_so() -> None:
    assert serve.parse(["--base-url", "http://10.0.0.1:8000", "--allow-remote"]).base_url == "http://10.0.0.1:8000"


async def test_two_servers_are_measured_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def named(label: str) -> Any:
        async def answer(request: Any, body: Any) -> Any:
            order.append(label)
            return await well(request, body)

        return answer

    async with answering(named("A")) as first, answering(named("B")) as second:
        targets = {"A": Target(first, "m"), "B": Target(second, "n")}
        document = await serve.measure(targets, [workload(True)], reps=2)
    assert "".join(order) == "A" * 6 + "B" * 6 + "A" * 6 + "B" * 6
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[-3:-1]] == [["w", "A"], ["w", "B"]]
    assert rows[-1] == ["w", "A", "/"]
    assert [entry["server"] for entry in document["results"]] == ["A", "B"]
    assert all(len(entry["runs"]) == 2 and entry["runs"][0]["output_tokens"] == 18 for entry in document["results"])
    assert document["machine"]["cpu"]
    json.dumps(document)


def test_failures_are_shown_and_end_in_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload_file.write(workload(True), tmp_path / "w.json")
    flags = ["--base-url", "http://127.0.0.1:9", "--workload", str(tmp_path / "w.json"), "--reps", "1"]
    assert serve.main([*flags, "--out", str(tmp_path / "results" / "w.json")]) == 1
    shown = capsys.readouterr().out
    assert "failed: ClientConnectorError" in shown
    assert json.loads((tmp_path / "results" / "w.json").read_text())["results"][0]["runs"][0]["failed"] == 6


def test_a_file_that_is_no_workload_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", "http://127.0.0.1:9", "--workload", str(tmp_path / "none.json")]
    assert serve.main(flags) == 1
    assert capsys.readouterr().err.count("\n") == 1
