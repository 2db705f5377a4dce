"""Topics, channels and their messages: synchronous, driven by a Scheduler, without sockets.

broker: the registry of topics; topic: accepts messages and copies them to its channels, those that
take long through its publish_line; channel: delivers them; consumer: subscribed clients, and whose
turn it is; in_flight: messages that a consumer has; deferred: messages that are not due.
queue/: where messages wait; limits/: how many may wait; archive/: history; snapshot/: a moment.
metadata: nsqd.dat; health: of the disk; durations: measured; peek: a look; move: to another topic;
disposal: frees memory; scheduler: clock and loop as seen from here; errors: answered by callers.
Called by tcp, api, stats, lookup, runtime. Imports diskqueue, protocol.names and config.limits.
"""
