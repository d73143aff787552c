"""`python -m pagemill` is the `pagemill` command."""

import sys

from pagemill.cli import main

if __name__ == "__main__":
    sys.exit(main())
