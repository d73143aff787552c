"""What the gateway costs: added latency, and the most streams that one process carries. `python -m benchmarks.gateway`."""
