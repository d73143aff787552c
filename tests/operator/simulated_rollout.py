"""How many replicas each ReplicaSet gets in a rolling update, as Kubernetes' own rolling.go has it."""

from __future__ import annotations

from typing import Any


def roll(new: dict[str, Any], old: list[dict[str, Any]], wanted: int, surge: int, unavailable: int) -> None:
    """`new` and `old`: sets, each with its replicas and how many of them are available; their replicas are set anew."""
    total = new["replicas"] + sum(one["replicas"] for one in old)
    if new["replicas"] > wanted:
        new["replicas"] = wanted
    elif total < wanted + surge:
        new["replicas"] += min(wanted + surge - total, wanted - new["replicas"])
        return
    least = wanted - unavailable
    spare = total - least - (new["replicas"] - new["available"])
    for one in old:  # those that don't serve anyway
        cut = max(0, min(spare, one["replicas"] - one["available"]))
        one["replicas"] -= cut
        spare -= cut
    cut = new["available"] + sum(min(one["available"], one["replicas"]) for one in old) - least
    for one in old:
        step = max(0, min(cut, one["replicas"]))
        one["replicas"] -= step
        cut -= step
