"""The live page of the management port: `files` serves what lies in `static`."""
