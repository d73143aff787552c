"""What every test shares: property tests that say the same each time and never fail for a busy machine.

HYPOTHESIS_PROFILE=explore pytest …      many more examples, other ones each time
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "explore", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
