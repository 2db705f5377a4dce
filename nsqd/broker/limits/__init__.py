"""How much a topic may hold, for how long, how often a message is tried; and its enforcement.

overrides     LimitOverrides: the limits that single topics have of their own
book          LimitBook: which limits hold for a topic; the broker and /topic/limits ask it
topic_bounds  TopicBounds: refuses publishes, trims and sweeps the queues of a topic
queue_bounds  QueueBounds: removes messages of one queue beyond a limit; Losses counts them
dead_letter   Limbo: publishes removed messages to the dead-letter topic
causes        CauseLog: where the dead letters of a topic come from; cause_book: those of all topics

`nsqd.config.limits` declares limits; one on messages in flight is broker.channel's. Imports queue.
"""
