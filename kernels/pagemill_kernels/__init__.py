"""Kernels, one operation a file, and `reference`, their specification in plain torch."""
