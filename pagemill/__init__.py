"""What the operator and the server must agree on, and the `pagemill` command. Standard library and PyYAML only."""

__version__ = "0.1.0"
