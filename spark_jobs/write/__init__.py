"""Publishing with Spark."""
