"""The cluster as nsqadmin sees it.

upstream    calls to nsqd and nsqlookupd, with bounds       discovery   which nodes and topics are
collector   asks all nodes, round after round               view        the outcome of a round
figures     a node's /stats as tuples; rates                merge       rows of all nodes (pure)
findings    problems right now (pure)                       history     an hour in rings (pure)
commands    changes, sent to daemons
"""
