"""What a served model does not need is not imported for it: each of these costs a start a tenth of a second or more."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.server.tiny import write_tiny_llama

BEFORE_TORCH = ("torch", "pagemill_server.model", "gguf", "transformers")
NEVER = (
    "transformers",
    "sentence_transformers",
    "opentelemetry",
    "triton",
    "scipy",
    "sympy",
    "pandas",
    "matplotlib",
    "torch._dynamo",
    "torch._inductor",
    "torch.onnx",
    "aiohttp",
    "requests",
    "kubernetes",
    "IPython",
)
PROGRAM = """
import json, sys
from pagemill_server import cli
flags, files = cli.parse([sys.argv[1]]), None
before = sorted(sys.modules)
from pagemill import model_source
from pagemill_server import loading
from pagemill_server.engine.request import AddRequest, SamplingParams
from pagemill_server.lifecycle import Lifecycle
model = loading.load(flags, model_source.find(sys.argv[1]), Lifecycle())
model.engine.add(AddRequest("r", (1, 2, 3), SamplingParams(max_tokens=2), 0.0))
while model.engine.has_work:
    model.engine.step()
print(json.dumps([before, sorted(sys.modules)]))
"""


def test_what_a_served_model_imports(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path)
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    before, after = json.loads(told.stdout.splitlines()[-1])
    assert not [name for name in BEFORE_TORCH if name in before], "a model that is refused must be refused before these"
    assert not [name for name in NEVER if name in after]
    assert "torch" in after
