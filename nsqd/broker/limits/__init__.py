"""How much a topic may hold, for how long, how often a message is tried; and its enforcement.

overrides     LimitOverrides: the limits that single topics have of their own
book          LimitBook: which limits hold for a topic; the broker and /topic/limits ask it
topic_bounds  TopicBounds: refuses publishes, trims and sweeps the queues of a topic
queue_bounds  QueueBounds: removes messages of one queue beyond a limit; Losses counts them
dead_letter   Limbo: publishes removed messages to the dead-letter topic

`nsqd.config.limits` declares the limits. A limit on subscribing or on messages in flight belongs to
broker.channel; book says which flags do not hold for dead letters. Imports broker.queue, channel.
"""
