"""The cluster as nsqadmin sees it.

upstream    calls to nsqd and nsqlookupd, with bounds       discovery   which nodes and topics are
collector   asks all nodes, round after round               view        what a round has found
figures     a node's /stats as tuples; rates                merge       rows of all nodes (pure)
findings    what is wrong right now (pure)                  history     an hour in rings (pure)
commands    what daemons are told to do
"""
