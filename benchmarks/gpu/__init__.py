"""The GPU, end to end: `python -m benchmarks.gpu` on a machine that has one. See `__main__`."""
