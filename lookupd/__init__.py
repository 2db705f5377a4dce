"""nsqlookupd: the discovery daemon of NSQ, in Python.

__main__: the command. daemon: the composition root. options: the flags. registry: the producers of
topics and channels, in memory. tcp: the connections of the nsqds, which register here. http_api:
the routes for consumers and operators. metrics: the figures for Prometheus.

nsqd never imports it. May import nsqd.config, nsqd.http, nsqd.protocol, nsqd.runtime.
"""
