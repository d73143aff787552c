"""Kernels for CPUs in C++: what torch is too slow for at few rows. Optional: where the library is not built, torch computes."""
