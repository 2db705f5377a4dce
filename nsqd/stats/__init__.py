"""One snapshot of the figures, and four ways to show it.

snapshot: the figures of topics and channels at one moment; clients: those of TCP clients;
memory: those of the process.
json, text, delta: /stats; families: the table of metrics, to which new ones are added;
prometheus: prints them for /metrics; statsd: pushes.

Called by the API (/stats, /metrics) and by the daemon (statsd). Imports the broker, tcp (clients
alone), runtime, config and the Node; nothing here is counted, only read. A figure that NSQ does not
have is left out of /stats while it is 0, so that columns and keys stay NSQ's.
"""
