"""Views of an open queue for readers from outside, and their hold on its files.

pins   Pins: segments, with their checksums, whose bytes stay while a reader needs them
view   QueueView: the segments and positions of a queue, as they are now

Called by queue and sync_job, and by nsqd's broker for its snapshots. Imports layout and the parts
of a queue; changes none of them.
"""
