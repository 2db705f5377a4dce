"""nsqd: the message daemon of NSQ, in Python."""

__version__ = "0.1.0"

# What clients, nsqadmin and scripts compare against: the NSQ release whose behaviour we match.
PROTOCOL_VERSION = "1.3.0"
