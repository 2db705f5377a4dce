"""Topics, channels and their queues: synchronous, driven by a Scheduler, without sockets."""
