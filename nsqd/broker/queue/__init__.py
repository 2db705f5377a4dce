"""The queues of topics and channels."""
