"""The routes of nsqd's HTTP API: thin, the rules are the broker's.

router    puts the routes together and names ours (list_extensions); /ping, /info, /stats, /metrics
publish   /pub, /mpub              admin    POST /topic/*, /channel/*, /client/close
peek      look at messages         limits   /topic/limits
move      to other topics, or drop analytics /snapshot, /segments: queues for analysis
config    /config/:opt             access   TLS only, CORS, bearer token
console   /console/, the page      topics   the topic or channel that a request names

Called by `nsqd.daemon`. Imports console, http, analytics, broker, stats, node, config, runtime.
"""
