"""History that leaves its node: finished segments of archives, copied to where it may grow.

shipment.py   one pass: what is new, copied and committed      ledger.py   what has arrived
tally.py      the records of a segment, counted as its bytes go by
Run by jobs/ship.py. May import diskqueue, pace, object_store and read/; no Spark is needed.
"""
