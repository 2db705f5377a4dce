"""The queues of topics and channels: messages that wait, in memory and on disk.

message_queue   the queue itself: memory first, the rest on disk
memory, batch   its content: batches, and pieces that know where they come from
pending_put     a put into several queues that a thread writes; aside, pace: such appends, and when
backend         the disk behind a queue, or NullBackend for ephemeral queues; front: a look at it
sync_schedule   when a disk queue is synced: after so many changes, counted by diskqueue, or seconds
due_log         due times of deferred messages on disk; receipt: what a publish waits for
ids             message ids, and their floor across restarts; closing: thousands of queues
Called by broker, topic, channel, limits and archive. Imports diskqueue and the broker's scheduler.
"""
