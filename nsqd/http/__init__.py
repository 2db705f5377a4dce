"""HTTP/1.1, server and client, for nsqd, nsqlookupd and the tools around them.

server: listen and stop; users import the server's names from here. connection: one client, replies
in order; file_body: a file as a reply. parser: bytes to requests; known_heads: those seen before.
routes: Request, Response, HttpError and the table of handlers. arguments: names and numbers of a
query. debug: below /debug. bearer: the token for changes; origin: changes that other sites' pages
ask for, foreign hosts. client: requests to other daemons. reply_parser: bytes to replies.

Called by nsqd.api, nsqd.stats, nsqd.tcp (auth), nsqd.lookup, both daemons.
May import nsqd.config, nsqd.protocol, nsqd.runtime, httptools.
"""
