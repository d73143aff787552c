"""What is wrong with a grammar, as a sentence for whoever sent it."""

from __future__ import annotations


class InvalidGrammar(ValueError):
    """It can't be enforced: malformed, unsupported, or more than the bounds allow."""
