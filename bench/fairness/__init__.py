"""How long does one client wait because of another? `python -m bench fairness --help`.

command    arguments -> rows of the table, measured on one or two daemons in turns
measuring  one row on one daemon: a pinger beside greedy clients
pinger     a PUB every millisecond on a topic of its own, and how late each answer was
rows       the list: what the greedy clients do, with which flags, how much of it; row: one of them
floods     commands, plain, compressed or over TLS, sent as fast as the daemon takes them
backlogs, crowds, topics, http_loads, tls_loads, slow_disk, scans    the other loads
table      delays by row and daemon, above the idle daemon's, against the bar
"""
