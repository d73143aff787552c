"""What every test shares: property tests that say the same each time and never fail for a busy machine.

HYPOTHESIS_PROFILE=explore pytest …      many more examples, other ones each time
"""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "explore", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(tryfirst=True)  # before a fixture asks for the device
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # here: most runs of a few tests need no torch, and it takes seconds

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: run `.venv/bin/python -m pytest -m gpu` on a machine that has one")
