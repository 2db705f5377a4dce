"""Reading queues with Spark."""
