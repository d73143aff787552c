"""Finds a model on this machine and says what it is, from headers alone, before anything heavy is imported.

`resolve` turns a reference into a folder or file; `inspect` reads its headers and refuses what can't be served: missing,
truncated, pickled, another architecture. Used by the server's start, `plan`, `up` and the preflight; never loads a tensor.
"""
