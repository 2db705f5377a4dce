"""History: what was published, consumed or not."""
