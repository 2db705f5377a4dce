"""For all tests: a loaded machine is no failure, so no example of Hypothesis has a deadline."""

from hypothesis import settings

settings.register_profile("house")
settings.load_profile("house")
