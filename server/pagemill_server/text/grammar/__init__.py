"""What generated text must look like: grammars that are put together from parts (`parts`), and their compiler over llguidance
(`compiler`). https://github.com/guidance-ai/llguidance

The parts know nothing of tokens; `compile` writes a grammar as the text that crosses to the engine in `SamplingParams.grammar`.
Used by `api/structured`, `text/tool_formats` and, for masks, by `model/grammar_masks`. Raises InvalidGrammar for what can't be
enforced to the letter: nothing is ever let through unconstrained.
"""

from pagemill_server.text.grammar.compiler import GrammarCompiler
from pagemill_server.text.grammar.errors import InvalidGrammar
from pagemill_server.text.grammar.parts import (
    Grammar,
    cfg,
    choice,
    compile,
    json_object,
    json_schema,
    literal,
    one_of,
    regex,
    repeated,
    sequence,
    text_until,
    text_without,
)

__all__ = [
    "Grammar",
    "GrammarCompiler",
    "InvalidGrammar",
    "cfg",
    "choice",
    "compile",
    "json_object",
    "json_schema",
    "literal",
    "one_of",
    "regex",
    "repeated",
    "sequence",
    "text_until",
    "text_without",
]
