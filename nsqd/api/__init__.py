"""The routes of nsqd's HTTP API: thin, the rules are the broker's.

router    all routes in one table, and health, /info, /stats, /metrics of the node
publish   /pub, /mpub              admin    /topic/*, /channel/*
peek      look at messages         limits   /topic/limits
config    /config/:opt             access   TLS only, CORS, bearer token
topics    the topic or channel that a request names, and the answer of a disk that refuses

Called by `nsqd.daemon`. Imports http, broker, stats, node, config.
"""
