"""docs/helm.md has each value of the chart with its default and what values.yaml says of it.

`PAGEMILL_SNAPSHOTS=write` rewrites the table (`make golden`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "pagemill"
GUIDE = REPOSITORY / "docs" / "helm.md"
BEGIN, END = "<!-- values: from charts/pagemill/values.yaml by `make golden` -->\n", "<!-- end of values -->\n"


def comment(lines: list[str], line: int) -> str:
    """The lines of comment right above a line."""
    said: list[str] = []
    while line > 0 and (found := re.fullmatch(r"\s*# ?(.*)", lines[line - 1])):
        said.insert(0, found[1])
        line -= 1
    return " ".join(said)


def rows(node: Any, value: Any, schema: dict[str, Any], lines: list[str], path: str = "") -> Iterator[str]:
    """`| key | default | what |` of each leaf; a group's comment stands in a row of its own."""
    for key, below in node.value:
        name, said = f"{path}{key.value}", comment(lines, key.start_mark.line)
        schema_below = schema["properties"][key.value]
        if "properties" in schema_below:
            if said:
                yield f"| **`{name}`** | | {said} |"
            yield from rows(below, value[key.value], schema_below, lines, f"{name}.")
        else:
            yield f"| `{name}` | `{json.dumps(value[key.value])}` | {said} |"


def table() -> str:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    body = rows(yaml.compose(text), yaml.safe_load(text), schema, text.splitlines())
    return "\n".join(["| value | default | |", "| --- | --- | --- |", *body]) + "\n"


def test_the_guides_table_is_what_the_values_say() -> None:
    before, _, rest = GUIDE.read_text().partition(BEGIN)
    written, _, after = rest.partition(END)
    if os.environ.get("PAGEMILL_SNAPSHOTS") == "write":
        GUIDE.write_text(before + BEGIN + table() + END + after)
        written = table()
    assert written == table(), "run `make golden`"


def test_every_values_comment_reaches_the_table() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    comments = [line.strip().removeprefix("# ") for line in lines[1:] if line.strip().startswith("#")]
    assert len(comments) > 15
    assert all(said in table() for said in comments)
