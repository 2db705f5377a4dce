"""Queues at one moment, for analysis: every message in exactly one of its places.

copies   what is in flight and deferred, copied in steps and before it changes
moment   Moment: one queue at one moment; its messages as records, some at a time

Called by nsqd.analytics; `deferred` tells its copy of changes. Imports broker and diskqueue.
"""
