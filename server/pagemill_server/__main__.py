"""`python -m pagemill_server --model MODEL …`: the same as `pagemill serve MODEL …`."""

from __future__ import annotations

import sys

from pagemill_server.cli import serve

if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
