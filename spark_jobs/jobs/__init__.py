"""The jobs of nsqd-spark."""
