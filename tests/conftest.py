"""For all tests: a loaded machine is no failure, so Hypothesis watches no clock."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
