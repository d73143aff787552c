"""`pagemill up` as a person runs it, with the real server behind it: it serves, follows its file's edits, and drains."""

from __future__ import annotations

import concurrent.futures
import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operator.up_command import (
    PATIENCE,
    Command,
    complete,
    config_of,
    manifest,
    page_of,
    state_of_engine,
    wait_for_running,
)

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, Path]]:
    """One deployment of the real model, Ready; the tests below go on from each other's state, in order."""
    file = tmp_path_factory.mktemp("up") / "deployments.yaml"
    file.write_text(manifest("first", rollout={"strategy": "Surge"}))
    up = Command(file)
    try:
        yield up, file
    finally:
        up.kill()


class TestWithTheModel:
    def test_it_gets_ready_and_answers(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        line = up.until("answers at")
        assert line.endswith(f"first answers at http://127.0.0.1:{up.port}/v1")
        said = "\n".join(up.lines)
        for pattern in (
            "first Ready False ",
            r"first-0 \| .*loading weights: 100%",
            "first Ready True Serving",
            "first MemoryFit True Fits",
        ):
            assert re.search(pattern, said), pattern
        assert complete(up.port, 8)

    def test_its_page_opens_with_the_address_that_is_said(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        address, _, token = page_of(up.until("first shows its engine at")).partition("#token=")
        with urllib.request.urlopen(address, timeout=10) as response:
            assert b"<title>Pagemill</title>" in response.read()
        assert state_of_engine(address, token)["server"]["phase"] == "Serving"
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            state_of_engine(address, token + "x")
        caught.value.close()

    def test_a_wrong_edit_is_said_and_the_old_one_runs_on(self, running: tuple[Command, Path]) -> None:
        up, file = running
        before = up.servers()
        file.write_text(manifest("first", replicas="two"))
        up.until(r"spec.replicas: must be an integer")
        up.until("the edit is not applied")
        complete(up.port, 4)
        assert up.servers() == before

    def test_an_edit_rolls_out_without_a_failed_request(self, running: tuple[Command, Path]) -> None:
        up, file = running
        (before,) = up.servers()
        over = threading.Event()

        def ask() -> int:
            asked = 0
            while not over.is_set():
                complete(up.port, 4)
                asked += 1
            return asked

        with concurrent.futures.ThreadPoolExecutor() as pool:
            asking = pool.submit(ask)
            try:
                file.write_text(manifest("first", maxModelLen=256, rollout={"strategy": "Surge"}))
                up.until("has changed and is applied")
                up.until("first Progressing True ")
                up.until("first Progressing False Settled")
            finally:
                over.set()
            assert asking.result() > 0
        up.until(r"first-0 \| .*stopped")
        up.until_gone(before)
        assert len(up.servers()) == 1
        new_pages = [line for line in up.lines if "first shows its engine at" in line][1:]
        assert len(new_pages) == 1, "the page of the replica that came in its place"
        address, _, token = page_of(new_pages[0]).partition("#token=")
        assert state_of_engine(address, token)["server"]["max_model_len"] == 256
        with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/v1/models", timeout=10) as response:
            assert json.load(response)["data"][0]["max_model_len"] == 256

    def test_a_hot_field_is_taken_over_by_the_server_that_runs(self, running: tuple[Command, Path]) -> None:
        up, file = running
        before = up.servers()
        pages = [line for line in up.lines if "first shows its engine at" in line]
        address, _, token = page_of(pages[-1]).partition("#token=")
        spec: dict[str, Any] = {"maxModelLen": 256, "rollout": {"strategy": "Surge"}}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream = pool.submit(complete, up.port, 200)
            wait_for_running(up.port, 1)
            file.write_text(manifest("first", **spec, schedulingPolicy="fair", scheduling={"weights": {"a": 2}}))
            deadline = time.monotonic() + PATIENCE
            while config_of(address, token)["policy"] != "fair":
                assert time.monotonic() < deadline, "the policy stays as it was"
                time.sleep(0.05)
            assert stream.result()
        assert config_of(address, token)["weights"] == {"a": 2}
        assert up.servers() == before

    def test_a_second_deployment_in_the_file_has_the_next_port(self, running: tuple[Command, Path]) -> None:
        up, file = running
        spec: dict[str, Any] = {"maxModelLen": 256, "rollout": {"strategy": "Surge"}}
        file.write_text(manifest("first", **spec) + "---\n" + manifest("second"))
        assert up.until("answers at").endswith(f"second answers at http://127.0.0.1:{up.port + 1}/v1")
        complete(up.port + 1, 4)
        file.write_text(manifest("first", **spec))
        up.until(r"second-0 \| .*stopped")
        complete(up.port, 4)

    def test_ctrl_c_lets_an_open_stream_finish(self, running: tuple[Command, Path]) -> None:
        up, _ = running
        with concurrent.futures.ThreadPoolExecutor() as pool:
            streams = [pool.submit(complete, up.port, 240) for _ in range(4)]
            wait_for_running(up.port, 4)
            up.interrupt()
            up.until(r"draining \d replica")
            for stream in streams:
                assert stream.result()
        assert up.end() == 0


def test_a_second_ctrl_c_ends_it_now(tmp_path: Path) -> None:
    file = tmp_path / "deployments.yaml"
    file.write_text(manifest("llm", maxModelLen=2048))
    up = Command(file)
    try:
        up.until("answers at")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            stream = pool.submit(complete, up.port, 2000)  # far more than come before it is cut
            wait_for_running(up.port, 1)
            up.interrupt()
            up.until("draining 1 replica")
            up.interrupt()
            assert up.end() == 0
            with pytest.raises((OSError, AssertionError)):
                stream.result()
    finally:
        up.kill()
