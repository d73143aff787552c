"""The model: weights, KV tensors, one step of computation and sampling. `load.load_runner` is the way in.

Called by the server's start (`load_runner`) and then by `engine` through `ports.ModelRunner`; knows no requests, text or HTTP.
"""

from __future__ import annotations

import os

# OpenMP's threads spin while they wait unless this is set before torch loads; with any other busy process on the machine a
# decode step then takes twenty times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
