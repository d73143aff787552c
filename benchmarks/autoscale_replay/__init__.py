"""The operator's real scaling decisions over recorded traces and simulated replicas, beside an HPA, a KEDA rule and a fixed fleet.

    python -m benchmarks.autoscale_replay --traces DIR

`replica` is one simulated engine, `fleet` many of them behind a balancer, `scalers` who decides how many, `hpa` Kubernetes' own
algorithm, `drive` an hour of it, `match` finds settings of equal replica-hours, `figures` sums up, `__main__` is the command.
"""
