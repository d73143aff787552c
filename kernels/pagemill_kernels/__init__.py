"""Pagemill's kernels, one operation a file, each specified in plain torch by `reference`. Called by `pagemill_server.model`."""
