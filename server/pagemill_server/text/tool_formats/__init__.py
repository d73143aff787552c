"""How families of models write tool calls, one a file, and which of them a chat template shows. The interface is `text/tools`."""

from __future__ import annotations

from collections.abc import Mapping

from pagemill_server.text.tool_formats.hermes import Hermes
from pagemill_server.text.tool_formats.llama3 import Llama3
from pagemill_server.text.tool_formats.mistral import Mistral
from pagemill_server.text.tools import ToolFormat

TOOL_FORMATS: Mapping[str, ToolFormat] = {format.name: format for format in (Hermes(), Llama3(), Mistral())}
NEW_MISTRAL: ToolFormat = Mistral(
    named=True
)  # reads the same and, where it is made to call, writes as tokenizers from v11 on
