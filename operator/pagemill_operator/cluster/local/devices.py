"""The GPUs of this machine: how many there are, and which pod holds which.

Asked by `node` before a pod starts. A pod that wants what is not there, or not free, stays unscheduled with a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pagemill_operator.cluster.interface import Manifest

GPU_RESOURCE = "nvidia.com/gpu"


class NotAvailable(Exception):
    """The machine can't take the pod; the message says what is wanting."""


def visible_devices(environ: Mapping[str, str], folder: Path = Path("/dev")) -> tuple[str, ...]:
    """The indices of the CUDA devices that this process may use: those of CUDA_VISIBLE_DEVICES, else all device files."""
    present = sorted(
        int(found[1]) for path in folder.glob("nvidia*") if (found := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not present:
        return tuple(str(index) for index in present)
    return tuple(index.strip() for index in chosen.split(",") if index.strip())


class Devices:
    """Who holds which device, by the pod's uid."""

    def __init__(self, present: tuple[str, ...]) -> None:
        self._present = present
        self._held: dict[str, tuple[str, ...]] = {}

    def take(self, pod: Manifest) -> tuple[str, ...]:
        """Devices for a pod, none for one that asks for none. Raises NotAvailable."""
        wanted = 0
        for resource, amount in _extended_resources(pod).items():
            if resource != GPU_RESOURCE:
                raise NotAvailable(f"0/1 machines are available: this machine has no {resource}")
            wanted = amount
        if wanted > len(self._present):
            has = f"{len(self._present)} CUDA device(s)" if self._present else "no CUDA device"
            raise NotAvailable(
                f"0/1 machines are available: {wanted} {GPU_RESOURCE} wanted, this machine has {has}; "
                "set spec.accelerator to cpu to run without"
            )
        taken = {device for devices in self._held.values() for device in devices}
        free = tuple(device for device in self._present if device not in taken)
        if wanted > len(free):
            raise NotAvailable(f"0/1 machines are available: {wanted} {GPU_RESOURCE} wanted, {len(free)} free")
        held = free[:wanted]
        self._held[pod["metadata"]["uid"]] = held
        return held

    def release(self, uid: str) -> None:
        """Give back what a pod holds; harmless when it holds nothing."""
        self._held.pop(uid, None)


def _extended_resources(pod: Manifest) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for amounts in (resources.get("requests") or {}, resources.get("limits") or {}):
            wanted |= {name: int(amount) for name, amount in amounts.items() if "/" in name}
    return {name: amount for name, amount in wanted.items() if amount}
