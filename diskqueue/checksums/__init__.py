"""Checksums of records, in a file beside each segment, which go-diskqueue ignores.

`entries` is the format: an entry for each append; `crc` computes. `file` (ChecksumFile) writes
them, `syncing` fsyncs both files side by side, and `marks` has them know each other. `checks`
(SegmentChecks) tells which bytes of a segment can be believed; `verifier` asks it for a queue's
reader and counts failures, `audit` for tools and Spark; `tail` finds the last records of a queue.
`docs/contract/diskqueue.md` says which records are delivered, and why.
Called by the queue's writer and reader, nsqd's archive, `python -m diskqueue` and Spark; blocks, in
any thread. Imports layout, segment and salvage.
"""
