"""Ports, paths and environment variables that the operator renders and the server answers on. One place, no logic."""

from __future__ import annotations

SERVING_PORT = 8000
MANAGEMENT_PORT = 8001  # of a pod; no Service has it

HEALTH_PATH = "/health"  # 200 while loading moves or the engine advances; liveness and startup probes
READY_PATH = "/ready"  # 200 when requests are taken; 503 with the same JSON while loading or draining
METRICS_PATH = "/metrics"
VERSION_PATH = "/version"
OPEN_PATHS = frozenset({HEALTH_PATH, READY_PATH, METRICS_PATH, VERSION_PATH})  # no API key is asked for

# On the management port, which wants `Authorization: Bearer` with the token.
# GET: {"config": {...}, "hot": [names], "settings": {...}}; PATCH an object of hot names: the same, 400 when one can't be.
# settings: what was asked for of `pagemill.hot_settings`.
CONFIG_PATH = "/config"
# POST {"lameDuckSeconds": s, "timeoutSeconds": s}, or nothing: begin a drain (202). DELETE: call it off (409 once the process
# stops). All, and GET: {"phase": PHASES, "draining": bool, "drained": bool, "inFlight": int}; drained: it may be deleted now.
DRAIN_PATH = "/drain"
# GET: whose each block is, who runs and who waits (docs/page.md).
BLOCKS_PATH = "/debug/blocks"
# The page that shows it, and asks for the token itself: it loads without.
PAGE_PATH = "/"

MODELS_ENV = "PAGEMILL_MODELS"  # folders of models as org/name/, split as PATH is; a fetch goes to the first
TERMINATION_LOG_ENV = "PAGEMILL_TERMINATION_LOG"
MANAGEMENT_TOKEN_ENV = "PAGEMILL_MANAGEMENT_TOKEN"  # what the management port asks for
HUB_ENDPOINT_ENV = "HF_ENDPOINT"
HUB_TOKEN_ENV = "HF_TOKEN"
KERNEL_CACHE_ENV = "TRITON_CACHE_DIR"  # where the kernels that Triton has compiled are kept

# The body of /ready, ready or not:
#   {"ready": bool, "phase": PHASES, "percent": 0..100, "bytesLoaded": int, "bytesTotal": int,
#    "capacity": null | {"weightsBytes", "kvCacheBytes", "kvBlocks", "maxConcurrentTokens", "maxModelLenThatFits"},
#    "settings": null | digest of the hot settings in force (`pagemill.hot_settings`)}
PHASES = ("Starting", "Downloading", "LoadingWeights", "Warmup", "Serving", "Draining")
