"""`make demo` behind its Makefile target: the real model comes up, answers in a stream and goes; the README's client reaches it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from tests.server.real_model import NAME, real_model

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-u", str(ROOT / "examples" / "demo.py")]
README_ADDRESS = "http://127.0.0.1:8000/v1"


@pytest.fixture(autouse=True)
def _model() -> None:
    real_model()


def test_it_answers_and_shuts_down() -> None:
    done = subprocess.run(
        [*DEMO, str(ROOT / "examples" / "smollm2.yaml")], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    before, _, after = done.stdout.partition("> What is the capital of France?")
    assert re.search(r"smollm2-0 \| .*loading weights: 100%", before)
    assert "smollm2 Ready True Serving" in before
    answer, _, rest = after.partition("HuggingFaceTB/SmolLM2-135M-Instruct: ")
    assert "Paris" in answer
    assert re.match(r"\d+ tokens, first after [\d.]+ s, then [\d.]+ tokens per second\n", rest)
    assert re.search(r"served at http://127\.0\.0\.1:\d+/v1\n", rest)
    assert "draining 1 replica" in rest
    assert re.search(r"smollm2-0 \| .*stopped", rest)


def test_kept_it_serves_the_readmes_client_until_ctrl_c() -> None:
    (client,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert README_ADDRESS in client
    with subprocess.Popen([*DEMO, "--keep"], cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0) as demo:
        try:
            assert demo.stdout is not None
            lines = []
            for line in demo.stdout:
                lines.append(line)
                if "it stays up until Ctrl-C" in line:
                    break
            said = "".join(lines)
            address = re.search(r"served at (\S+)", said)
            assert address, said
            program = client.replace(README_ADDRESS, address[1])
            asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
            assert asked.returncode == 0, asked.stderr
            assert asked.stdout.strip()
            with OpenAI(base_url=address[1], api_key="none", max_retries=0) as openai:
                asking = {"model": NAME, "prompt": "The sea", "max_tokens": 200, "extra_body": {"ignore_eos": True}}
                stream = openai.completions.create(**asking, stream=True)
                next(stream)
                os.killpg(demo.pid, signal.SIGINT)  # as a terminal sends it, to the whole foreground group
                assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
            assert re.search(r"smollm2-0 \| .*stopped", demo.stdout.read())
            assert demo.wait(60) == 0
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGKILL)
