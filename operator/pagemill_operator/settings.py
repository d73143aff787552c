"""What the operator itself is told at its start, as one frozen object. Filled by `__main__` (environment, chart) and by `up`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagemill import __version__

CPU_IMAGE_ENV = "PAGEMILL_CPU_IMAGE"
GPU_IMAGE_ENV = "PAGEMILL_GPU_IMAGE"
GATEWAY_IMAGE_ENV = "PAGEMILL_GATEWAY_IMAGE"
PULL_POLICY_ENV = "PAGEMILL_IMAGE_PULL_POLICY"
PREFLIGHT_ENV = "PAGEMILL_PREFLIGHT"


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults for what a spec leaves out, and the pace of looking."""

    cpu_image: str = f"pagemill/server:{__version__}-cpu"
    gpu_image: str = f"pagemill/server:{__version__}"
    gateway_image: str = f"pagemill/operator:{__version__}"  # of the gateways: the operator's own
    image_pull_policy: str | None = None  # None: Kubernetes' own default
    version: str = __version__
    preflight: bool = (
        True  # look at a model by a Job before its pods start; one machine needs none: its server looks first
    )
    management_key: bytes = (
        b""  # every deployment's token is derived from it; empty: no management port (a file's render)
    )
    namespace: str | None = None  # the operator's own; None outside a pod
    look_again_seconds: float = 2.0  # while a replica loads: progress has no event of its own
    scale_seconds: float = 5.0  # between two decisions on the load
    refused_seconds: float = 60.0  # while the cluster refuses a write
    settle_seconds: float = 15.0  # while a replica that serves has not said its capacity yet

    def image(self, accelerator: str) -> str:
        """The server's image for an accelerator, where the spec names none."""
        return self.cpu_image if accelerator == "cpu" else self.gpu_image


def from_environ(environ: Mapping[str, str]) -> Settings:
    """Settings with what the environment names; an empty variable is none."""
    default = Settings()
    return Settings(
        cpu_image=environ.get(CPU_IMAGE_ENV) or default.cpu_image,
        gpu_image=environ.get(GPU_IMAGE_ENV) or default.gpu_image,
        gateway_image=environ.get(GATEWAY_IMAGE_ENV) or default.gateway_image,
        image_pull_policy=environ.get(PULL_POLICY_ENV) or None,
        preflight=environ.get(PREFLIGHT_ENV, "true").strip().lower() not in ("false", "0", "no"),
    )
