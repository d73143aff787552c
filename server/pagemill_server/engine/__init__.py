"""Continuous batching over a paged KV cache: what to compute next, for whom, and in which blocks. Knows no text and no HTTP."""
