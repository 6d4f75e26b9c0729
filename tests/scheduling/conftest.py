"""Settings of the property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine may stall any single example.
settings.register_profile("framefit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("framefit")
