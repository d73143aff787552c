"""Suites that judge servers by OpenAI's own documents: llm-comply over chat and responses, and canitoolcall's probe.

Left out of llm-comply: image input and compaction, which this server doesn't have, and reasoning summaries, which the demo model
doesn't. Of the probe, what a model of 135 million parameters can be held to: its scenarios with a forced call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Run, served
from tests.server.real_model import NAME, real_model

pytestmark = [pytest.mark.clients, pytest.mark.model]

LEFT_OUT = ("image", "reasoning", "thinking", "compact")


@pytest.mark.parametrize("form", ["openai-chat", "open-responses"])
def test_llm_comply(run: Run, generating: str, form: str) -> None:
    listed = run("llm-comply", "--format", form, "--list")
    names = re.findall(r"^  (\S+)", listed, flags=re.MULTILINE)
    wanted = [name for name in names if not any(word in name for word in LEFT_OUT)]
    assert len(wanted) >= 6, listed
    said = run(
        *("llm-comply", "-u", generating, "-k", "not-needed", "-m", NAME, "--format", form),
        *("-f", ",".join(wanted), "--json", "--timeout", "300"),
        ok=False,
    )
    assert _failed(json.loads(said[said.index("{") :])) == [], said


@pytest.fixture
def short_spoken() -> Iterator[str]:
    """The probe sets no length, and this model would talk on."""
    real_model()
    settings = '{"temperature": 0, "max_new_tokens": 100}'
    with served(NAME, "--max-model-len", "1024", "--override-generation-config", settings) as url:
        yield f"{url}/v1"


def test_the_probe_of_canitoolcall(run: Run, short_spoken: str, tmp_path: Path) -> None:
    """Where a call is forced it is whole, streamed and not; nowhere does a marker leak or do the two differ."""
    report = tmp_path / "report.json"
    run(
        "canitoolcall",
        "probe",
        "--base-url",
        short_spoken,
        "--model",
        NAME,
        "--timeout",
        "300",
        "--json",
        str(report),
        ok=False,
    )
    outcomes = json.loads(report.read_text(encoding="utf-8"))["outcomes"]
    bad = [one for one in outcomes if one["status"] != "pass"]
    assert not [one for one in bad if one["scenario_id"] == "forced-tool-choice"], bad
    assert not [one for one in bad if "expected at least" not in (one["detail"] or "")], bad
    assert len(outcomes) == 27


def _failed(report: dict[str, Any]) -> list[Any]:
    return [result for result in report["results"] if result["status"] != "passed"]
