"""Messages in files that survive a power cut, for `nsq to-file` and `nsq_to_file`.

names        the name of a file, from topic, host and time      folders     new files, moves, syncs
output_file  one open file: lines or gzip members, cut back to what is certain
leftovers    files of a run that was killed                     writer      group commit for a topic

A message is finished after fsync of its file, and of every directory that got a new name.
Synchronous but for `writer`; called in threads. Uses `os` alone, so that tests can fail each call.
"""
