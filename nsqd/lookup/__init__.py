"""nsqlookupd's client: announce topics and channels, learn the channels of the cluster.

registration: all nsqlookupds; the broker's changes come in here. peer: one nsqlookupd, connected
and kept up to date. conversation: its connection. changes: the names it has yet to hear of.
channel_query: ask it over HTTP for a topic's channels. topic_starter: start a new topic with them.

What it announces is protocol.lookup's NsqdIdentity, filled in by nsqd.settings.
Called by nsqd.daemon and, for their state, by nsqd.stats and nsqd.api.
May import nsqd.broker, nsqd.protocol, nsqd.runtime, nsqd.http.client.
"""
