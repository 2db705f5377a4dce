"""One snapshot of the figures, and the ways to show it."""
