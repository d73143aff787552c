"""schemathesis against our OpenAPI document, on real servers of tiny models, with a key: some thousand requests, sound and unsound.

Nothing fails with a 5xx, every answer is one that the document tells of, what it forbids is refused, and no route forgets the key.
tests/clients/schemathesis.toml says which checks are off, and why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.conftest import ROOT, Run, served
from tests.server.tiny import write_tiny_llama
from tests.server.tiny_bert import write_tiny_encoder

pytestmark = pytest.mark.clients

CONFIG = ROOT / "tests/clients/schemathesis.toml"
HOOKS = "tests.clients.programs.schemathesis_hooks"
NAME, KEY = "tiny", "a-key"


@pytest.mark.parametrize(
    ("task", "options"), [("generate", ()), ("embed", ("--include-path", "/v1/embeddings"))], ids=["generate", "embed"]
)
def test_everything_it_thinks_of(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, options: tuple[str, ...]
) -> None:
    folder = write_tiny_llama(tmp_path / NAME) if task == "generate" else write_tiny_encoder(tmp_path / NAME)
    monkeypatch.setenv("SCHEMATHESIS_HOOKS", HOOKS)
    monkeypatch.setenv("SERVED_NAME", NAME)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the hooks are; what it writes goes into a folder of the test's
    with served(str(folder), "--served-model-name", NAME, "--api-key", KEY) as url:
        said = run(
            *("schemathesis", "--config-file", str(CONFIG), "run", f"{url}/openapi.json"),
            *("-H", f"Authorization: Bearer {KEY}", "--continue-on-failure", "--no-color", *options),
            cwd=tmp_path,
        )
    found = re.search(r"(\d+) generated, (\d+) passed", said)
    assert found is not None, said
    assert found[1] == found[2], said
    assert int(found[1]) > 100, said
