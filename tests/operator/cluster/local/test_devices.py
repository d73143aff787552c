"""Which GPUs there are and who gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemill_operator.cluster.local.devices import Devices, NotAvailable, visible_devices


def pod(uid: str, **limits: str) -> dict[str, Any]:
    resources = {"limits": {name.replace("_", "/", 1): amount for name, amount in limits.items()}}
    return {"metadata": {"uid": uid}, "spec": {"containers": [{"resources": resources}]}}


def gpus(uid: str, count: int) -> dict[str, Any]:
    found = pod(uid)
    found["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": str(count), "memory": "1Gi"}}
    return found


@pytest.mark.parametrize(
    ("files", "chosen", "expected"),
    [
        ([], None, ()),
        (["nvidia0", "nvidia1", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"], None, ("0", "1", "2", "10")),
        (["nvidia0", "nvidia1"], "1", ("1",)),
        (["nvidia0", "nvidia1"], "", ()),
        ([], "0,1", ()),
    ],
)
def test_visible_devices(tmp_path: Path, files: list[str], chosen: str | None, expected: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).touch()
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    assert visible_devices(environ, tmp_path) == expected


def test_each_pod_has_its_own_and_gives_it_back() -> None:
    devices = Devices(("0", "1", "2"))
    assert devices.take(gpus("a", 2)) == ("0", "1")
    assert devices.take(gpus("b", 1)) == ("2",)
    assert devices.take(gpus("c", 0)) == ()
    with pytest.raises(NotAvailable, match=r"1 nvidia.com/gpu wanted, 0 free"):
        devices.take(gpus("d", 1))
    devices.release("a")
    devices.release("a")
    assert devices.take(gpus("d", 1)) == ("0",)


@pytest.mark.parametrize(
    ("present", "wanted", "message"),
    [
        ((), gpus("a", 1), "this machine has no CUDA device; set spec.accelerator to cpu"),
        (("0",), gpus("a", 2), r"2 nvidia.com/gpu wanted, this machine has 1 CUDA device\(s\)"),
        (("0",), pod("a", **{"amd.com_gpu": "1"}), "this machine has no amd.com/gpu"),
    ],
)
def test_what_is_wanting_is_said(present: tuple[str, ...], wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(NotAvailable, match=message):
        Devices(present).take(wanted)
