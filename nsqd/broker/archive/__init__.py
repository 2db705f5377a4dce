"""History: every published message of a topic, kept on disk for a while, consumed or not.

archive    Archive: the history of one topic; the topic adds each batch and asks for its stats
gathering  Gathering: the messages of an archive that wait in memory for their write
direct     DirectWrites: large appends go past the kernel's page cache
keeper     ArchiveKeeper: when threads write and sync the archives of a broker; health
retention  RetainedLog: the files, on diskqueue's writer, within bounds of bytes and time

`Broker` makes the keeper, `Topic` calls its archive, stats show both. Imports diskqueue and
broker.queue, no socket and no event loop: threads and timers come from the Scheduler.
"""
