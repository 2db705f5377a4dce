"""The queues of topics and channels: messages that wait, in memory and on disk.

message_queue   the queue itself: memory first, the rest on disk
batch           its content: batches, and pieces of them that know where they come from
backend         the disk behind a queue: DiskBackend, or NullBackend for ephemeral queues
sync_schedule   when a disk queue is synced: after so many changes, counted by diskqueue, or seconds
due_log         due times of deferred messages on disk
receipt         which syncs a publish waits for; ids: message ids, and their floor across restarts

Called by broker, topic, channel, limits and archive. Imports diskqueue and the broker's scheduler.
"""
